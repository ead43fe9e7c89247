"""Nodes whose Node object is gone for long: given up once, and only when it is certain."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fleet.control.binding.object_cache import Cached
from fleet.control.binding.shard import Charge
from fleet.control.repair.absence import LOOK_S, AbsentNodes
from fleet.core import errors
from fleet.core.labels import selector
from fleet.core.messages import NodeView
from fleet.kube.base import CLAIMS, NODES, SLICES, Name
from tests.fleet.control.repair.conftest import Site
from tests.fleet.control.repair.test_lost_nodes import parting

LOST_S = 600.0
NONE: Mapping[str, NodeView | errors.FleetError] = {}


class Watch:
    """A coordinator's watch over the nodes of a site."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.nodes, self.claims = Cached(site.cluster, NODES), Cached(site.cluster, CLAIMS)
        self.absent = AbsentNodes(site.cluster, self.nodes, self.claims, parting(site), LOST_S)
        self.now = 1000.0

    def after(
        self, seconds: float, views: Mapping[str, NodeView | errors.FleetError] = NONE
    ) -> set[str]:
        """A step so much later; the holders of leases then."""
        self.nodes.refresh()
        self.claims.refresh()
        for _ in range(int(seconds // LOOK_S)):
            self.now += LOOK_S
            self.absent.step(views, self.now)
        self.now += seconds % LOOK_S
        self.absent.step(views, self.now)
        return self.site.held


@pytest.fixture
def watch(site: Site) -> Watch:
    """A claim on each of two nodes, the Node of the first one deleted."""
    for node in (site.n1, site.n2):
        site.lease(site.make_claim(f"on-{node.name}", node=node.name).uid, node)
    site.cluster.delete(NODES, Name("n1"))
    return Watch(site)


def names(watch: Watch) -> set[str]:
    """Claims with marks of ours."""
    return {name for name in ("on-n1", "on-n2") if watch.site.claim(name).marked}


def test_it_is_given_up_after_its_time_and_no_other(watch: Watch) -> None:
    """DESIGN 4: an absent node's claims are let go when T_lost is over, the neighbour keeps its."""
    before = watch.after(0.0)
    assert len(before) == 2
    assert watch.after(LOST_S - 1.0) == before
    after = watch.after(LOOK_S)
    assert len(after & before) == 1
    assert names(watch) == {"on-n2"}
    writes = len(watch.site.cluster.writes())
    watch.after(LOOK_S)
    assert len(watch.site.cluster.writes()) == writes, "once is enough"


def test_one_that_answers_or_came_back_is_kept(watch: Watch) -> None:
    """A deleted Node object alone proves nothing of a node that still answers."""
    before = watch.after(0.0)
    view = watch.site.n1.view()
    assert watch.after(2 * LOST_S, {"n1": view}) == before
    watch.after(LOOK_S)
    watch.site.cluster.create(
        NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    )
    for _ in range(20):  # the cache has not heard of it yet
        watch.now += LOOK_S
        watch.absent.step(NONE, watch.now)
    assert watch.site.held == before
    assert names(watch) == {"on-n1", "on-n2"}


def test_leases_of_claims_that_are_gone_go_with_their_node(watch: Watch) -> None:
    """A7: claims deleted by force, slices collected with the Node: what the node last said of its
    devices is all that tells of whose the leases are."""
    site = watch.site
    watch.after(0.0, {"n1": site.n1.view(), "n2": site.n2.view()})
    found = site.cluster.get(CLAIMS, Name("on-n1", "tenant"))
    found["metadata"]["finalizers"] = []
    site.cluster.replace(CLAIMS, found)
    site.cluster.delete(CLAIMS, Name("on-n1", "tenant"))
    site.cluster.delete(SLICES, Name("slice-n1"))
    assert len(watch.after(LOOK_S)) == 2
    left = watch.after(LOST_S)
    assert left == {f"claim:{site.claim('on-n2').uid}", "operator:coordinator"}


def test_without_a_whole_list_of_nodes_nobody_is_missing(watch: Watch) -> None:
    """An empty cache is no empty cluster."""
    watch.claims.refresh()
    for seconds in range(0, 2 * int(LOST_S), int(LOOK_S)):
        watch.absent.step(NONE, 1.0 + seconds)
    assert len(watch.site.held) == 2


def test_what_cannot_be_given_up_is_said_and_tried_again(watch: Watch) -> None:
    """E7: a right that is missing shows; nothing is half done for good."""
    watch.after(0.0)
    watch.site.cluster.faults.fail_next("delete", errors.ApiForbidden("no right"))
    with pytest.raises(errors.ApiFailed, match="slice-n1"):
        watch.after(LOST_S)
    with pytest.raises(errors.ApiFailed, match="slice-n1"):
        watch.after(LOOK_S / 2)  # whoever looks between two tries is told
    watch.after(LOOK_S)
    assert names(watch) == {"on-n2"}


def test_each_of_several_coordinators_gives_up_its_own(watch: Watch) -> None:
    """B4, DESIGN 4: another's lost node is left alone; one that was gone before we began is told
    and left to an operator, for somebody else may reach it.
    """
    site = watch.site
    site.cluster.delete(NODES, Name("n2"))
    watch.absent.charge = Charge(watch.absent.parting.marks, watch.nodes, selector("pool=a"))
    before = watch.after(0.0)
    with pytest.raises(errors.ApiFailed, match=r"fleet node forget n1.*fleet node forget n2"):
        watch.after(LOST_S)
    assert watch.site.held == before
    for name, pool in (("n1", "a"), ("n2", "b")):
        metadata = {"name": name, "labels": {"pool": pool}}
        site.cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    watch.nodes.refresh()
    watch.absent.charge.refresh()
    watch.after(LOOK_S)
    for name in ("n1", "n2"):
        site.cluster.delete(NODES, Name(name))
    watch.after(LOOK_S)
    watch.after(LOST_S)
    assert names(watch) == {"on-n2"}


def test_a_clock_that_leaps_gives_nobody_up(watch: Watch) -> None:
    """DESIGN 4: T_lost is time that was watched, so a node that is cut off for a minute keeps its
    claims when the coordinator's clock is set, forwards or back.
    """
    before = watch.after(0.0)
    for leap_s in (2 * LOST_S, -5 * LOST_S, 1e9):
        watch.now += leap_s
        assert watch.after(LOOK_S) == before
    assert names(watch) == {"on-n1", "on-n2"}
    watch.after(LOST_S)
    assert names(watch) == {"on-n2"}


def test_a_node_whose_label_was_taken_off_before_it_was_deleted_is_told(watch: Watch) -> None:
    """Promise 7, E7: no coordinator selects it any more, so none gives it up: all say so."""
    site = watch.site
    metadata = {"name": "n1", "labels": {"pool": "retired"}}
    site.cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    selectors = (selector("pool=a"), selector("pool=b"))
    watch.absent.charge = Charge(
        watch.absent.parting.marks, watch.nodes, selectors[0], beside=selectors
    )
    watch.nodes.refresh()
    watch.absent.charge.refresh()
    site.cluster.delete(NODES, Name("n1"))
    before = watch.after(0.0)
    with pytest.raises(errors.ApiFailed, match="fleet node forget n1"):
        watch.after(LOST_S)
    assert site.held == before


def test_cards_that_went_to_another_node_keep_their_leases(watch: Watch) -> None:
    """Promise 2: a chassis that is taken away after its cards were moved takes no lease of the node
    that has them now.
    """
    site = watch.site
    moved = site.make_claim("moved", node="n2")
    site.lease(moved.uid, site.n1, 1)
    site.cluster.delete(SLICES, Name("slice-n1"))
    found = site.cluster.get(SLICES, Name("slice-n2"))
    entry = {"name": "gpu-2", "attributes": {"uuid": {"string": site.n1.uuid(1)}}}
    found["spec"]["devices"].append(entry)
    site.cluster.replace(SLICES, found)
    watch.after(0.0, {"n1": site.n1.view(), "n2": site.n2.view()})
    watch.after(LOOK_S)
    watch.after(LOST_S)
    assert names(watch) == {"on-n2"}
    assert {f"claim:{moved.uid}", f"claim:{site.claim('on-n2').uid}"} < site.held
    assert site.claim("moved").marked
