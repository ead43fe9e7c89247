"""Leases of claims that are gone."""

from __future__ import annotations

from fleet.binding.leasing import ClaimLeases
from fleet.binding.orphans import OrphanLeases
from fleet.leases import AcquireRequest
from fleet.messages import ClaimBrief
from fleet.model import Holder, HolderKind, Lease, UnitId
from tests.fleet.binding.benches import Bench


def lease_of(bench: Bench, uid: str) -> Lease:
    """A lease of device a for a claim."""
    units = frozenset(UnitId(unit) for unit in bench.device("a").units)
    request = AcquireRequest(units, Holder(HolderKind.CLAIM, uid))
    (lease,) = bench.coordinator.acquire([request])
    assert isinstance(lease, Lease)
    return lease


def orphans(bench: Bench) -> OrphanLeases:
    """The follower over the bench."""
    leases = ClaimLeases(bench.coordinator, bench.nodes)
    bench.survey()
    return OrphanLeases(bench.claims, leases, bench.binder.look)


def test_a_lease_whose_claim_is_gone_is_given_back() -> None:
    """A7: after two looks at a complete cache, and with the node's token closed first."""
    bench = Bench()
    lease = lease_of(bench, "gone")
    uid = bench.create()
    bench.claims.refresh()
    other = Holder(HolderKind.CLAIM, uid)
    units = frozenset(UnitId(unit) for unit in bench.device("b").units)
    bench.coordinator.acquire([AcquireRequest(units, other)])
    chore = orphans(bench)
    chore.step({}, bench.clock.now())
    assert len(bench.store.leases()) == 2
    chore.step({}, bench.clock.now())
    assert [one.holder for one in bench.store.leases()] == [other]
    assert (bench.device("a").floor, bench.device("a").closed) == (str(lease.token), True)


def test_a_lease_whose_node_has_a_record_stays() -> None:
    """D5: a claim deleted under its tenant is torn down by its node, not by the store."""
    bench = Bench()
    lease = lease_of(bench, "gone")
    bench.nodes.by_name["n1"].claims["gone"] = ClaimBrief(uid="gone", state="PREPARED")
    bench.claims.refresh()
    chore = orphans(bench)
    for _ in range(3):
        chore.step({}, bench.clock.now())
    assert bench.store.leases() == [lease]


def test_an_incomplete_cache_makes_no_orphans() -> None:
    """A coordinator that has just begun takes nothing for gone."""
    bench = Bench()
    lease_of(bench, "gone")
    chore = orphans(bench)
    for _ in range(3):
        chore.step({}, bench.clock.now())
    assert len(bench.store.leases()) == 1
