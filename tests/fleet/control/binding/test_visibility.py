"""Quarantine can be seen before anybody is told of a failure, also where the node is away."""

from __future__ import annotations

import pytest

from fleet.control.binding.visibility import Visible
from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.kube.base import NODES, SLICES, Name, Object, Selection, name_of
from fleet.plugin.slices.takeover import taken_over
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine
from tests.lab.apiserver.gates import GATES_1_34, LIMITS_1_34, Features

DRIVER = "gpu.fleetscrub.dev"
NODE = "n1"
NOW = 1_700_000_000.0


class Site:
    """A cluster with the slices of one node, and nobody who looks after them."""

    def __init__(self, features: Features | None = None) -> None:
        self.cluster = MemoryCluster(Engine(clock=ManualClock(NOW), features=features))
        self.cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        self.visible = Visible(self.cluster, DRIVER)

    def publish(
        self, *devices: str, slices: int = 1, name: str = "s0", generation: int = 1
    ) -> None:
        """Create one slice of the pool."""
        spec: Object = {
            "driver": DRIVER,
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": generation, "resourceSliceCount": slices},
            "devices": [
                {"name": one, "attributes": {"uuid": {"string": one.upper()}}} for one in devices
            ],
        }
        head = {"apiVersion": SLICES.api_version, "kind": SLICES.kind, "metadata": {"name": name}}
        self.cluster.create(SLICES, {**head, "spec": spec})

    def slices(self) -> list[Object]:
        """What the server holds."""
        return list(self.cluster.list(SLICES, Selection()).items)

    def taints(self, device: str) -> dict[str, str]:
        """Taints of a device wherever it is listed."""
        return {
            t["key"].partition("/")[2]: t.get("value", "")
            for found in self.slices()
            for d in found["spec"].get("devices", ())
            if d["name"] == device
            for t in d.get("taints", ())
        }

    def touch(self, name: str = "s0") -> None:
        """Somebody else writes the slice first."""
        found = self.cluster.engine  # the twin's own state, not through the port's faults
        listed = {name_of(o).name: o for o in found.list(SLICES, Selection()).items}
        listed[name]["metadata"]["labels"] = {"seen": listed[name]["metadata"]["resourceVersion"]}
        MemoryCluster(found).replace(SLICES, listed[name])


@pytest.fixture
def site() -> Site:
    """Two devices in one slice."""
    made = Site()
    made.publish("d0", "d1")
    return made


def test_a_clean_device_is_not_taken_for_quarantined(site: Site) -> None:
    """Promise 6: only the quarantine taint in a complete pool, or absence, counts."""
    assert not site.visible.is_visible(NODE, "d0")
    assert site.visible.hidden(NODE, ("d0", "d9")) == {"d0"}


def test_a_node_without_slices_has_no_device_to_choose() -> None:
    """No pool at all: nothing can be allocated from it."""
    assert Site().visible.is_visible(NODE, "d0")


def test_a_device_of_a_silent_node_is_taken_over(site: Site) -> None:
    """Promise 6: one write, read back; the neighbour stays as it is."""
    assert site.visible.take_over(NODE, {"d0": ("node-silent",)}, NOW)
    assert site.taints("d0") == {"not-clean": "", "quarantined": "node-silent"}
    assert site.taints("d1") == {}
    assert site.visible.is_visible(NODE, "d0")
    assert len([c for c in site.cluster.writes() if c.verb == "replace"]) == 1
    (record,) = taken_over(site.slices()[0], driver=DRIVER)
    assert (record.device, record.uuid, record.at) == ("d0", "D0", NOW)


def test_taking_over_again_writes_nothing(site: Site) -> None:
    """B43: a repeated call is harmless."""
    site.visible.take_over(NODE, {"d0": ("xid",)}, NOW)
    before = len(site.cluster.writes())
    assert site.visible.take_over(NODE, {"d0": ("xid",)}, NOW + 9)
    assert len(site.cluster.writes()) == before


def test_devices_of_several_slices_are_taken_over_one_by_one() -> None:
    """A pool of two slices keeps its generation: each write is one slice's change (B09)."""
    site = Site()
    site.publish("d0", slices=2, name="s0")
    site.publish("d1", slices=2, name="s1")
    assert site.visible.take_over(NODE, {"d0": ("xid",), "d1": ("xid",)}, NOW)
    assert {s["spec"]["pool"]["generation"] for s in site.slices()} == {1}
    assert site.taints("d0") == site.taints("d1")


def test_an_incomplete_pool_is_marked_but_not_relied_on() -> None:
    """B73: what may still come from an incomplete pool is not taken for visible."""
    site = Site()
    site.publish("d0", slices=2)
    assert not site.visible.take_over(NODE, {"d0": ("xid",)}, NOW)
    assert "quarantined" in site.taints("d0")
    assert not site.visible.is_visible(NODE, "d0")


@pytest.mark.parametrize(
    "trouble",
    ["conflict", "lost", "unavailable", "failed"],
)
def test_conflicts_and_lost_answers_are_settled_by_reading(site: Site, trouble: str) -> None:
    """B43: neither a race nor silence is taken for failure or success."""
    faults = site.cluster.faults
    if trouble == "conflict":
        faults.before_next("replace", site.touch)
    elif trouble == "lost":
        faults.lose_answer_next("replace")
    elif trouble == "unavailable":
        faults.fail_next("replace", errors.ApiUnavailable("503"))
    else:
        faults.fail_next("replace", errors.ApiFailed("500"))
    assert site.visible.take_over(NODE, {"d0": ("xid",)}, NOW)
    assert len(taken_over(site.slices()[0], driver=DRIVER)) == 1


def test_a_storm_of_conflicts_ends_with_false(site: Site) -> None:
    """Bounded: whoever asks comes again, and nothing is claimed that cannot be seen."""
    for _ in range(20):
        site.cluster.faults.before_next("replace", site.touch)
    assert not site.visible.take_over(NODE, {"d0": ("xid",)}, NOW)
    assert site.taints("d0") == {}


def test_a_missing_right_is_said(site: Site) -> None:
    """Without the right nothing can be done here, and somebody has to be told so."""
    site.cluster.faults.fail_next("replace", errors.ApiForbidden("403"))
    with pytest.raises(errors.ApiForbidden):
        site.visible.take_over(NODE, {"d0": ("xid",)}, NOW)


def test_where_taints_are_dropped_the_device_is_taken_out() -> None:
    """D4: removed from the slice where taints are unavailable; the record stays."""
    site = Site(Features(GATES_1_34, LIMITS_1_34))
    site.publish("d0", "d1")
    assert site.visible.take_over(NODE, {"d0": ("xid",)}, NOW)
    (found,) = site.slices()
    assert [d["name"] for d in found["spec"]["devices"]] == ["d1"]
    assert taken_over(found, driver=DRIVER)[0].device == "d0"
    assert site.visible.is_visible(NODE, "d0")


def test_other_drivers_and_nodes_are_not_touched(site: Site) -> None:
    """D4: only the slices of our driver on that node."""
    body = site.cluster.get(SLICES, Name("s0"))
    spec = {**body["spec"], "driver": "other.example.com"}
    head = {"apiVersion": SLICES.api_version, "kind": SLICES.kind, "metadata": {"name": "x"}}
    other = site.cluster.create(SLICES, {**head, "spec": spec})
    assert site.visible.take_over(NODE, {"d0": ("xid",)}, NOW)
    assert site.cluster.get(SLICES, Name("x")) == other
