"""Publisher leases in the fleet's store."""

from __future__ import annotations

import pytest

from fleet.clock import ManualClock
from fleet.slices.leasing import TTL_S, StoreLease
from fleet.stores.memory import MemoryLeaseStore


@pytest.fixture
def clock() -> ManualClock:
    """The store's clock."""
    return ManualClock(1_000.0)


@pytest.fixture
def store(clock: ManualClock) -> MemoryLeaseStore:
    """An initialised store."""
    made = MemoryLeaseStore(clock)
    made.init()
    return made


def test_one_publisher_holds_a_device_and_the_other_learns_who(
    store: MemoryLeaseStore, clock: ManualClock
) -> None:
    """B4: two publishers of one fleet never hold the same device."""
    first, second = StoreLease(store, "node-a"), StoreLease(store, "node-b")
    assert first.hold(["GPU-1", "GPU-2"], now=clock.now()) == {}
    refused = second.hold(["GPU-1", "GPU-3"], now=clock.now())
    assert refused.keys() == {"GPU-1"}
    assert "node-a" in refused["GPU-1"]


def test_renewals_keep_the_lease_and_silence_ends_it(
    store: MemoryLeaseStore, clock: ManualClock
) -> None:
    """A publisher that does not come back loses its devices to the next one."""
    first, second = StoreLease(store, "node-a"), StoreLease(store, "node-b")
    for _ in range(4):
        first.hold(["GPU-1"], now=clock.now())
        clock.advance(TTL_S / 2)
    assert second.hold(["GPU-1"], now=clock.now()).keys() == {"GPU-1"}
    clock.advance(TTL_S)
    assert second.hold(["GPU-1"], now=clock.now()) == {}
    assert first.hold(["GPU-1"], now=clock.now()).keys() == {"GPU-1"}


def test_a_restart_under_the_same_name_goes_on(store: MemoryLeaseStore, clock: ManualClock) -> None:
    """A restart of the plugin does not lose its devices to its own earlier self."""
    StoreLease(store, "node-a").hold(["GPU-1"], now=clock.now())
    assert StoreLease(store, "node-a").hold(["GPU-1"], now=clock.now()) == {}
