"""Judging an accelerator: ``(readings, policy) -> findings``. Pure.

The same code judges simulated registers and real drivers. What is checked, which reason a failure
gives and what clears it are rows of checks.toml; how is `fleet.health.rules`; thresholds are
`HealthPolicy`.

Decisions:

1. Five verdicts. Unknown is neither pass nor fail: on a mandatory check it blocks when the policy
   says so, elsewhere it is only shown.
2. A finding that takes the device out of service carries its reason code; all others carry none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet.health import reasons, tables
from fleet.health.readings import Readings
from fleet.health.rules import (
    RECOVERY,
    RULES,
    UNREAD,
    Action,
    Check,
    Outcome,
    Sight,
    Verdict,
    remedy_of,
)
from fleet.model import Reason, Source
from fleet.settings import HealthPolicy

__all__ = [
    "CHECKS",
    "RECOVERY",
    "RULES",
    "UNREAD",
    "Action",
    "Check",
    "Finding",
    "Verdict",
    "judge",
    "needs_reset",
    "passed",
    "reasons_of",
    "remedy_of",
]


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
    unknown = outcome.verdict is Verdict.UNKNOWN
    why = sight.now.why.get(check.reading, "") if unknown else ""
    blocked = unknown and check.mandatory
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
        detail=f"{outcome.detail} ({why})" if why else outcome.detail,
        remedy=outcome.remedy or check.remedy,
        action=action if failed else Action.NONE,
    )


_OWN_FIELDS = frozenset({"name", "rule", "reading", "mandatory", "reason", "remedy", "source"})


def _check(row: Mapping[str, Any]) -> Check:
    own = {name: row[name] for name in _OWN_FIELDS}
    rules = {name: value for name, value in row.items() if name not in {*_OWN_FIELDS, "action"}}
    return Check(**own, action=Action(row.get("action", "")), rules=rules)


CHECKS: tuple[Check, ...] = tuple(_check(row) for row in tables.rows("checks", "check"))
