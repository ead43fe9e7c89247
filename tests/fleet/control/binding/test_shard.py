"""Which claims are whose: by the labels of the nodes they name, and never by guessing."""

from __future__ import annotations

import pytest

from fleet.control.binding.object_cache import Cached
from fleet.control.binding.shard import Charge, ChargedNodes, labels_of
from fleet.core import errors
from fleet.core.labels import selector
from fleet.evidence.ledger import LedgerHead
from fleet.kube.base import CLAIMS, NODES, Name, Object, PatchKind, uid_of
from fleet.kube.claim import ClaimReading, read
from fleet.kube.marks import Marks
from fleet.wiring import coordinator
from tests.fleet.control.binding.benches import SPACE, Bench, shared
from tests.fleet.control.binding.test_loop import Some, view
from tests.lab.apiserver.cluster import MemoryCluster

DRIVER = "gpu.fleetscrub.dev"
MARKS = Marks(DRIVER)


class Site:
    """Nodes n1 (pool a) and n2 (pool b), and a charge of pool a."""

    def __init__(self, *, until_verified: bool = False) -> None:
        self.cluster = MemoryCluster()
        for name, pool in (("n1", "a"), ("n2", "b")):
            self.make(name, pool)
        self.known = Cached(self.cluster, NODES)
        self.charge = Charge(MARKS, self.known, selector("pool=a"), until_verified=until_verified)
        self.moved()

    def make(self, name: str, pool: str) -> None:
        """A Node."""
        metadata = {"name": name, "labels": {"pool": pool}}
        self.cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})

    def label(self, name: str, pool: str | None) -> None:
        """Change its label."""
        body = {"metadata": {"labels": {"pool": pool}}}
        self.cluster.patch(NODES, Name(name), body, kind=PatchKind.MERGE)

    def moved(self) -> set[str]:
        """What changed hands by what the server says now."""
        self.known.refresh()
        return {*self.charge.moved()}


def claim(
    *nodes: str, hold: str = "", finalizer: bool = False, admin: bool = False
) -> ClaimReading:
    """A claim with a device on each of these nodes."""
    results = [
        {"request": "r", "driver": DRIVER, "pool": node, "device": "d", "adminAccess": admin}
        for node in nodes
    ]
    entries = [{"apiGroup": DRIVER, "resource": "holds", "name": hold}] if hold else []
    body: Object = {
        "metadata": {
            "name": "c",
            "namespace": "s",
            "uid": "u",
            "finalizers": [MARKS.finalizer] if finalizer else [],
        },
        "status": {"reservedFor": entries},
    }
    if nodes:
        body["status"]["allocation"] = {"devices": {"results": results}}
    return read(body, MARKS)


def test_a_claim_belongs_to_the_coordinator_of_its_node() -> None:
    """B4: by its devices, those it only looks into included; without any by our hold."""
    has = Site().charge.has
    assert has(claim("n1"))
    assert not has(claim("n2"))
    assert has(claim("n1", admin=True))
    assert not has(claim("n2", admin=True))
    assert has(claim(hold="n1"))
    assert not has(claim(hold="n2"))
    assert not has(claim("n1", "n2"))
    assert not has(claim("n3")), "no Node of that name was ever seen"


def test_without_a_selector_everything_is_its_own() -> None:
    """One coordinator for all, as ever: also of nodes that nobody knows."""
    charge = Charge()
    assert charge.whole
    assert charge.ready
    assert charge.has(claim("n3"))
    assert charge.has(claim(finalizer=True))
    assert (charge.has_node("n3"), charge.knows("n3"), charge.moved()) == (True, True, frozenset())


def test_a_claim_that_names_no_node_is_everybodys() -> None:
    """Promise 7: what is left of us on it goes, whoever sees it."""
    assert Site().charge.has(claim())
    assert Site().charge.has(claim(finalizer=True))


def test_a_finalizer_that_waits_for_a_clean_device_is_left_to_its_node() -> None:
    """D3, until-verified: who does not see the node cannot know whether the device is clean."""
    charge = Site(until_verified=True).charge
    assert not charge.has(claim(finalizer=True))
    assert charge.has(claim())
    assert charge.has(claim("n1", finalizer=True))


def test_a_label_that_changes_moves_the_node() -> None:
    """Whoever lets go and whoever takes over hear of it once, and other changes move nothing."""
    site = Site()
    assert (site.charge.has_node("n1"), site.charge.has_node("n2")) == (True, False)
    site.label("n2", "a")
    assert site.moved() == {"n2"}
    assert site.moved() == set()
    site.label("n1", None)
    assert site.moved() == {"n1"}
    assert (site.charge.has_node("n1"), site.charge.has_node("n2")) == (False, True)
    body = {"metadata": {"labels": {"zone": "z"}}}
    site.cluster.patch(NODES, Name("n2"), body, kind=PatchKind.MERGE)
    assert site.moved() == set()
    site.make("n4", "a")
    assert site.moved() == {"n4"}


def test_a_node_that_is_gone_counts_as_it_was_last_seen() -> None:
    """DESIGN 4: its claims have to be let go by somebody who knows whose it was."""
    site = Site()
    for name in ("n1", "n2"):
        site.cluster.delete(NODES, Name(name))
    assert site.moved() == set()
    assert (site.charge.has_node("n1"), site.charge.has_node("n2")) == (True, False)
    assert (site.charge.knows("n2"), site.charge.knows("n3")) == (True, False)
    site.make("n1", "b")
    assert site.moved() == {"n1"}


def test_a_survey_asks_only_its_own_nodes_and_none_before_all_are_known() -> None:
    """B4: a coordinator finds no node silent that it does not ask, and decides nothing early."""
    site = Site()
    nodes = Some({"n1": view("n1"), "n2": view("n2"), "n3": view("n3")})
    asked = ChargedNodes(nodes, site.charge)
    assert asked.names() == ("n1",)
    assert asked.views({"n2": ()}) == {"n2": view("n2")}
    site.label("n2", "a")
    site.known.refresh()
    assert asked.names() == ("n1", "n2")
    assert site.charge.moved() == {"n2"}, "what the survey learnt is told to the binder, too"
    early = Charge(MARKS, Cached(site.cluster, NODES), selector("pool=a"))
    assert not early.ready
    with pytest.raises(errors.ApiUnavailable, match="nodes are not known yet"):
        ChargedNodes(nodes, early).names()
    assert {*ChargedNodes(nodes, Charge()).names()} == {"n1", "n2", "n3"}


def test_labels_that_make_no_sense_are_none() -> None:
    """B19: a Node is the server's JSON."""
    assert labels_of({"metadata": {"labels": [1]}}) == {}
    assert labels_of({}) == {}


def test_of_ledgers_only_its_own_nodes_are_countersigned() -> None:
    """E3: each node's ledger has one coordinator that follows it."""
    ends = {name: LedgerHead(count=1) for name in ("n1", "n2")}
    assert coordinator._own(lambda: ends, Site().charge).keys() == {"n1"}
    assert coordinator._own(lambda: ends, Charge()).keys() == {"n1", "n2"}


def test_a_claim_that_comes_from_another_was_not_followed() -> None:
    """B6: how long it waited there nobody here has watched, so its clock and half a minute of
    watching count, as after a restart.
    """
    bench = Bench()
    charge = shared(bench, "n1")
    uids = [bench.given(name, "a", node=node) for name, node in (("c", "n1"), ("d", "n2"))]
    bench.step()
    assert bench.binder.look.tracks.keys() == {uids[0]}
    assert bench.binder.look.tracks[uids[0]].followed is False, "it was there when we began"
    late = [bench.given(name, "b", node=node) for name, node in (("e", "n1"), ("f", "n2"))]
    bench.step()
    charge._mine["n2"] = True
    bench.binder.touch((uids[1], late[1]), bench.clock.now())
    bench.step()
    followed = {uid: bench.binder.look.tracks[uid].followed for uid in late}
    assert followed == {late[0]: True, late[1]: False}
    bench.delete("f")
    body = bench.raw("f")
    bench.admin.patch(
        CLAIMS, Name("f", SPACE), {"metadata": {"finalizers": None}}, kind=PatchKind.MERGE
    )
    charge._mine["n2"] = False
    bench.binder.touch((uid_of(body),), bench.clock.now())
    bench.run(1.0)
    assert late[1] not in bench.binder.look.tracks
    assert late[1] not in bench.binder.look.found_at_start
