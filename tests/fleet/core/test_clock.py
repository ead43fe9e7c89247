"""Clocks: the real one and the one that waits for orders."""

from __future__ import annotations

import pytest

from fleet.core.clock import ManualClock, SteadyClock, SystemClock
from tests.contracts.lease_store_contract import OwnClock


def test_the_system_clock_tells_time() -> None:
    """DESIGN 8: the wall clock is in seconds since the epoch, the monotonic one never goes back."""
    clock = SystemClock()
    first, second = clock.monotonic(), clock.monotonic()
    assert first <= second
    assert 1_600_000_000 < clock.now() < 10_000_000_000


def test_a_manual_clock_moves_when_told() -> None:
    """DESIGN 8: time is passed in, so that nothing has to be waited for."""
    clock = ManualClock(100.0)
    clock.advance(2.5)
    assert (clock.now(), clock.monotonic()) == (102.5, 2.5)


def test_a_manual_clock_never_goes_back() -> None:
    """DESIGN 8: a test cannot make time run backwards by mistake."""
    with pytest.raises(ValueError, match="back"):
        ManualClock(0.0).advance(-1)


def test_b49_a_steady_clock_is_not_set() -> None:
    """B49: what a campaign renews its leases by goes on, whoever sets the machine's clock."""
    machine = OwnClock(booted_s=500.0)
    clock = SteadyClock(machine)
    assert clock.now() == machine.now()
    for step_s in (3_600.0, -7_200.0):
        before = clock.now()
        machine.skew_s += step_s
        machine.passed_s += 1.0
        assert clock.now() == before + 1.0
        assert clock.monotonic() == machine.monotonic()
