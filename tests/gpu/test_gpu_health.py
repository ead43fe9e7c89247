"""GPU check: every check of the health gate has an answer on this machine, and it is a good one."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.core.model import Accelerator
from fleet.core.settings import HealthPolicy
from fleet.devices.health import checks
from fleet.devices.health.checks import Finding, Verdict
from fleet.devices.health.readings import Readings
from tests.gpu.place import Machine
from tests.gpu.report import REPORT

KERNEL_LOG = "xid"
"""The check whose only source is the kernel log."""


def told(found: Sequence[Finding], verdict: Verdict) -> list[str]:
    """Findings of one verdict, in words."""
    return [f"{one.check}: {one.detail}" for one in found if one.verdict is verdict]


def judged(machine: Machine, gpu: Accelerator) -> tuple[Readings, Sequence[Finding]]:
    """Readings at rest and what the gate says of them, recorded."""
    found = machine.backend.readings(gpu.uuid)
    findings = checks.judge(found, HealthPolicy())
    REPORT.add(
        gpu.uuid,
        "health",
        {
            "readings": found.as_json(),
            "failed": told(findings, Verdict.FAIL),
            "warned": told(findings, Verdict.WARN),
            "unknown": told(findings, Verdict.UNKNOWN),
        },
    )
    return found, findings


def test_no_mandatory_check_is_unknown(machine: Machine, gpu: Accelerator) -> None:
    """gpus-8.19: an unknown answer to a mandatory check blocks, so none may be unknown here. Only
    fault codes are let pass where a container does not show the kernel log, with a note."""
    _, findings = judged(machine, gpu)
    unknown = [
        f"{one.check}: {one.detail}"
        for one in findings
        if one.verdict is Verdict.UNKNOWN
        and one.mandatory
        and not (one.check == KERNEL_LOG and machine.kernel_log)
    ]
    assert unknown == []


def test_nothing_is_wrong_with_it(machine: Machine, gpu: Accelerator) -> None:
    """Issue 5: the gate finds no fault, or this machine is not fit for the check."""
    found, findings = judged(machine, gpu)
    assert told(findings, Verdict.FAIL) == []
    assert found.present is True
