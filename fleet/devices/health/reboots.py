"""Which quarantine reasons only a reboot of the node ends. Pure.

The tables say so: a check, a fault code or the driver's own verdict whose action is ``reboot``. A
reason keeps the remedy of what gave it, and by that it is known again; the code alone does not
tell, since one code (`xid`) stands for many faults.
"""

from __future__ import annotations

from fleet.core.messages import ReasonView
from fleet.devices.health import checks, reasons, xids


def _remedies() -> frozenset[str]:
    found = {row["remedy"] for row in checks.RECOVERY.values() if row.get("action") == "reboot"}
    found |= {check.remedy for check in checks.CHECKS if check.action is checks.Action.REBOOT}
    found.add(checks.remedy_of(xids.Severity.REBOOT))
    found.add(reasons.entry("reset-failed").remedy)
    return frozenset(found)


REMEDIES = _remedies()
"""Others may mention a reboot as a last resort; these ask for one."""


def needs_reboot(reason: ReasonView) -> bool:
    """Whether nothing less than a reboot brings the device back."""
    return reason.source == "health" and reason.remedy in REMEDIES
