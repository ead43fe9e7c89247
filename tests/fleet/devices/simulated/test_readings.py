"""Simulated readings, judged by the checks that judge real ones."""

from __future__ import annotations

import pytest

from fleet.core.settings import HealthPolicy
from fleet.devices.health import checks
from fleet.devices.simulated import faults
from fleet.devices.simulated.readings import after_reset, count, readings
from fleet.devices.simulated.registers import Register

POLICY = HealthPolicy()


def judged(register: Register) -> set[str]:
    """Reason codes the checks give."""
    before = readings(Register(), at=0.0, under_load=False)
    found = checks.judge(
        readings(register, at=1.0, under_load=False),
        POLICY,
        before=before,
        under_load=readings(register, at=1.0, under_load=True),
    )
    return {finding.reason for finding in found if finding.reason}


def test_a_healthy_device_passes_every_check() -> None:
    """The same code that judges real hardware finds nothing, idle link speed included."""
    assert judged(Register()) == set()


@pytest.mark.parametrize(
    "name", ["remap-pending", "remap-failed", "link-degraded", "thermal-slowdown", "reset-required"]
)
def test_a_fault_gives_the_reason_of_its_name(name: str) -> None:
    """B1, D4: what is set in the registers comes out as the reason the fault is called after."""
    fault = faults.make(name, units=["u/all"], parameters={}, times=None, seed=0)
    register = Register(faults={name: fault})
    assert name in judged(register)


def test_an_uncorrectable_error_is_seen() -> None:
    """A counter that rose during a wipe takes the device out of service."""
    register = Register()
    count(register, "ecc_uncorrected_volatile")
    assert judged(register)


def test_a_reset_clears_what_a_reset_clears() -> None:
    """Volatile counters, pending states and a lost device; never a failed remap."""
    register = Register(lost=True)
    count(register, "ecc_uncorrected_volatile", 3)
    count(register, "ecc_uncorrected_aggregate", 3)
    for name in ("remap-pending", "remap-failed", "reset-required"):
        register.faults[name] = faults.make(name, units=["u"], parameters={}, times=None, seed=0)
    after_reset(register)
    found = readings(register, at=0.0, under_load=False)
    assert (found.ecc_uncorrected_volatile, found.ecc_uncorrected_aggregate) == (0, 3)
    assert set(register.faults) == {"remap-failed"}
    assert not register.lost
