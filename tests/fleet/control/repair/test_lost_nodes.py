"""A lost node: everything of it ends without its word, in order, on the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from fleet.control.coordinator import Coordinator
from fleet.control.repair.lost_nodes import Forgotten, Parting, forget, life
from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind, Lease, UnitId
from fleet.kube.base import NODES, SLICES, Name, Selection
from fleet.node.lost import lost_unit
from fleet.stores.base import Release
from tests.fleet.control.repair.conftest import MARKS, Site


def parting(site: Site) -> Parting:
    """What is needed to forget a node of the site."""
    return Parting(
        marks=MARKS, coordinator=site.coordinator, cluster=site.cluster, holds=site.holds
    )


def lose(site: Site) -> Forgotten:
    """Node n1 is gone; an operator says so."""
    site.n1.away = True
    return forget("n1", parting(site), operator="me")


def slices(site: Site) -> set[str]:
    """Names of the slices left."""
    listed = site.cluster.list(SLICES, Selection()).items
    return {one["metadata"]["name"] for one in listed}


def test_leases_marks_and_slices_of_the_node_go_and_no_others(site: Site) -> None:
    """A7: a lost node's claims are let go; the neighbour keeps everything."""
    mine, theirs = site.make_claim("mine"), site.make_claim("theirs", node="n2")
    site.lease(mine.uid, site.n1)
    site.lease(theirs.uid, site.n2)
    done = lose(site)
    assert done.failed == ()
    assert done.leases == (f"claim:{mine.uid}",)
    assert site.held == {f"claim:{theirs.uid}", "operator:me"}
    assert not site.claim("mine").marked
    assert not site.claim("mine").allocated
    assert site.claim("theirs").marked
    assert slices(site) == {"slice-n2"}


def test_it_is_recorded_with_the_operator_and_as_node_lost(site: Site) -> None:
    """E7: the store's history says who decided, and that the node's word was not asked."""
    site.lease(site.make_claim("c").uid, site.n1)
    lose(site)
    told = [f"{one.holder} {one.detail}" for one in site.store.history(10)]
    assert any("closed by node-lost on n1" in one for one in told)
    (mark,) = [one for one in site.coordinator.leases() if lost_unit("n1") in one.units]
    assert mark.holder.kind is HolderKind.OPERATOR
    assert mark.holder.name == "me"


def test_twice_changes_nothing_more(site: Site) -> None:
    """E7: forgetting again finds nothing to do and keeps the one mark."""
    site.lease(site.make_claim("c").uid, site.n1)
    first = lose(site)
    writes = len(site.cluster.writes())
    again = lose(site)
    assert (again.token, again.leases, again.claims, again.slices) == (first.token, (), (), ())
    assert forget("n1", parting(site), operator="another").token == first.token
    assert len(site.cluster.writes()) == writes


def test_slices_go_first_and_a_slice_that_stays_keeps_the_rest(site: Site) -> None:
    """Promise 6: no hold or lease is let go while the scheduler could still send somebody there."""
    claim = site.make_claim("c")
    site.lease(claim.uid, site.n1)
    site.cluster.faults.fail_next("delete", errors.ApiForbidden("no right"))
    done = lose(site)
    assert "slice-n1" in done.failed[0]
    assert f"claim:{claim.uid}" in site.held
    assert site.claim("c").marked
    assert lose(site).failed == ()
    assert not site.claim("c").marked


@dataclass
class Away:
    """A coordinator that takes no lease back now."""

    behind: Coordinator

    def leases(self) -> Sequence[Lease]:
        """As it is."""
        return self.behind.leases()

    def acquire(self, requests: Sequence[AcquireRequest]) -> Sequence[Lease | errors.FleetError]:
        """As it is."""
        return self.behind.acquire(requests)

    def release_all(self, releases: Sequence[Release]) -> Sequence[bool | errors.FleetError]:
        """Not now."""
        return [errors.StoreUnavailable("the store does not answer") for _ in releases]


def test_what_a_first_try_left_a_second_finds(site: Site) -> None:
    """Promise 7: the slices are gone with the first try, the claim is gone, and the store was away:
    the mark keeps whose devices they were, and nothing is called done before the lease is back."""
    site.lease("gone", site.n1)
    site.lease("elsewhere", site.n2)
    told = parting(site)
    first = forget("n1", replace(told, coordinator=Away(site.coordinator)), operator="me")
    assert (first.slices, first.leases) == (("slice-n1",), ())
    assert "claim:gone" in first.failed[0]
    second = forget("n1", told, operator="another")
    assert (second.leases, second.failed) == (("claim:gone",), ())
    assert second.token == first.token
    assert site.held == {"claim:elsewhere", "operator:me"}


def test_one_claim_that_fails_stops_no_other(site: Site) -> None:
    """E7: marks that cannot be taken off are told; those of the other claim go."""
    site.make_claim("a")
    site.make_claim("b")
    site.cluster.faults.fail_next("get", errors.ApiForbidden("no right"))
    done = lose(site)
    assert len(done.failed) == len(done.claims) == 1
    assert lose(site).failed == ()
    assert not site.claim("a").marked
    assert not site.claim("b").marked


def test_marks_that_the_server_would_not_take_off_are_not_told_as_gone(site: Site) -> None:
    """Promise 7: an admission policy refuses the finalizer's write (422): that is said, and what is
    named takes it off later."""
    claim = site.make_claim("a")
    faults = site.cluster.faults

    def refuse() -> None:
        faults.fail_next("patch", errors.ApiInvalid("not on a Sunday", status=422, causes=[]))

    faults.before_next("patch", lambda: faults.before_next("patch", refuse))
    done = lose(site)
    assert done.claims == ()
    assert "fleet reconcile" in done.failed[0]
    assert set(site.find()) == {f"finalizer {claim.uid}"}
    site.n1.away = False
    site.fix()
    assert not site.claim("a").marked


def test_an_api_that_does_not_answer_changes_nothing(site: Site) -> None:
    """Promise 7: without the API nobody knows what is the node's: not even the mark is set."""
    site.lease(site.make_claim("c").uid, site.n1)
    held = site.held
    site.cluster.faults.offline = True
    with pytest.raises(errors.ApiUnavailable):
        lose(site)
    assert site.held == held


def test_a_lease_nothing_tells_the_node_of_needs_the_operators_word(site: Site) -> None:
    """A7: with claim and slices gone only the UUID says whose lease it is."""
    site.lease("gone", site.n1)
    site.cluster.delete(SLICES, Name("slice-n1"))
    site.cluster.delete(NODES, Name("n1"))
    done = lose(site)
    assert done.leases == ()
    assert "claim:gone" in done.failed[0], "what may be its is not called given up"
    told = replace(parting(site), devices=frozenset({site.n1.uuid(0)}))
    assert forget("n1", told, operator="me").leases == ("claim:gone",)


def test_without_a_cluster_the_devices_named_are_let_go(site: Site) -> None:
    """E7: on bare metal the operator names the accelerators; claims and slices do not exist."""
    site.lease("c", site.n1)
    bare = Parting(marks=MARKS, coordinator=site.coordinator, devices=frozenset({site.n1.uuid(0)}))
    assert forget("n1", bare, operator="me").leases == ("claim:c",)
    assert site.held == {"operator:me"}


def test_signs_of_life_are_told(site: Site) -> None:
    """E7: a Ready Node, a plugin that publishes, and a node nobody knows speak against it."""
    assert life("n1", parting(site)) == "its Node object is Ready"
    assert "is it the right one" in life("n9", parting(site))
    assert life("n9", replace(parting(site), devices=frozenset({"GPU-n9"}))) == ""
    site.cluster.delete(NODES, Name("n1"))
    assert life("n1", parting(site)) == "", "its slices are known"
    unit = UnitId(f"publisher/{site.n1.uuid(0)}")
    holder = Holder(HolderKind.PUBLISHER, "n1/driver")
    site.granted(AcquireRequest(frozenset({unit}), holder, ttl_s=60.0))
    assert life("n1", parting(site)) == "its plugin publishes its devices"
    site.clock.advance(61.0)
    site.cluster.faults.offline = True
    with pytest.raises(errors.ApiUnavailable):
        life("n1", parting(site))
