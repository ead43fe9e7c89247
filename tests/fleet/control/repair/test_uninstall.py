"""Everything of ours is listed, refused while in use, and leaves nothing behind."""

from __future__ import annotations

from fleet.control.binding.liveness import Alive
from fleet.control.binding.loop import BindingView
from fleet.control.repair.leftovers import Kind
from fleet.control.repair.survey import conditions_of
from fleet.control.repair.uninstall import around, everything, obstacles, remove, returned
from fleet.core.leases import AcquireRequest
from fleet.core.messages import Replication
from fleet.core.model import Holder, HolderKind, UnitId
from fleet.kube.base import NODES, SLICES, Name, Selection
from tests.fleet.control.repair.conftest import MARKS, Site

NOW = 1000.0
REBOOT = f"{MARKS.driver}/RebootRequired"


def install(site: Site) -> None:
    """One thing of each kind that the product leaves in a cluster, none of it in use."""
    site.make_node("n3", REBOOT)
    claim = site.make_claim("c")
    site.lease(claim.uid, site.n1)
    site.make_slice("n2", taint="xid")
    site.quarantine(site.n2)
    holder = Holder(HolderKind.QUARANTINE, site.n2.uuid(0))
    site.granted(AcquireRequest(units=frozenset({site.n2.unit(0)}), holder=holder))
    site.specs["n1"].there.add("old")


def test_all_kinds_are_listed(site: Site) -> None:
    """E7: slices with their taints, leases, holds, finalizers, node conditions, specs."""
    install(site)
    found = everything(site.facts())
    assert {one.kind for one in found} == set(Kind) - {Kind.RECORD, Kind.TAINT}
    assert any("1 of them with taints" in one.what for one in found)
    assert all(one.proven and one.what and one.fix for one in found)


def test_nothing_is_left_behind(site: Site) -> None:
    """E7: after it no slice, lease, hold, finalizer, taint, condition or spec of ours exists."""
    install(site)
    facts = site.facts()
    assert obstacles(facts) == ()
    assert [one.detail for one in remove(facts, site.hands) if not one.done] == []
    assert everything(site.facts()) == ()
    assert site.held == set()
    assert not site.claim("c").marked
    assert site.cluster.list(SLICES, Selection()).items == ()
    kinds = [one["type"] for one in conditions_of(site.cluster.get(NODES, Name("n3")))]
    assert kinds == ["Ready"]
    assert remove(site.facts(), site.hands) == ()


def test_a_device_in_use_is_in_the_way(site: Site) -> None:
    """E7: a record, a claim with a live pod and a published pool each keep everything."""
    assert obstacles(site.facts()) == ()
    site.n1.claims["u"] = ("PREPARED", site.n1.uuid(0))
    (one,) = obstacles(site.facts())
    assert "u" in one.what and "drain n1" in one.remedy  # noqa: PT018
    site.n1.claims.clear()
    site.make_claim("c", pods=[site.make_pod("p")])
    (one,) = obstacles(site.facts())
    assert "tenant/c" in one.what


def test_a_plugin_that_runs_is_in_the_way(site: Site) -> None:
    """E7: slices deleted under a running plugin would be made again: it is stopped first."""
    unit = UnitId(f"publisher/{site.n1.uuid(0)}")
    holder = Holder(HolderKind.PUBLISHER, "n1/driver")
    site.granted(AcquireRequest(units=frozenset({unit}), holder=holder, ttl_s=60.0))
    (one,) = obstacles(site.facts())
    assert "n1/driver" in one.what
    site.clock.advance(61.0)
    assert obstacles(site.facts()) == ()


def test_plugins_that_follow_are_not_asked_for(site: Site) -> None:
    """E7: where they are removed right after, what they would make again is left to that; a device
    in use is in the way all the same, and holds and finalizers go."""
    install(site)
    unit = UnitId(f"publisher/{site.n1.uuid(0)}")
    holder = Holder(HolderKind.PUBLISHER, "n1/driver")
    site.granted(AcquireRequest(units=frozenset({unit}), holder=holder, ttl_s=60.0))
    facts = site.facts()
    assert obstacles(facts) != ()
    assert obstacles(facts, followed=True) == ()
    assert [one.detail for one in remove(facts, site.hands, followed=True) if not one.done] == []
    assert not site.claim("c").marked
    left = everything(site.facts())
    assert {one.kind for one in left} == {Kind.SLICE, Kind.LEASE}
    assert everything(site.facts(), followed=True) == ()
    site.n1.claims["u"] = ("PREPARED", site.n1.uuid(0))
    assert obstacles(site.facts(), followed=True) != ()


def test_what_is_not_known_is_in_the_way(site: Site) -> None:
    """Promise 7: a silent node and an API that does not answer keep everything."""
    site.n1.away = True
    (one,) = obstacles(site.facts())
    assert "forget n1" in one.remedy
    site.n1.away = False
    site.cluster.faults.offline = True
    assert {"resourceclaims", "pods"} <= {one.what.split()[0] for one in obstacles(site.facts())}


def test_a_cluster_that_is_not_asked_is_in_the_way() -> None:
    """E7: what cannot be looked at is not taken for removed; a coordinator long gone is none."""
    binding = BindingView()
    assert around(alive=None, now=NOW, unasked="") == ()
    gone = Alive(pid=7, at=NOW - 90.0, binding=binding, gone=True)
    (one,) = around(alive=gone, now=NOW, unasked="x")
    assert "--kubeconfig" in one.remedy
    (one,) = around(alive=Alive(pid=7, at=NOW - 1, binding=binding), now=NOW, unasked="")
    assert "pid 7" in one.what


def test_what_comes_back_shows_a_coordinator(site: Site) -> None:
    """E7: a coordinator of another host takes quarantine leases again within seconds."""
    install(site)
    items = remove(site.facts(), site.hands)
    assert returned(items, site.store.leases()) == ()
    holder = Holder(HolderKind.QUARANTINE, site.n2.uuid(0))
    site.granted(AcquireRequest(units=frozenset({site.n2.unit(0)}), holder=holder))
    (one,) = returned(items, site.store.leases())
    assert str(holder) in one.what
    assert "stop" in one.remedy


def test_proof_that_is_on_a_node_only_is_in_the_way(site: Site) -> None:
    """E5, E7: nothing is taken away while policy wants certificates copied that are not."""
    site.n1.replication = Replication(backlog=2, error="no answer")
    (one,) = obstacles(site.facts())
    assert "2 certificates are on n1 only" in one.what
    assert "no answer" in one.what
    assert "drain n1 --reason WHY --wait" in one.remedy
    site.n1.replication = Replication(backlog=None, error="the ledger cannot be read")
    (one,) = obstacles(site.facts())
    assert "nobody can tell how many certificates are on n1 only" in one.what
    site.n1.replication = Replication(backlog=2, required=False)
    assert obstacles(site.facts()) == ()
