"""Publisher leases in the fleet's store."""

from __future__ import annotations

import pytest

from fleet.core.clock import ManualClock
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind, Lease, UnitId
from fleet.plugin.slices.publisher_lease import SHARED_TTL_S, TTL_S, StoreLease
from tests.lab.stores import MemoryLeaseStore


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


def test_a_device_held_by_another_keeps_its_neighbours_from_nothing(
    store: MemoryLeaseStore, clock: ManualClock
) -> None:
    """Promise 9: each device is judged alone, and what was refused is asked for every time."""
    first, second = StoreLease(store, "node-a"), StoreLease(store, "node-b")
    first.hold(["GPU-1"], now=clock.now())
    for _ in range(3):
        assert second.hold(["GPU-0", "GPU-1", "GPU-2"], now=clock.now()).keys() == {"GPU-1"}
        clock.advance(TTL_S / 4)
        first.hold(["GPU-1"], now=clock.now())
    assert {str(lease.holder) for lease in store.leases()} == {
        "publisher:node-a",
        "publisher:node-b",
    }
    assert len(store.leases()) == 3


def test_a_device_not_named_any_more_is_let_go_by_time(
    store: MemoryLeaseStore, clock: ManualClock
) -> None:
    """A card moved to another node is published there once its lease here has run out."""
    first, second = StoreLease(store, "node-a"), StoreLease(store, "node-b")
    first.hold(["GPU-1", "GPU-2"], now=clock.now())
    first.hold(["GPU-1"], now=clock.now())
    assert second.hold(["GPU-2"], now=clock.now()).keys() == {"GPU-2"}
    clock.advance(TTL_S / 2)
    first.hold(["GPU-1"], now=clock.now())
    clock.advance(TTL_S / 2)
    assert second.hold(["GPU-1", "GPU-2"], now=clock.now()).keys() == {"GPU-1"}


def test_a_publishers_units_never_meet_a_claims(
    store: MemoryLeaseStore, clock: ManualClock
) -> None:
    """Hardware offered and memory held are two things: neither refuses the other."""
    publisher = StoreLease(store, "node-a")
    claim = AcquireRequest(frozenset({UnitId("GPU-1")}), Holder(HolderKind.CLAIM, "claim-a"))
    (lease,) = store.acquire([claim])
    assert isinstance(lease, Lease)
    assert publisher.hold(["GPU-1"], now=clock.now()) == {}


def test_a_renewal_lost_in_time_is_acquired_anew(
    store: MemoryLeaseStore, clock: ManualClock
) -> None:
    """A publisher that stood still for longer than its lease goes on if nobody came meanwhile."""
    publisher = StoreLease(store, "node-a")
    publisher.hold(["GPU-1"], now=clock.now())
    (before,) = store.leases()
    clock.advance(TTL_S + 1)
    assert publisher.hold(["GPU-1"], now=clock.now()) == {}
    (after,) = store.leases()
    assert after.token > before.token


def test_a_lease_of_a_shared_store_is_renewed_by_half(
    store: MemoryLeaseStore, clock: ManualClock
) -> None:
    """B4: in a cluster all nodes write to one store; a lease is written once in minutes."""
    publisher = StoreLease(store, "node-a", SHARED_TTL_S)
    publisher.hold(["GPU-1"], now=clock.now())
    ends = [_ends(store)]
    for _ in range(3):
        clock.advance(SHARED_TTL_S / 4)
        publisher.hold(["GPU-1"], now=clock.now())
        ends.append(_ends(store))
    assert ends[0] == ends[1] == ends[2] < ends[3]


def _ends(store: MemoryLeaseStore) -> float:
    (lease,) = store.leases()
    assert lease.expires_at is not None
    return lease.expires_at
