"""Judging an accelerator: ``(readings, policy) -> findings``. Pure.

The same code judges simulated registers and real drivers. What is checked, which reason a failure
gives and what clears it are rows of checks.toml; thresholds are `HealthPolicy`.

Decisions:

1. Five verdicts. Unknown is neither pass nor fail: on a mandatory check it blocks when the policy
   says so, elsewhere it is only shown.
2. Counters are compared before and after: a rise fails. A counter that got smaller, or reads all
   ones, is a failed read-out and so unknown, never zero.
3. Link speed and width are judged only under load of ours: idle devices slow their link down. The
   maximum the slot offers is a fact at any time and must not shrink.
4. A finding that takes the device out of service carries its reason code; all others carry none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from fleet.health import reasons, tables, xids
from fleet.health.readings import Readings
from fleet.model import Reason, Source
from fleet.settings import HealthPolicy

UNREAD = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
"""What a register that cannot be read returns: all ones, in 32 or 64 bits."""


class Verdict(StrEnum):
    """How a check came out."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not-applicable"
    WARN = "warn"


class Action(StrEnum):
    """What must happen to the device before a scrub can clear the fault."""

    NONE = ""
    RESET = "reset"
    REBOOT = "reboot"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's verdict. `reason` is set exactly when it takes the device out of service."""

    check: str
    verdict: Verdict
    mandatory: bool
    reason: str
    detail: str
    remedy: str
    action: Action = Action.NONE


@dataclass(frozen=True, slots=True)
class Check:
    """One row of checks.toml; `rules` holds the fields only its own rule reads."""

    name: str
    rule: str
    reading: str
    mandatory: bool
    reason: str
    remedy: str
    source: str
    action: Action = Action.NONE
    rules: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sight:
    """All that is known about one accelerator at one judgement."""

    now: Readings
    before: Readings | None
    load: Readings | None
    policy: HealthPolicy

    def limit(self, named: int | str | None) -> int | None:
        """A threshold: a number as it stands, or the policy field it names."""
        return int(getattr(self.policy, named)) if isinstance(named, str) else named


@dataclass(frozen=True, slots=True)
class Outcome:
    """A rule's answer before it becomes a finding; empty fields fall back on the check's row."""

    verdict: Verdict
    detail: str = ""
    reason: str = ""
    remedy: str = ""
    action: Action | None = None


Rule = Callable[[Check, Sight], Outcome]


def judge(
    readings: Readings,
    policy: HealthPolicy,
    *,
    before: Readings | None = None,
    under_load: Readings | None = None,
) -> tuple[Finding, ...]:
    """One finding per check, in the table's order.

    `before` are readings from the start of the wipe (without them rises are not judged), and
    `under_load` those taken while memory traffic of ours ran. Never raises on any readings.
    """
    load = under_load or (readings if readings.under_load else None)
    sight = Sight(readings, before, load, policy)
    return tuple(_finding(check, sight) for check in CHECKS)


def passed(findings: Iterable[Finding], policy: HealthPolicy) -> bool:
    """Whether the device may be handed out as far as these findings go."""
    for finding in findings:
        if finding.verdict is Verdict.FAIL:
            return False
        unknown = finding.verdict is Verdict.UNKNOWN and finding.mandatory
        if unknown and policy.unknown_blocks:
            return False
    return True


def reasons_of(findings: Iterable[Finding], *, since: float) -> frozenset[Reason]:
    """The quarantine reasons these findings give, one per code, with the facts of all of them."""
    grouped: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.reason:
            grouped.setdefault(finding.reason, []).append(finding)
    if "device-lost" in grouped:
        grouped.pop("health-unknown", None)  # a device that is gone answers nothing: one cause
    return frozenset(
        reasons.make(
            code,
            Source.HEALTH,
            detail="; ".join(f"{finding.check}: {finding.detail}" for finding in found),
            since=since,
            remedy=found[0].remedy if code != "health-unknown" else "",
        )
        for code, found in grouped.items()
    )


def needs_reset(findings: Iterable[Finding]) -> bool:
    """Whether a failed check says that only a reset (not a wipe) makes the device usable again."""
    return any(finding.action is Action.RESET for finding in findings)


def _finding(check: Check, sight: Sight) -> Finding:
    absent = check.reading in sight.now.not_applicable
    outcome = (
        Outcome(Verdict.NOT_APPLICABLE, "the hardware has no such thing")
        if absent
        else RULES[check.rule](check, sight)
    )
    blocked = outcome.verdict is Verdict.UNKNOWN and check.mandatory
    failed = outcome.verdict is Verdict.FAIL
    reason = (outcome.reason or check.reason) if failed else ""
    if blocked and sight.policy.unknown_blocks:
        reason = "health-unknown"
    action = check.action if outcome.action is None else outcome.action
    return Finding(
        check=check.name,
        verdict=outcome.verdict,
        mandatory=check.mandatory,
        reason=reason,
        detail=outcome.detail,
        remedy=outcome.remedy or check.remedy,
        action=action if failed else Action.NONE,
    )


# --- rules ---------------------------------------------------------------------------------------


def _value(check: Check, readings: Readings | None) -> Any:
    return None if readings is None else getattr(readings, check.reading)


def _unknown(check: Check) -> Outcome:
    return Outcome(Verdict.UNKNOWN, f"{check.reading} was asked for and not answered")


def _flag(check: Check, sight: Sight) -> Outcome:
    """Fails when the flag is bad now, or was while the device was under load."""
    bad, now = check.rules["bad"], _value(check, sight.now)
    if bad in (now, _value(check, sight.load)):
        return Outcome(Verdict.FAIL, f"{check.reading} is {str(bad).lower()}")
    if now is None:
        return _unknown(check)
    return Outcome(Verdict.PASS, f"{check.reading} is {str(now).lower()}")


def _load_flag(check: Check, sight: Sight) -> Outcome:
    """Fails only when the flag was bad under load; it may blink when the device is idle."""
    bad, loaded, now = check.rules["bad"], _value(check, sight.load), _value(check, sight.now)
    if loaded == bad:
        return Outcome(Verdict.FAIL, f"{check.reading} is {str(bad).lower()} under load")
    if now is None:
        return _unknown(check)
    if now == bad:
        return Outcome(Verdict.WARN, f"{check.reading} is {str(bad).lower()} without load of ours")
    return Outcome(Verdict.PASS, f"{check.reading} is {str(now).lower()}")


def _posture(check: Check, sight: Sight) -> Outcome:
    """Recorded and warned about; our own wipe does not rely on it."""
    found = _flag(check, sight)
    return replace(found, verdict=Verdict.WARN) if found.verdict is Verdict.FAIL else found


def _count(check: Check, sight: Sight) -> Outcome:
    """A counter: readable, not shrunk, within its limit, and not risen during the wipe."""
    now, name = _value(check, sight.now), check.reading
    if now is None:
        return _unknown(check)
    if now in UNREAD or now < 0:
        return Outcome(Verdict.UNKNOWN, f"{name} reads {now:#x}: the register was not read")
    limit = sight.limit(check.rules.get("limit"))
    if limit is not None and now > limit:
        return Outcome(Verdict.FAIL, f"{name} is {now}, allowed {limit}")
    if sight.before is not None:
        moved = _moved(check, sight, now)
        if moved is not None:
            return moved
    above = check.rules.get("warn_above")
    if above is not None and now > above:
        return Outcome(Verdict.WARN, f"{name} is {now} from earlier times")
    return Outcome(Verdict.PASS, f"{name} is {now}")


def _moved(check: Check, sight: Sight, now: int) -> Outcome | None:
    """What the change since `before` says; None when it says nothing bad."""
    old, name = _value(check, sight.before), check.reading
    if old is None or old in UNREAD or old < 0:
        return Outcome(Verdict.UNKNOWN, f"{name} was not read at the start: a rise cannot be seen")
    if now < old:
        return Outcome(Verdict.UNKNOWN, f"{name} went from {old} down to {now}: reset or misread")
    allowed = sight.limit(check.rules.get("rise"))
    if allowed is None or now - old <= allowed:
        return None
    detail = f"{name} rose by {now - old} ({old} to {now}), allowed {allowed}"
    rise_action = check.rules.get("rise_action")
    return Outcome(
        Verdict.FAIL,
        detail,
        reason=check.rules.get("rise_reason", ""),
        action=None if rise_action is None else Action(rise_action),
    )


def _link(check: Check, sight: Sight) -> Outcome:
    """Speed or width against the slot's maximum, under load; idle as the table says."""
    name, unread = check.reading, check.rules.get("unread")
    most = getattr(sight.now, f"{name}_max")
    earlier = getattr(sight.before, f"{name}_max") if sight.before else None
    if most is not None and earlier is not None and most < earlier:
        return Outcome(Verdict.FAIL, f"{name}_max fell from {earlier} to {most}")
    loaded = sight.load is not None
    value = _value(check, sight.load if loaded else sight.now)
    if value is None or most is None or value == unread:
        if loaded or check.rules["idle"] == Verdict.WARN:
            return _unknown(check)
        return Outcome(Verdict.NOT_APPLICABLE, f"{name} is judged only under load")
    if value >= most:
        return Outcome(Verdict.PASS, f"{name} is {value} of {most}")
    if loaded:
        return Outcome(Verdict.FAIL, f"{name} is {value} of {most} under load")
    return Outcome(Verdict(check.rules["idle"]), f"{name} is {value} of {most}, idle")


def _links(check: Check, sight: Sight) -> Outcome:
    """Every link the device has must be up; links that do not exist are not counted."""
    up, expected = sight.now.nvlinks_up, sight.now.nvlinks_expected
    if expected == 0:
        return Outcome(Verdict.NOT_APPLICABLE, "the device has no links")
    if up is None or expected is None:
        return _unknown(check)
    if up < expected:
        return Outcome(Verdict.FAIL, f"{up} of {expected} links are up")
    return Outcome(Verdict.PASS, f"{up} of {expected} links are up")


def _recovery(check: Check, sight: Sight) -> Outcome:
    """The driver's own verdict. A word we do not know is taken at its worst."""
    word = sight.now.recovery_action
    if word is None:
        return _unknown(check)
    row = RECOVERY.get(word.upper())
    if row is None:
        return Outcome(Verdict.FAIL, f"the driver asks for {word}, which no table explains")
    return Outcome(
        Verdict(row["verdict"]),
        f"the driver asks for {word}",
        reason=row.get("reason", ""),
        remedy=row.get("remedy", ""),
        action=Action(row.get("action", "")),
    )


def _xids(check: Check, sight: Sight) -> Outcome:
    """The worst open fault code decides; all of them are named."""
    codes = sight.now.xids
    if codes is None:
        return _unknown(check)
    found = xids.classify(
        codes,
        before=sight.before.xids if sight.before else None,
        driver_version=sight.now.driver_version,
    )
    told = [xid for xid in found if xid.severity >= xids.Severity.NOTE]
    detail = ", ".join(str(xid) for xid in told) or "no open fault code"
    if told and told[0].severity.serious:
        action, remedy = _XID_ACTIONS[told[0].severity]
        return Outcome(Verdict.FAIL, detail, reason=told[0].reason, remedy=remedy, action=action)
    if sight.before is not None and sight.before.xids is None:
        return Outcome(Verdict.UNKNOWN, "fault codes were not read at the start of the wipe")
    return Outcome(Verdict.WARN if told else Verdict.PASS, detail)


_XID_ACTIONS: Mapping[xids.Severity, tuple[Action, str]] = {
    xids.Severity.OURS: (Action.NONE, "our own wipe raised it: scrub the device again"),
    xids.Severity.REVIEW: (Action.NONE, "look the code up, then reset the device and scrub it"),
    xids.Severity.RESET: (Action.RESET, "reset the device, then scrub it"),
    xids.Severity.REBOOT: (Action.REBOOT, "reboot or power-cycle the node, then scrub the device"),
    xids.Severity.REPLACE: (Action.REPLACE, "replace the device after field diagnostics"),
}


def remedy_of(severity: xids.Severity) -> str:
    """What to do about a fault code of this severity. KeyError for one that is not serious."""
    return _XID_ACTIONS[severity][1]


RULES: Mapping[str, Rule] = {
    "flag": _flag,
    "load-flag": _load_flag,
    "posture": _posture,
    "count": _count,
    "link": _link,
    "links": _links,
    "recovery": _recovery,
    "xids": _xids,
}

RECOVERY: Mapping[str, Mapping[str, Any]] = {
    row["word"]: row for row in tables.rows("recovery", "recovery")
}

_OWN_FIELDS = frozenset({"name", "rule", "reading", "mandatory", "reason", "remedy", "source"})


def _check(row: Mapping[str, Any]) -> Check:
    own = {name: row[name] for name in _OWN_FIELDS}
    rules = {name: value for name, value in row.items() if name not in {*_OWN_FIELDS, "action"}}
    return Check(**own, action=Action(row.get("action", "")), rules=rules)


CHECKS: tuple[Check, ...] = tuple(_check(row) for row in tables.rows("checks", "check"))
