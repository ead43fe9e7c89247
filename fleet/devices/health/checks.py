"""Judging an accelerator: ``(readings, policy) -> findings``. Pure.

The same code judges simulated registers and real drivers. What is checked, which reason a failure
gives and what clears it are rows of checks.toml; how is `fleet.devices.health.rules`; thresholds
are `HealthPolicy`.

Decisions:

1. Five verdicts. Unknown is neither pass nor fail: on a mandatory check it blocks when the policy
   says so, elsewhere it is only shown.
2. A finding that takes the device out of service carries its reason code; all others carry none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fleet.core.model import Reason, Source
from fleet.core.settings import HealthPolicy
from fleet.devices.health import kernel_log, reasons, tables
from fleet.devices.health.readings import Readings
from fleet.devices.health.rules import (
    RECOVERY,
    RULES,
    UNREAD,
    Action,
    Check,
    Outcome,
    Sight,
    Verdict,
    outcome,
    remedy_of,
)

__all__ = [
    "CHECKS",
    "RECOVERY",
    "RULES",
    "UNREAD",
    "Action",
    "Check",
    "Finding",
    "Verdict",
    "counted",
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
    now = counted(readings)
    load = counted(under_load) if under_load else (now if now.under_load else None)
    sight = Sight(now, counted(before) if before else None, load, policy)
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
            remedy=found[0].remedy,
        )
        for code, found in grouped.items()
    )


def needs_reset(findings: Iterable[Finding]) -> bool:
    """Whether a failed check says that only a reset (not a wipe) makes the device usable again."""
    return any(finding.action is Action.RESET for finding in findings)


def counted(readings: Readings) -> Readings:
    """The readings with errors of the bus that only the kernel log has counted.

    Where firmware takes the errors first the kernel keeps no totals, or keeps them at zero: a
    record that names the slot counts (F20). Nothing counted anywhere stays unknown.
    """
    logged = kernel_log.counted(
        (one.kind, one.severity) for one in readings.logged or () if one.kind in kernel_log.BUS
    )
    found: dict[str, int] = {}
    for severity, count in logged.items():
        name = f"aer_{severity}"
        total = getattr(readings, name)
        if count and (total is None or total < count):
            found[name] = count
    if not found:
        return readings
    absent = readings.not_applicable - found.keys()
    return replace(readings, not_applicable=absent, **found)  # type: ignore[arg-type]


def _finding(check: Check, sight: Sight) -> Finding:
    found = outcome(check, sight)
    unknown = found.verdict is Verdict.UNKNOWN
    why = sight.now.why.get(check.reading, "") if unknown else ""
    blocked = unknown and check.mandatory
    failed = found.verdict is Verdict.FAIL
    reason = (found.reason or check.reason) if failed else ""
    if blocked and sight.policy.unknown_blocks:
        reason = "health-unknown"
    action = check.action if found.action is None else found.action
    return Finding(
        check=check.name,
        verdict=found.verdict,
        mandatory=check.mandatory,
        reason=reason,
        detail=f"{found.detail} ({why})" if why else found.detail,
        remedy=_remedy(check, found, blocked=blocked),
        action=action if failed else Action.NONE,
    )


def _remedy(check: Check, found: Outcome, *, blocked: bool) -> str:
    """What to do, only where something is wrong (F47): a healthy device has nothing to remedy."""
    if found.verdict in (Verdict.FAIL, Verdict.WARN):
        return found.remedy or check.remedy
    return reasons.entry("health-unknown").remedy if blocked else ""


_OWN_FIELDS = frozenset({"name", "rule", "reading", "mandatory", "reason", "remedy", "source"})


def _check(row: Mapping[str, Any]) -> Check:
    own = {name: row[name] for name in _OWN_FIELDS}
    rules = {name: value for name, value in row.items() if name not in {*_OWN_FIELDS, "action"}}
    return Check(**own, action=Action(row.get("action", "")), rules=rules)


CHECKS: tuple[Check, ...] = tuple(_check(row) for row in tables.rows("checks", "check"))
