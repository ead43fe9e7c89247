"""Readings within bounds, verdicts before and after a reset, reasons of a failed wipe."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from fleet.core import errors
from fleet.core.model import Uuid
from fleet.core.settings import ResetPolicy
from fleet.devices.base import ResetOutcome, ResetScrub
from fleet.devices.health.readings import Readings
from fleet.devices.simulated import faults
from fleet.devices.simulated.backend import SimulatedBackend
from fleet.devices.wipe.result import Failure, Kind, WipeResult
from fleet.node.registry import Registry
from fleet.node.validation import Validator
from tests.fleet.node.conftest import Lab
from tests.fleet.node.parting import parting


def validator(lab: Lab) -> Validator:
    return lab.node._parts.sweep.validator


def wiped(lab: Lab, **changes: object) -> WipeResult:
    """A verified wipe's result as far as the verdict reads it."""
    accelerator = Uuid(lab.device().uuid)
    now = lab.backend.readings(accelerator)
    fields = {"before": now, "after": now, "under_load": _loaded(now), **changes}
    return WipeResult(accelerator, (), 0.0, 1.0, **fields)  # type: ignore[arg-type] # a test's own fields


def _loaded(now: Readings) -> Readings:
    return Readings.from_json({**now.as_json(), "under_load": True, "pcie_gen": 5})


def test_a_reading_that_hangs_is_given_up_in_time(lab: Lab) -> None:
    """B29: a driver that does not answer costs the reading's time-out, once."""
    lab.fault("reading-hang", seconds="20")
    device = Uuid(lab.device().uuid)
    started = time.monotonic()
    with pytest.raises(errors.BackendFailed, match="no answer"):
        validator(lab).readings(device)
    with pytest.raises(errors.BackendFailed, match="earlier call"):
        validator(lab).readings(device)
    assert time.monotonic() - started < 5.0
    lab.backend.clear_fault(device, "reading-hang")


def test_processes_of_a_partition_are_its_own(lab: Lab) -> None:
    """Promise 9: a neighbour's tenant is no holder of this partition."""
    registry = lab.node._registry
    with lab.tenant("gpu-1-1g-0") as pid:
        mine, neighbour = registry.device("gpu-1-1g-0"), registry.device("gpu-1-1g-1")
        assert [p.pid for p in validator(lab).foreign(mine)] == [pid]
        assert validator(lab).foreign(neighbour) == []
        assert [p.pid for p in validator(lab).foreign(registry.device("gpu-1"))] == [pid]


@pytest.mark.parametrize(
    ("fault", "policy", "performed", "healthy"),
    [
        ("", ResetPolicy.ON_FAULT, False, True),
        ("", ResetPolicy.ALWAYS, True, True),
        ("reset-required", ResetPolicy.ON_FAULT, True, True),
        ("reset-required", ResetPolicy.NEVER, False, False),
        ("remap-failed", ResetPolicy.ALWAYS, True, False),
    ],
)
def test_the_reset_follows_policy_and_the_verdict_the_device(
    lab: Lab, fault: str, policy: ResetPolicy, performed: bool, healthy: bool
) -> None:
    """B3: reset by policy; the verdict says why or why not; a fault that stays fails."""
    if fault:
        lab.fault(fault)
    chosen = lab.settings.wipe.model_copy(update={"reset": policy})
    device = lab.node._registry.device("gpu-0")
    verdict = validator(lab).judge(device, wiped(lab), chosen)
    assert (verdict.reset.performed, verdict.healthy) == (performed, healthy)
    assert verdict.reset.reason
    assert bool(verdict.reasons) == (not healthy)


@dataclass
class StuckReset:
    """A back end whose reset is never answered; everything else is the real one's."""

    real: SimulatedBackend

    def reset(self, accelerator: Uuid) -> ResetOutcome:
        raise errors.BackendFailed(f"reset of {accelerator}: no answer in 120 s")

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)


@dataclass
class StuckRegistry:
    """The node's registry over that back end."""

    backend: StuckReset
    real: Registry

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)


@pytest.mark.parametrize("fault", ["", "remap-failed"])
def test_a_reset_that_only_a_claim_demands_is_no_fault_of_the_device(lab: Lab, fault: str) -> None:
    """T2: a demanded reset that fails is the claim's trouble; the readings judge the device."""
    if fault:
        lab.fault(fault)
    registry = StuckRegistry(StuckReset(lab.backend), lab.node._registry)
    known = validator(lab)
    stuck = Validator(registry, known._calls, known.policy)  # type: ignore[arg-type]
    device, own = lab.node._registry.device("gpu-0"), lab.settings.wipe
    own = own.model_copy(update={"reset": ResetPolicy.NEVER})
    demand = own.model_copy(update={"reset": ResetPolicy.ALWAYS})
    verdict = stuck.judge(device, wiped(lab), own, demand=demand)
    assert verdict.healthy is not bool(fault)
    assert "no answer in 120 s" in verdict.unmet
    assert not verdict.reset.performed
    with pytest.raises(errors.BackendFailed):
        stuck.judge(device, wiped(lab), demand)


def test_a_partition_is_never_reset(lab: Lab) -> None:
    """Promise 9: a reset would hit the neighbours."""
    chosen = lab.settings.wipe.model_copy(update={"reset": ResetPolicy.ALWAYS})
    device = lab.node._registry.device("gpu-1-1g-0")
    verdict = validator(lab).judge(device, wiped(lab), chosen)
    assert not verdict.reset.performed
    assert "neighbours" in verdict.reset.reason


def test_a_fault_during_the_wipe_stands_though_a_reset_zeroed_its_counter(lab: Lab) -> None:
    """Counters are compared before any reset, because a reset zeroes them."""
    before = lab.backend.readings(Uuid(lab.device().uuid))
    made = faults.make("reset-required", units=[], parameters={}, times=0, seed=1)
    made.readings = {"xids": [79]}
    lab.backend.set_fault(Uuid(lab.device().uuid), made)
    chosen = lab.settings.wipe.model_copy(update={"reset": ResetPolicy.ALWAYS})
    device = lab.node._registry.device("gpu-0")
    verdict = validator(lab).judge(device, wiped(lab, before=before), chosen)
    assert verdict.reset.performed
    assert not verdict.healthy
    assert {reason.code for reason in verdict.reasons} == {"device-lost"}


def test_a_failed_wipe_gives_its_own_reason_and_what_the_readings_show(lab: Lab) -> None:
    """D4: an operator sees the failure and its likely cause side by side."""
    lab.fault("remap-failed")
    result = wiped(lab, failure=Failure.MISMATCH, detail="8 B at 0")
    device = lab.node._registry.device("gpu-0")
    found = validator(lab).reasons_for(device, result, since=5.0)
    assert {(r.code, r.detail) for r in found} >= {("memory-mismatch", "8 B at 0")}
    assert "remap-failed" in {r.code for r in found}


def test_an_instance_that_is_not_ours_counts_as_a_process(lab: Lab) -> None:
    """Promise 4: every guard that asks for processes learns of it; the neighbour is free."""
    backend = parting(lab)
    registry = lab.node._registry
    part, beside = registry.device("gpu-1-1g-0"), registry.device("gpu-1-1g-1")
    validator(lab).partitions.ensure(beside)
    backend.foreign(part.accelerator, part.units)
    assert [process.pid for process in validator(lab).foreign(part)] == [0]
    assert len(validator(lab).foreign(registry.device("gpu-1"))) == 1
    assert validator(lab).foreign(beside) == []


def test_a_wipe_that_is_a_reset_is_not_reset_again(lab: Lab) -> None:
    """Issue 5: the reset of the wipe is the one the certificate names, whatever the policy."""
    scrub = ResetScrub(performed=True, method="flr", vendor_scrub="none")
    wipe = wiped(lab, kind=Kind.RESET, scrub=scrub)
    device = lab.node._registry.device("gpu-0")
    policy = lab.settings.wipe.model_copy(update={"reset": ResetPolicy.ALWAYS})
    verdict = validator(lab).judge(device, wipe, policy)
    assert (verdict.reset.performed, verdict.reset.method) == (True, "flr")
    assert verdict.reset.reason == "the device cannot be wiped in any other way"
