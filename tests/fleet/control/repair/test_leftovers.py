"""What is nobody's is found and explained; what is not known is never taken for nobody's."""

from __future__ import annotations

import json
from dataclasses import replace

from fleet.control.binding import pledge
from fleet.control.binding.claim_facts import ALLOCATOR
from fleet.control.repair.leftovers import Orphan, covering, find
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind
from fleet.kube.base import CLAIMS, NODES, PODS, SLICES, Name
from fleet.plugin.slices import takeover
from tests.fleet.control.repair.conftest import MARKS, SETTLE_S, Site

GONE = "uid-of-a-claim-that-is-gone"


def explained(one: Orphan) -> bool:
    """Whether a finding says what, why, what fixes it and with which command."""
    return all((one.what, one.why, one.fix, one.command))


def test_a_fleet_in_order_has_nothing_left_behind(site: Site) -> None:
    """E7: a claim in use with record, lease, hold, finalizer and spec is nobody's orphan."""
    claim = site.make_claim("c", pods=[site.make_pod("p")])
    site.lease(claim.uid, site.n1)
    site.n1.claims[claim.uid] = ("PREPARED", site.n1.uuid(0))
    site.specs["n1"].there.add(claim.uid)
    assert site.find() == {}


def test_the_lease_of_a_claim_that_is_gone_is_found(site: Site) -> None:
    """D6: a lease whose claim is gone and whose node has no record of it is an orphan."""
    site.lease(GONE, site.n1)
    one = site.find()[f"lease claim:{GONE}"]
    assert one.proven
    assert one.node == "n1"
    assert one.devices == (site.n1.uuid(0),)
    assert "gone from the API" in one.why
    assert explained(one)


def test_a_lease_with_a_record_is_no_orphan_whatever_the_api_says(site: Site) -> None:
    """D6: while the node has a record the lease stays; the record is what is told."""
    site.lease(GONE, site.n1)
    site.n1.claims[GONE] = ("PREPARED", site.n1.uuid(0))
    assert set(site.find()) == {f"record {GONE}"}


def test_a_lease_of_a_claim_allocated_elsewhere_is_found(site: Site) -> None:
    """D6: a claim that was allocated anew on another node leaves an orphan lease here."""
    claim = site.make_claim("c", node="n2", pods=[site.make_pod("p")])
    site.lease(claim.uid, site.n1)
    one = site.find()[f"lease claim:{claim.uid}"]
    assert one.proven
    assert "not allocated on n1" in one.why


def test_an_api_that_does_not_answer_proves_nothing(site: Site) -> None:
    """D6: an error of the API is "unknown": the lease is told as suspect, and not proven."""
    site.lease(GONE, site.n1)
    site.cluster.faults.offline = True
    facts = site.facts()
    assert facts.api is not None
    assert set(facts.api.unknown) >= {"resourceclaims", "pods"}
    one = site.find()[f"lease claim:{GONE}"]
    assert not one.proven
    assert "the API does not tell" in one.why


def test_a_claim_nobody_can_read_is_no_proof(site: Site) -> None:
    """B19: a claim whose body cannot be understood is there; its lease is told and left."""
    claim = site.make_claim("c", marked=False)
    site.lease(claim.uid, site.n1)
    facts = site.facts()
    assert facts.api is not None
    api = replace(facts.api, claims={}, unclear={claim.uid: "no pool"})
    (one,) = find(replace(facts, api=api))
    assert not one.proven
    assert "no pool" in one.why


def test_a_silent_node_keeps_everything_of_its_claims(site: Site) -> None:
    """Promise 7: a node that does not answer is left; the finding names the command that decides.

    Its lease, hold and finalizer are told, none is proven.
    """
    claim = site.make_claim("c")
    site.lease(claim.uid, site.n1)
    site.n1.away = True
    found = site.find()
    assert set(found) == {
        f"lease claim:{claim.uid}", f"hold {claim.uid}", f"finalizer {claim.uid}"
    }  # fmt: skip
    assert not any(one.proven for one in found.values())
    assert all("fleet node forget n1" in one.command for one in found.values())


def test_marks_of_a_claim_without_a_live_pod_are_found(site: Site) -> None:
    """A7: hold and finalizer of a claim whose pods are gone, without a record, are orphans."""
    claim = site.make_claim("c", pods=["uid-of-a-dead-pod"])
    found = site.find()
    assert set(found) == {f"hold {claim.uid}", f"finalizer {claim.uid}"}
    assert all(one.proven and explained(one) for one in found.values())


def test_marks_of_a_claim_in_use_or_in_preparation_stay(site: Site) -> None:
    """A7: a live pod, or a record on the node, keeps hold and finalizer where they are."""
    site.make_claim("used", pods=[site.make_pod("p")])
    kept = site.make_claim("recorded", node="n2")
    site.n2.claims[kept.uid] = ("UNPREPARING", site.n2.uuid(0))
    assert site.find() == {}


def test_a_pod_that_is_over_uses_nothing(site: Site) -> None:
    """A7: a pod that has succeeded is no consumer, although its object is still there."""
    claim = site.make_claim("c", pods=[site.make_pod("p")])
    pod = site.cluster.get(PODS, Name("p", "tenant"))
    pod["status"]["phase"] = "Succeeded"
    site.cluster.replace(PODS, pod, subresource="status")
    assert site.find()[f"hold {claim.uid}"].proven


def test_a_claim_bound_just_now_waits_for_its_pod(site: Site) -> None:
    """B2: a claim allocated less than the binding time-out ago may be waiting for its first pod;
    one that is being deleted waits for nothing."""
    claim = site.make_claim("c", age_s=SETTLE_S / 2)
    assert site.find() == {}
    site.cluster.delete(CLAIMS, claim.name)
    assert set(site.find()) == {f"hold {claim.uid}", f"finalizer {claim.uid}"}


def test_a_claim_that_is_being_allocated_keeps_its_lease(site: Site) -> None:
    """T9: `fleet claim bind` leases before it allocates; with its pledge and the right to it in the
    store that lease is no orphan. The pledge alone is anybody's to write."""
    claim = site.make_claim("c", marked=False)
    raw = site.cluster.get(CLAIMS, claim.name)
    raw["status"] = {}
    site.cluster.replace(CLAIMS, raw, subresource="status")
    raw = site.cluster.get(CLAIMS, claim.name)
    until = site.clock.now() + pledge.LIFETIME_S
    body = pledge.body(raw, MARKS, pledge.Pledge("me", until))
    raw["metadata"]["annotations"] = body["metadata"]["annotations"]
    site.cluster.replace(CLAIMS, raw)
    site.lease(claim.uid, site.n1)
    assert set(site.find()) == {f"lease claim:{claim.uid}"}
    site.granted(
        AcquireRequest(
            frozenset({pledge.unit(claim.uid)}), pledge.holder("me"), ttl_s=pledge.LIFETIME_S
        )
    )
    assert site.find() == {}
    site.clock.advance(pledge.LIFETIME_S)
    assert set(site.find()) == {f"lease claim:{claim.uid}"}


def test_a_claim_of_ours_may_wait_long_for_its_first_pod(site: Site) -> None:
    """T9: what `fleet claim bind` allocated is kept while it has its lease, as the coordinator
    judges it; without the lease, or once it is being deleted, it is left over."""
    claim = site.make_claim("c")
    raw = site.cluster.get(CLAIMS, claim.name)
    receipt = {"driver": MARKS.driver, "pool": "n1", "device": "gpu-0", "data": {ALLOCATOR: "me"}}
    raw["status"]["devices"] = [receipt]
    site.cluster.replace(CLAIMS, raw, subresource="status")
    assert set(site.find()) == {f"hold {claim.uid}", f"finalizer {claim.uid}"}
    site.lease(claim.uid, site.n1)
    assert site.find() == {}
    site.cluster.delete(CLAIMS, claim.name)
    assert f"lease claim:{claim.uid}" in site.find()


def test_a_finalizer_alone_needs_the_word_of_every_node(site: Site) -> None:
    """A7: of a claim that is not allocated any more every node may have a record."""
    claim = site.make_claim("c")
    raw = site.cluster.get(CLAIMS, claim.name)
    raw["status"] = {}
    site.cluster.replace(CLAIMS, raw, subresource="status")
    assert site.find()[f"finalizer {claim.uid}"].proven
    site.n2.away = True
    one = site.find()[f"finalizer {claim.uid}"]
    assert not one.proven
    assert "n2 does not answer" in one.why


def test_records_of_claims_that_are_gone_are_found(site: Site) -> None:
    """B23: a record whose claim is gone is torn down; one already in teardown is not told."""
    site.n1.claims[GONE] = ("PREPARED", site.n1.uuid(0))
    site.n1.claims["leaving"] = ("UNPREPARING", site.n1.uuid(1))
    (one,) = site.find().values()
    assert one.proven
    assert one.subject == GONE
    assert explained(one)


def test_specs_without_a_record_are_found_where_the_node_answers(site: Site) -> None:
    """Promise 3: a spec without a record is an orphan; a silent node's specs are left."""
    site.specs["n1"].there.add(GONE)
    site.specs["n2"].there.add(GONE)
    site.n2.away = True
    by_node = {one.node: one.proven for one in find(site.facts())}
    assert by_node == {"n1": True, "n2": False}


def test_slices_of_nodes_that_do_not_exist_are_found(site: Site) -> None:
    """A7: a slice whose Node object is gone is an orphan, unless that node answers."""
    site.cluster.delete(NODES, Name("n1"))
    assert not site.find()["slice slice-n1"].proven
    site.n1.away = True
    one = site.find()["slice slice-n1"]
    assert one.proven
    assert explained(one)
    assert one.uid
    assert one.version
    site.cluster.faults.offline = True
    assert site.find() == {}


def test_taints_without_a_reason_are_told_and_left_to_their_writer(site: Site) -> None:
    """Promise 6: the node's publisher is the only writer; a taint with a reason is none of it."""
    site.make_slice("n1", taint="xid")
    (one,) = site.find().values()
    assert one.kind == "taint"
    assert not one.proven
    assert explained(one)
    site.quarantine(site.n1)
    assert site.find() == {}


def test_the_mark_of_a_take_over_is_told_once_the_node_is_back(site: Site) -> None:
    """D4: a device taken over while the node was away, with no reason left there, is told."""
    found = site.cluster.get(SLICES, Name("slice-n1"))
    taken = takeover.take_over(found, {"gpu-1": ("node-silent",)}, driver=MARKS.driver, now=1.0)
    assert taken is not None
    site.cluster.replace(SLICES, taken)
    (one,) = site.find().values()
    assert "take-over" in one.what
    assert json.dumps(one.model_dump(mode="json"))


def test_leases_of_ended_runs_and_of_healthy_devices_are_found(site: Site) -> None:
    """D6: a campaign's lease without its run, a quarantine's without a reason are orphans."""
    campaign = AcquireRequest(
        units=frozenset({site.n1.unit(0)}), holder=Holder(HolderKind.CAMPAIGN, "r"), ttl_s=60.0
    )
    quarantine = AcquireRequest(
        units=frozenset({site.n2.unit(0)}),
        holder=Holder(HolderKind.QUARANTINE, site.n2.uuid(0)),
    )
    site.store.acquire([campaign])
    site.granted(quarantine)
    found = site.find()
    assert {one.subject for one in found.values()} == {
        "campaign:r", f"quarantine:{site.n2.uuid(0)}"
    }  # fmt: skip
    site.quarantine(site.n2)
    assert set(site.find()) == {"lease campaign:r"}


def test_a_token_is_closed_on_exactly_the_units_of_its_lease(site: Site) -> None:
    """D6: abandoning must not close tokens of a neighbour; what no devices make up is left."""
    view = site.n1.view()
    both = frozenset({site.n1.unit(0), site.n1.unit(1)})
    assert covering(view, both) == (site.n1.uuid(0), site.n1.uuid(1))
    assert covering(view, both | {site.n2.unit(0)}) == ()


def test_the_wrong_cluster_condemns_nobody(site: Site) -> None:
    """Promise 4: a cluster without our Node objects is another one: nothing is torn down for it."""
    site.lease(GONE, site.n1)
    site.n1.claims["used"] = ("PREPARED", site.n1.uuid(1))
    for node in ("n1", "n2"):
        site.cluster.delete(NODES, Name(node))
        site.cluster.delete(SLICES, Name(f"slice-{node}"))
    (one,) = site.find().values()
    assert not one.proven
    assert "is it the right one" in one.why


def test_what_a_verb_of_ours_has_prepared_is_no_orphan(site: Site) -> None:
    """E7: `fleet prove` prepares claims that no API knows; they have no name."""
    site.n1.claims[GONE] = ("PREPARED", site.n1.uuid(0))
    view = site.n1.view()
    nameless = view.claims[0].model_copy(update={"name": ""})
    facts = site.facts()
    views = {**facts.views, "n1": view.model_copy(update={"claims": (nameless,)})}
    assert len(find(facts)) == 1
    assert find(replace(facts, views=views)) == ()
