"""Quarantine leases follow the nodes' views."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fleet.control.binding.quarantines import VIEW_AGE_MAX_S, QuarantineLeases
from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.leases import AcquireRequest
from fleet.core.messages import DeviceView, NodeView
from fleet.core.model import Holder, HolderKind, Lease, State, UnitId
from fleet.stores.base import Release
from tests.lab.stores import MemoryLeaseStore

NOW = 1_700_000_000.0
PARTS = ("g/0", "g/1", "g/2")


class Store:
    """The store, asked as the coordinator asks it."""

    def __init__(self) -> None:
        self.store = MemoryLeaseStore(ManualClock(NOW))
        self.store.init()
        self.batches: list[int] = []

    def acquire(self, requests: Sequence[AcquireRequest]) -> list[Lease | errors.FleetError]:
        """One batch."""
        self.batches.append(len(requests))
        return self.store.acquire(requests)

    def release_all(self, releases: Sequence[Release]) -> list[bool | errors.FleetError]:
        """One batch."""
        return self.store.release(releases)

    def leases(self) -> list[Lease]:
        """All."""
        return self.store.leases()


@pytest.fixture
def store() -> Store:
    """An empty store."""
    return Store()


def device(uuid: str, *units: str, state: State = State.CLEAN, claim: str = "") -> DeviceView:
    """A device of accelerator ``g``."""
    return DeviceView(
        uuid=uuid, name=uuid, accelerator="g", units=units or (f"{uuid}/all",), memory_bytes=1,
        state=state, claim=claim, floor="1.1",
    )  # fmt: skip


def node(*devices: DeviceView, at: float = NOW) -> dict[str, NodeView | errors.FleetError | None]:
    """The views of a fleet of one node."""
    view = NodeView(
        node="n1", incarnation="i", boot_id="b", at=at, simulated=True, backend="simulated",
        devices=devices,
    )  # fmt: skip
    return {"n1": view}


def held(store: Store) -> dict[str, set[str]]:
    """Units by quarantine holder."""
    return {
        lease.holder.name: set(lease.units)
        for lease in store.leases()
        if lease.holder.kind is HolderKind.QUARANTINE
    }


def test_what_is_out_of_service_is_leased_and_given_back(store: Store) -> None:
    """D4: a quarantine holder, keyed by the device, for as long as the node says so."""
    keeper = QuarantineLeases(store)
    bad = device("a", state=State.QUARANTINED)
    balance = keeper.step(node(bad, device("b")), NOW)
    assert [lease.holder for lease in balance.acquired] == [Holder(HolderKind.QUARANTINE, "a")]
    assert held(store) == {"a": {"a/all"}}
    assert keeper.step(node(bad, device("b")), NOW) == type(balance)()
    keeper.step(node(device("a", state=State.RETESTING)), NOW)
    assert held(store) == {"a": {"a/all"}}
    assert len(keeper.step(node(device("a", state=State.DIRTY)), NOW).released) == 1
    assert held(store) == {}
    assert store.batches == [1]


def test_a_whole_fleet_is_one_batch(store: Store) -> None:
    """Group commit: a hundred quarantines cost one transaction."""
    bad = [device(f"d{n}", state=State.QUARANTINED) for n in range(100)]
    assert len(QuarantineLeases(store).step(node(*bad), NOW).acquired) == 100
    assert store.batches == [100]


def test_a_claim_keeps_its_own_lease(store: Store) -> None:
    """A device whose claim is not torn down yet is its claim's, and is asked for later."""
    keeper = QuarantineLeases(store)
    keeper.step(node(device("a", state=State.QUARANTINED, claim="c1")), NOW)
    assert store.leases() == []
    claim = AcquireRequest(frozenset({UnitId("a/all")}), Holder(HolderKind.CLAIM, "c1"))
    store.acquire([claim])
    (waiting,) = keeper.step(node(device("a", state=State.QUARANTINED)), NOW).waiting.values()
    assert isinstance(waiting, errors.LeaseHeld)
    assert held(store) == {}


@pytest.mark.parametrize("silence", ["missing", "error", "none"])
def test_a_silent_node_keeps_its_leases(store: Store, silence: str) -> None:
    """Nothing is concluded from a node that says nothing."""
    keeper = QuarantineLeases(store)
    keeper.step(node(device("a", state=State.QUARANTINED)), NOW)
    views: dict[str, dict[str, NodeView | errors.FleetError | None]] = {
        "missing": {},
        "error": {"n1": errors.NotOwner("x")},
        "none": {"n1": None},
    }
    keeper.step(views[silence], NOW)
    assert held(store) == {"a": {"a/all"}}


@pytest.mark.parametrize("apart_s", [VIEW_AGE_MAX_S + 1.0, -VIEW_AGE_MAX_S - 1.0])
def test_clocks_apart_cost_no_lease_and_are_told(store: Store, apart_s: float) -> None:
    """Promise 6: what is out of service is leased; given back is nothing by an old word."""
    keeper, at = QuarantineLeases(store), NOW + apart_s
    with pytest.raises(errors.SettingsInvalid, match=r"n1 \([+-]61 s\)"):
        keeper.step(node(device("a", state=State.QUARANTINED), device("b"), at=at), NOW)
    assert held(store) == {"a": {"a/all"}}
    with pytest.raises(errors.SettingsInvalid, match="not given back"):
        keeper.step(node(device("a"), at=at), NOW)
    assert held(store) == {"a": {"a/all"}}
    keeper.step(node(device("a")), NOW)
    assert held(store) == {}


def test_a_lost_journal_does_not_lose_the_lease(store: Store) -> None:
    """DESIGN 4: HELD tells nothing; the new journal still has to read the lease."""
    keeper = QuarantineLeases(store)
    keeper.step(node(device("a", state=State.QUARANTINED)), NOW)
    keeper.step(node(device("a", state=State.HELD)), NOW)
    assert held(store) == {"a": {"a/all"}}


def partitioned(*states: State) -> list[DeviceView]:
    """Accelerator ``g`` of three partitions; as a whole it shows the least clean."""
    parts = [device(f"p{n}", PARTS[n], state=state) for n, state in enumerate(states)]
    worst = State.QUARANTINED if State.QUARANTINED in states else State.CLEAN
    return [device("g", *PARTS, state=worst), *parts]


def test_a_partition_takes_no_neighbour_along(store: Store) -> None:
    """B70: the whole shows QUARANTINED for one partition: only that one's unit is leased."""
    keeper = QuarantineLeases(store)
    keeper.step(node(*partitioned(State.QUARANTINED, State.CLEAN, State.CLEAN)), NOW)
    assert held(store) == {"p0": {"g/0"}}
    keeper.step(node(*partitioned(*[State.QUARANTINED] * 3)), NOW)
    assert held(store) == {"p0": {"g/0"}, "p1": {"g/1"}, "p2": {"g/2"}}


def test_an_accelerator_out_of_service_is_one_lease(store: Store) -> None:
    """B50: counted once; a partition that is back leaves the others leased."""
    keeper = QuarantineLeases(store)
    keeper.step(node(*partitioned(*[State.QUARANTINED] * 3)), NOW)
    assert held(store) == {"g": set(PARTS)}
    keeper.step(node(*partitioned(State.CLEAN, State.QUARANTINED, State.QUARANTINED)), NOW)
    assert held(store) == {"p1": {"g/1"}, "p2": {"g/2"}}


def test_units_that_no_partition_covers_are_leased_too(store: Store) -> None:
    """Whatever the layout, no unit out of service is left without a holder."""
    whole = device("g", *PARTS, state=State.QUARANTINED)
    keeper = QuarantineLeases(store)
    keeper.step(node(whole, device("p0", PARTS[0], state=State.CLEAN)), NOW)
    assert held(store) == {"g": {"g/1", "g/2"}}


def test_a_campaign_may_test_what_is_leased_to_a_quarantine(store: Store) -> None:
    """Promise 6: a fresh full pass ends a quarantine, so its lease gives way to a campaign."""
    keeper = QuarantineLeases(store)
    views = node(device("a", state=State.QUARANTINED))
    keeper.step(views, NOW)
    campaign = Holder(HolderKind.CAMPAIGN, "r1")
    (lease,) = store.acquire([AcquireRequest(frozenset({UnitId("a/all")}), campaign, ttl_s=9.0)])
    assert isinstance(lease, Lease)
    assert len(keeper.step(views, NOW).waiting) == 1
    store.release_all([Release(campaign, lease.token)])
    keeper.step(views, NOW)
    assert held(store) == {"a": {"a/all"}}


def test_a_card_that_came_from_another_node_is_out_of_service_until_its_node_knows(
    store: Store,
) -> None:
    """Promise 6: the lease is what tells the new node, which has not read it while it has no floor;
    seen dirty before that, it is no end of the quarantine.
    """
    keeper = QuarantineLeases(store)
    keeper.step(node(device("a", state=State.QUARANTINED)), NOW)
    moved = device("a", state=State.DIRTY)
    keeper.step(node(moved.model_copy(update={"floor": "0.0"})), NOW)
    assert held(store) == {"a": {"a/all"}}
    keeper.step(node(moved), NOW)
    assert held(store) == {}


def test_no_lease_is_taken_for_a_card_whose_node_has_not_asked_the_store(store: Store) -> None:
    """Promise 9: the node would take our own lease for another node's word, which nothing lifts."""
    keeper = QuarantineLeases(store)
    bad = device("a", state=State.QUARANTINED)
    keeper.step(node(bad.model_copy(update={"floor": "0.0"})), NOW)
    assert held(store) == {}
    keeper.step(node(bad), NOW)
    assert held(store) == {"a": {"a/all"}}
