"""Leases of claims that are gone."""

from __future__ import annotations

from fleet.control.binding import pledge
from fleet.control.binding.claim_leases import ClaimLeases
from fleet.control.binding.orphans import PAUSE_MAX, OrphanLeases
from fleet.core.leases import AcquireRequest
from fleet.core.messages import ClaimBrief
from fleet.core.model import Holder, HolderKind, Lease, UnitId
from fleet.kube.base import CLAIMS, Name, PatchKind
from tests.fleet.control.binding.benches import MARKS, SPACE, Bench, shared


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


def test_a_lease_of_a_claim_that_nobody_looks_at_is_noticed() -> None:
    """B5, B42: `fleet claim bind` was killed after it had the lease, and before the claim showed
    it: the lease is given back once its pledge is over.
    """
    bench = Bench()
    uid = bench.create()
    bench.run(1.0)
    lease = lease_of(bench, uid)
    chore = orphans(bench)
    bench.run(10.0, wait_s=1.0)
    assert bench.store.leases() == [lease]
    chore.step({}, bench.clock.now())
    bench.run(1.0)
    assert bench.store.leases() == []
    assert bench.device("a").closed


def test_a_quarantine_is_visible_before_an_orphan_goes() -> None:
    """Promise 6: the lease of a device that failed stays until the slice says so, claim or not."""
    bench = Bench()
    lease = lease_of(bench, "gone")
    bench.change("a", state="QUARANTINED")
    bench.claims.refresh()
    chore = orphans(bench)
    for _ in range(3):
        chore.step({}, bench.clock.now())
    assert bench.store.leases() == [lease]
    bench.publish("n1")
    chore.step({}, bench.clock.now())
    assert bench.store.leases() == []


def test_an_orphan_that_is_refused_is_asked_about_ever_more_slowly() -> None:
    """A wipe that does not stop holds up no survey for ever, and no other orphan at all."""
    bench = Bench()
    bench.nodes.by_name["n1"].claims["gone"] = ClaimBrief(uid="gone", state="PREPARED")
    lease_of(bench, "gone")
    bench.claims.refresh()
    chore = orphans(bench)
    for _ in range(64):
        chore.step({}, bench.clock.now())
    assert 6 <= len(bench.nodes.abandoned) <= 9
    del bench.nodes.by_name["n1"].claims["gone"]
    for _ in range(PAUSE_MAX):
        chore.step({}, bench.clock.now())
    assert bench.store.leases() == []


def test_a_watch_that_was_cut_off_makes_no_orphans() -> None:
    """B42: a coordinator that hears nothing any more takes no lease from a claim it never saw."""
    bench = Bench()
    bench.claims.refresh()
    uid = bench.given("c", "a")
    lease = lease_of(bench, uid)
    chore = orphans(bench)
    for _ in range(4):
        chore.step({}, bench.clock.now())
    assert bench.store.leases() == [lease]
    assert bench.nodes.abandoned == []
    assert bench.claims.get(uid) is not None


def test_the_server_is_only_asked_when_it_matters() -> None:
    """No list is made for leases that nobody can be asked to close; and none without suspects."""
    bench = Bench()
    lease_of(bench, "gone")
    bench.claims.refresh()
    chore = orphans(bench)
    bench.nodes.silent.add("n1")
    bench.survey()
    before = len(bench.cluster.calls)
    for _ in range(4):
        chore.step({}, bench.clock.now())
    assert len(bench.cluster.calls) == before
    bench.nodes.silent.clear()
    bench.survey()
    for _ in range(PAUSE_MAX):
        chore.step({}, bench.clock.now())
    assert bench.store.leases() == []
    assert len(bench.cluster.calls) == before + 1


def test_leases_on_nodes_of_another_coordinator_are_left_alone() -> None:
    """B4: also where our calls would reach the node; claims with leases there are not noticed."""
    bench = Bench()
    shared(bench, "n2")
    gone = lease_of(bench, "gone")
    uid = bench.create()
    units = frozenset(UnitId(unit) for unit in bench.device("b").units)
    bench.coordinator.acquire([AcquireRequest(units, Holder(HolderKind.CLAIM, uid))])
    bench.claims.refresh()
    chore = orphans(bench)
    for _ in range(4):
        chore.step({}, bench.clock.now())
    assert gone in bench.store.leases()
    assert len(bench.store.leases()) == 2
    assert bench.binder.look.take_noticed() == set()
    assert bench.nodes.abandoned == []


def test_of_a_claim_that_is_nobodys_the_lease_goes_unless_it_is_pledged() -> None:
    """D3, B5, until-verified: a claim that lost its device keeps the finalizer, which is its node's
    to take off; a lease on our node is not kept by that, and one that `fleet claim bind` takes now
    is.
    """
    bench = Bench()
    shared(bench, "n1", until_verified=True)
    uid = bench.create()
    finalizers = {"metadata": {"finalizers": [MARKS.finalizer]}}
    bench.admin.patch(CLAIMS, Name("c", SPACE), finalizers, kind=PatchKind.MERGE)
    lease = lease_of(bench, uid)
    bench.admin.patch(
        CLAIMS,
        Name("c", SPACE),
        {"metadata": {"annotations": {pledge.key(MARKS): "me 9999999999"}}},
        kind=PatchKind.MERGE,
    )
    bench.claims.refresh()
    chore = orphans(bench)
    chore.leases.pledge(uid, "me", 60.0)
    for _ in range(4):
        chore.step({}, bench.clock.now())
    assert lease in bench.store.leases()
    chore.leases.unpledge(uid, "me")  # the annotation alone is anybody's to write
    for _ in range(4):
        chore.step({}, bench.clock.now())
    assert bench.store.leases() == []
    assert bench.reading().finalizer


def move_card(bench: Bench) -> None:
    """Device a of n1 is in n2 now; n1 knows it as gone."""
    bench.lose("a")
    there = bench.nodes.by_name["n2"]
    there.devices["GPU-n1-a"] = (
        bench.nodes.by_name["n1"].lost["GPU-n1-a"].model_copy(update={"name": "moved"})
    )
    bench.publish("n2")


def test_a_card_that_moved_to_another_coordinators_node_keeps_its_lease() -> None:
    """Promise 2: the node it was taken out of knows it still, and would close any token; the lease
    of a claim that has it on its new node is not left over.
    """
    bench = Bench()
    shared(bench, "n1")
    move_card(bench)
    bench.given("c", "moved", node="n2")
    lease = lease_on(bench, "n2", "GPU-n1-a", bench.reading().uid)
    bench.claims.refresh()
    chore = orphans(bench)
    chore.look.saw(bench.nodes.views({"n1": ()}))
    for _ in range(4):
        chore.step({}, bench.clock.now())
    bench.nodes.silent.add("n2")
    for _ in range(PAUSE_MAX):
        chore.step({}, bench.clock.now())
    assert bench.store.leases() == [lease]
    assert bench.nodes.abandoned == []


def test_of_a_card_that_is_gone_the_lease_waits_for_every_node_that_may_have_it() -> None:
    """Promise 2, A7: a claim deleted under its tenant, on a node that this coordinator never saw:
    the lease goes when that one says that it has not got the card, or gives it back itself.
    """
    bench = Bench()
    move_card(bench)
    lease = lease_on(bench, "n2", "GPU-n1-a", "gone")
    bench.claims.refresh()
    bench.nodes.silent.add("n2")
    chore = OrphanLeases(
        bench.claims, ClaimLeases(bench.coordinator, bench.nodes), bench.binder.look
    )
    chore.look.saw(bench.nodes.views({"n1": ()}))
    for _ in range(4):
        chore.step({}, bench.clock.now())
    assert bench.store.leases() == [lease]
    bench.nodes.silent.clear()
    del bench.nodes.by_name["n2"].devices["GPU-n1-a"]
    for _ in range(PAUSE_MAX):
        chore.step({}, bench.clock.now())
    assert bench.store.leases() == []


def lease_on(bench: Bench, node: str, uuid: str, uid: str) -> Lease:
    """A lease of any device for a claim."""
    units = frozenset(UnitId(u) for u in bench.nodes.by_name[node].devices[uuid].units)
    (lease,) = bench.coordinator.acquire([AcquireRequest(units, Holder(HolderKind.CLAIM, uid))])
    assert isinstance(lease, Lease)
    return lease
