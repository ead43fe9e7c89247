"""Orphans go in order, each guarded, one bad one stopping no other, and twice changes nothing."""

from __future__ import annotations

import pytest

from fleet.control.repair.leftovers import Kind, find
from fleet.control.repair.repair import fix
from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind
from fleet.kube.base import CLAIMS, NODES, SLICES, Name, Selection
from tests.fleet.control.repair.conftest import Site

GONE = "uid-of-a-claim-that-is-gone"


def full(site: Site) -> str:
    """One orphan of each kind that can be taken away; the UID of the marked claim."""
    claim = site.make_claim("c", pods=["uid-of-a-dead-pod"])
    site.lease(claim.uid, site.n1)
    site.lease(GONE, site.n2)
    site.n2.claims["record"] = ("PREPARED", site.n2.uuid(1))
    site.specs["n1"].there.add(GONE)
    site.make_node("n3")
    site.make_slice("n3")
    site.cluster.delete(NODES, Name("n3"))
    return claim.uid


def test_everything_goes_and_the_second_time_nothing_is_written(site: Site) -> None:
    """E7: token closed, lease, hold, finalizer, spec, slice: all gone; again: not one write."""
    uid = full(site)
    outcomes = site.fix()
    assert [one.detail for one in outcomes if not (one.done or one.begun)] == []
    assert {one.orphan.kind for one in outcomes} == set(Kind) - {Kind.TAINT, Kind.CONDITION}
    assert site.held == set()
    assert not site.claim("c").marked
    assert [one.uid for one in site.n1.closed] == [uid]
    assert site.specs["n1"].there == set()
    left = site.cluster.list(SLICES, Selection()).items
    assert {one["metadata"]["name"] for one in left} == {"slice-n1", "slice-n2"}
    writes = len(site.cluster.writes())
    assert site.fix() == ()
    assert len(site.cluster.writes()) == writes


def test_the_order_is_token_lease_hold_finalizer(site: Site) -> None:
    """D6: nothing of a claim goes at the API before its lease, and that not before its node."""
    claim = site.make_claim("c", pods=["uid-of-a-dead-pod"])
    site.lease(claim.uid, site.n1)
    kinds = [one.orphan.kind for one in site.fix()]
    assert kinds == [Kind.LEASE, Kind.HOLD, Kind.FINALIZER]
    finalizer = [call for call in site.cluster.writes() if call.resource is CLAIMS][-1]
    assert finalizer.subresource == ""
    assert finalizer.body["metadata"]["finalizers"] == []


def test_marks_stay_while_the_lease_does(site: Site) -> None:
    """D6: a node that refuses to abandon keeps lease, hold and finalizer of that claim only."""
    claim = site.make_claim("c")
    other = site.make_claim("d", node="n2")
    site.lease(claim.uid, site.n1)
    orphans = find(site.facts())
    site.n1.claims[claim.uid] = ("PREPARING", site.n1.uuid(0))
    outcomes = {one.orphan.kind: one for one in fix(orphans, site.hands) if not one.done}
    assert set(outcomes) == {Kind.LEASE, Kind.HOLD, Kind.FINALIZER}
    assert "has a record" in outcomes[Kind.LEASE].detail
    assert site.claim("c").held
    assert not site.claim(other.name.name).marked


def test_a_pod_that_came_since_keeps_the_marks(site: Site) -> None:
    """A7: what was judged without a pod is left once another pod uses the claim."""
    claim = site.make_claim("c", pods=["uid-of-a-dead-pod"])
    orphans = find(site.facts())
    found = site.cluster.get(CLAIMS, claim.name)
    pod = {"resource": "pods", "name": "new", "uid": site.make_pod("new")}
    found["status"]["reservedFor"].append(pod)
    site.cluster.replace(CLAIMS, found, subresource="status")
    outcomes = fix(orphans, site.hands)
    assert not any(one.done for one in outcomes)
    assert "another pod" in outcomes[0].detail
    assert site.claim("c").held


@pytest.mark.parametrize("stays", [True, False])
def test_a_hold_that_a_tenant_made_his_own_goes_too(site: Site, *, stays: bool) -> None:
    """T11: a hold that somebody else has applied as well is taken off nevertheless, whether the
    claim is then gone with its last finalizer or not."""
    claim = site.make_claim("c")
    raw = site.cluster.get(CLAIMS, claim.name)
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    named = {"metadata": {"name": "c", "namespace": "tenant"}}
    status = {"status": {"reservedFor": raw["status"]["reservedFor"]}}
    site.cluster.apply(CLAIMS, head | named | status, manager="tenant", subresource="status")
    if stays:
        named["metadata"]["finalizers"] = ["tenant.example.com/own"]  # type: ignore[assignment]
        site.cluster.apply(CLAIMS, head | named, manager="tenant")
    site.cluster.delete(CLAIMS, claim.name)
    hold, finalizer = site.fix()
    assert (hold.done, finalizer.done) == (True, True)
    if stays:
        assert not site.claim("c").marked


def test_a_mark_that_stays_is_not_told_as_gone(site: Site) -> None:
    """T11: where the server takes no write of the claim itself, our finalizer is told to be left,
    with what is to be done; it is not told as gone."""
    site.make_claim("c", pods=["uid-of-a-dead-pod"])
    frozen = errors.ApiInvalid("spec: Invalid value: field is immutable", status=422)
    site.cluster.faults.fail_next("patch", frozen, times=2)  # the hold goes by an apply
    found = {one.orphan.kind: one for one in site.fix()}
    assert found[Kind.HOLD].done
    assert not found[Kind.FINALIZER].done
    assert "kubectl edit resourceclaim -n tenant c" in found[Kind.FINALIZER].detail


def test_a_claim_of_the_same_name_is_another_one(site: Site) -> None:
    """D6: a claim re-created under its name is not touched; the old one needs nothing."""
    claim = site.make_claim("c")
    orphans = find(site.facts())
    site.holds.release(claim.name, claim.uid)
    site.cluster.delete(CLAIMS, claim.name)
    fresh = site.make_claim("c", pods=[site.make_pod("p")])
    assert all(one.done for one in fix(orphans, site.hands))
    assert site.claim("c").uid == fresh.uid != claim.uid
    assert site.claim("c").marked


def test_one_bad_one_stops_no_other(site: Site) -> None:
    """E7: an error at one orphan is told with it, and the others go."""
    site.lease(GONE, site.n1)
    site.make_claim("c")
    site.cluster.faults.fail_next("get", errors.ApiForbidden("no right to read claims"))
    outcomes = {one.orphan.kind: one for one in site.fix()}
    assert outcomes[Kind.LEASE].done
    assert "no right" in outcomes[Kind.HOLD].detail
    assert site.held == set()


def test_what_is_not_proven_is_left(site: Site) -> None:
    """Promise 7: an unproven orphan is told with what is missing, and nothing is done."""
    claim = site.make_claim("c")
    site.lease(claim.uid, site.n1)
    site.n1.away = True
    outcomes = site.fix()
    assert outcomes
    assert all(not one.done and one.detail for one in outcomes)
    assert site.held == {f"claim:{claim.uid}"}
    assert site.claim("c").marked


def test_a_teardown_is_begun_and_left_to_its_node(site: Site) -> None:
    """B23: a record of a claim that is gone goes by the node's own teardown, with its proofs."""
    site.n1.claims[GONE] = ("PREPARED", site.n1.uuid(0))
    (outcome,) = site.fix()
    assert (outcome.done, outcome.begun) == (False, True)
    assert "has begun" in outcome.detail
    assert site.n1.claims[GONE][0] == "UNPREPARING"


def test_leases_of_runs_go_by_token_alone(site: Site) -> None:
    """D6: a campaign's lease needs no node's word."""
    units = frozenset({site.n1.unit(0)})
    request = AcquireRequest(units, Holder(HolderKind.CAMPAIGN, "r"), ttl_s=60.0)
    site.store.acquire([request])
    (outcome,) = site.fix()
    assert outcome.done
    assert site.held == set()
    assert site.n1.closed == []
