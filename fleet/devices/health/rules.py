"""How each kind of check judges its reading. Pure; the checks themselves are rows of checks.toml.

Decisions:

1. Counters are compared before and after: a rise fails. A counter that got smaller, or reads all
   ones, is a failed read-out and so unknown, never zero.
2. A signal that is absent is unknown, and that is decided in one place (`outcome`), before any
   rule: a rule is only asked about a reading that is there. "Not applicable" is only what the back
   end *knows* the hardware not to have, or what is not judged at this moment.
3. Link speed and width are judged only under load of ours and at full speed of the device: others
   slow their link down. The maximum the slot offers is a fact at any time and must not shrink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from fleet.core.settings import HealthPolicy
from fleet.devices.health import tables, xids
from fleet.devices.health.readings import Readings

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


def outcome(check: Check, sight: Sight) -> Outcome:
    """The verdict of one check. The only place where an absent reading is judged."""
    if check.reading in sight.now.not_applicable:
        return Outcome(Verdict.NOT_APPLICABLE, "the hardware has no such thing")
    # A link's maximum may have fallen whatever else of it is not told: its rule looks at both.
    absent = all(_value(check, readings) is None for readings in (sight.now, sight.load))
    if absent and check.rule != "link":
        return _unknown(check)
    return RULES[check.rule](check, sight)


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


def _obstacles(check: Check, sight: Sight) -> Outcome:
    """Whatever the back end says keeps the device from being used as it is."""
    found = _value(check, sight.now)
    if found is None:
        return _unknown(check)
    if found:
        return Outcome(Verdict.FAIL, "; ".join(found))
    return Outcome(Verdict.PASS, "nothing is in the way")


def _partitioned(check: Check, sight: Sight) -> Outcome:
    """Partitions are made for each wipe and claim: none is no fault unless the mode is in doubt."""
    now = _value(check, sight.now)
    if now is None:
        return _unknown(check)
    if not now:
        return Outcome(Verdict.PASS, "memory can be reached")
    if sight.now.mig_change_pending is not False or sight.now.mig_enabled is False:
        return Outcome(Verdict.WARN, "no instance, and the mode of partitioning is not settled")
    return Outcome(
        Verdict.PASS,
        "partitioning on, no instance: one is made for each wipe and claim, without it none runs",
    )


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
        told = check.rules.get("warn_rise")
        if told is not None and now - old > told:
            return Outcome(Verdict.WARN, f"{name} rose by {now - old} ({old} to {now})")
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
    if loaded and not _at_full_speed(sight):
        return Outcome(
            Verdict.UNKNOWN,
            f"{name} is {value} of {most}, and the device was not seen at full speed under load",
        )
    if loaded:
        return Outcome(Verdict.FAIL, f"{name} is {value} of {most} under load")
    return Outcome(Verdict(check.rules["idle"]), f"{name} is {value} of {most}, idle")


def _at_full_speed(sight: Sight) -> bool:
    """Whether the readings under load count: devices without power states have nothing to wait."""
    if "pstate" in sight.now.not_applicable:
        return True
    return sight.load is not None and sight.load.pstate == 0


def _full_speed(check: Check, sight: Sight) -> Outcome:
    """A device that never reaches its highest power state under load cannot be judged by speed."""
    state = _value(check, sight.load or sight.now)
    if state is None:
        return _unknown(check)
    if sight.load is None:
        return Outcome(Verdict.NOT_APPLICABLE, f"{check.reading} is judged only under load")
    if state != 0:
        return Outcome(Verdict.UNKNOWN, f"{check.reading} is {state} under load, expected 0")
    return Outcome(Verdict.PASS, f"{check.reading} is 0 under load")


def _slot(check: Check, sight: Sight) -> Outcome:
    """Whether the slot lets the card run as fast as it could: a property of the host."""
    able, offered = _value(check, sight.now), sight.now.pcie_gen_max
    if able is None or offered is None:
        return _unknown(check)
    if offered < able:
        return Outcome(
            Verdict.WARN, f"the card can do generation {able}, its slot only offers {offered}"
        )
    return Outcome(Verdict.PASS, f"the slot offers the card's generation {able}")


def _level(check: Check, sight: Sight) -> Outcome:
    """A level that goes up and down: shown when high, never a fault by itself."""
    seen = [value for value in (_value(check, sight.now), _value(check, sight.load)) if value]
    if _value(check, sight.now) is None and not seen:
        return _unknown(check)
    highest, above = max(seen, default=0), check.rules["warn_above"]
    verdict = Verdict.WARN if highest > above else Verdict.PASS
    return Outcome(verdict, f"{check.reading} is {highest}, shown above {above}")


def _fabric(check: Check, sight: Sight) -> Outcome:
    """Only a completed and healthy fabric passes; one on its way has until the deadline."""
    now, waited = sight.now, sight.now.fabric_waited_s
    state = now.fabric_state
    if state is None:
        return _unknown(check)
    if state in check.rules["on_its_way"]:
        if waited is not None and waited < check.rules["wait_s"]:
            return Outcome(Verdict.UNKNOWN, f"the fabric is {state} since {waited:.0f} s")
        return Outcome(Verdict.FAIL, f"the fabric is {state}")
    if state != "completed":
        return Outcome(Verdict.FAIL, f"setting up the fabric ended as {state}")
    if now.fabric_healthy is None and "fabric_healthy" not in now.not_applicable:
        return Outcome(Verdict.UNKNOWN, "the fabric is completed, its health was not answered")
    if now.fabric_healthy is False:
        return Outcome(Verdict.FAIL, "the fabric is completed and not healthy")
    return Outcome(Verdict.PASS, "the fabric is completed")


def _links(check: Check, sight: Sight) -> Outcome:
    """Every link the device has must be up; links that do not exist are not counted."""
    up, expected = sight.now.nvlinks_up, sight.now.nvlinks_expected
    if expected == 0:
        return Outcome(Verdict.NOT_APPLICABLE, "no link of the device is in use")
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
        severities=sight.now.xid_severities,
    )
    told = [xid for xid in found if xid.severity >= xids.Severity.NOTE]
    detail = ", ".join(str(xid) for xid in told) or "no open fault code"
    if told and told[0].severity.serious:
        action, remedy = _XID_ACTIONS[told[0].severity]
        return Outcome(Verdict.FAIL, detail, reason=told[0].reason, remedy=remedy, action=action)
    if check.reading in sight.now.why:
        return Outcome(Verdict.UNKNOWN, f"{detail}; what came before is not known")
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


def _logged(check: Check, sight: Sight) -> Outcome:
    """What the kernel log has of these kinds; of a severity less than the one named only shown."""
    if sight.now.logged is None:
        return _unknown(check)
    kinds, worst = check.rules["kinds"], check.rules.get("severity", "")
    found = [one for one in sight.now.logged if one.kind in kinds]
    grave = [one for one in found if not worst or one.severity == worst]
    told = "; ".join(dict.fromkeys(one.text for one in (grave or found)[-_LOGGED_SHOWN:]))
    if grave:
        return Outcome(Verdict.FAIL, f"the kernel log has {len(grave)}: {told}")
    if found:
        return Outcome(Verdict.WARN, f"the kernel log has {len(found)}: {told}")
    return Outcome(Verdict.PASS, "the kernel log has none")


_LOGGED_SHOWN = 3


RULES: Mapping[str, Rule] = {
    "logged": _logged,
    "flag": _flag,
    "load-flag": _load_flag,
    "posture": _posture,
    "obstacles": _obstacles,
    "partitioned": _partitioned,
    "count": _count,
    "link": _link,
    "links": _links,
    "full-speed": _full_speed,
    "slot": _slot,
    "level": _level,
    "fabric": _fabric,
    "recovery": _recovery,
    "xids": _xids,
}

RECOVERY: Mapping[str, Mapping[str, Any]] = {
    row["word"]: row for row in tables.rows("recovery", "recovery")
}
