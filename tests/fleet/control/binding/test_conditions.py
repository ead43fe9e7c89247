"""The Node condition that asks for a reboot (B40)."""

from __future__ import annotations

import pytest

from fleet.control.binding.conditions import REMEDIES, RESYNC_S, RebootConditions
from fleet.control.binding.object_cache import Cached
from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.messages import DeviceView, NodeView, ReasonView
from fleet.kube.base import NODES, Name, Object
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine

NOW = 1_700_000_000.0
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "KubeletReady",
    "message": "",
    "lastHeartbeatTime": "2026-01-01T00:00:00Z",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
REBOOT = ReasonView(code="xid", source="health", liftable=True, remedy=min(REMEDIES))
RESET = ReasonView(code="xid", source="health", liftable=True, remedy="reset the device")


class Site:
    """A cluster with one node that is cordoned and ready."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        self.cluster = MemoryCluster(Engine(clock=self.clock))
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
        made = self.cluster.create(NODES, {**node, "spec": {"unschedulable": True}})
        self.cluster.replace(
            NODES, {**made, "status": {"conditions": [READY]}}, subresource="status"
        )
        self.conditions = RebootConditions(self.cluster, "gpu.fleetscrub.dev")

    def step(self, *reasons: ReasonView, after: float = 1.0) -> dict[str, errors.FleetError]:
        """One step with one device that has these reasons."""
        self.clock.advance(after)
        device = DeviceView(
            uuid="g", name="gpu-0", accelerator="g", units=("g/all",), memory_bytes=1,
            state="QUARANTINED" if reasons else "CLEAN", reasons=reasons,
        )  # fmt: skip
        view = NodeView(
            node="n1", incarnation="i", boot_id="b", at=NOW, simulated=True, backend="simulated",
            devices=(device,),
        )  # fmt: skip
        return dict(self.conditions.step({"n1": view}, self.clock.now()))

    def node(self) -> Object:
        """The Node."""
        return self.cluster.get(NODES, Name("n1"))

    def said(self) -> Object | None:
        """Our condition."""
        listed = self.node()["status"]["conditions"]
        return next((c for c in listed if c["type"] == "gpu.fleetscrub.dev/RebootRequired"), None)

    def written(self) -> int:
        """Writes so far."""
        return len([c for c in self.cluster.writes() if c.verb == "apply"])


@pytest.fixture
def site() -> Site:
    """A node without trouble."""
    return Site()


def test_a_node_that_needs_no_reboot_is_left_alone(site: Site) -> None:
    """No condition is written where nothing is to be said; a reset needs none."""
    site.step()
    site.step(RESET)
    assert site.said() is None
    assert site.written() == 0


def test_a_device_that_needs_a_reboot_is_said_on_its_node_and_taken_back(site: Site) -> None:
    """True with device and codes, False once it is over; one write for each change."""
    for _ in range(5):
        site.step(REBOOT)
    said = site.said()
    assert said is not None
    assert (said["status"], said["message"]) == ("True", "needed by gpu-0 (xid)")
    since = said["lastTransitionTime"]
    for _ in range(5):
        site.step()
    said = site.said()
    assert said is not None
    assert said["status"] == "False"
    assert said["lastTransitionTime"] > since
    assert site.written() == 2


def test_conditions_and_cordons_of_others_are_not_touched(site: Site) -> None:
    """D4: only our own condition is ours."""
    site.step(REBOOT)
    node = site.node()
    assert READY in node["status"]["conditions"]
    assert node["spec"] == {"unschedulable": True}
    assert len(node["status"]["conditions"]) == 2


def test_a_new_process_writes_nothing_new(site: Site) -> None:
    """What stands there is read first."""
    site.step(REBOOT)
    site.conditions = RebootConditions(site.cluster, "gpu.fleetscrub.dev")
    site.step(REBOOT)
    assert site.written() == 1


def test_a_start_asks_for_no_node_that_is_watched(site: Site) -> None:
    """A coordinator that starts in a big fleet reads no Node one by one: what the watch shows is
    enough where nothing is to be said, or where it is said already."""
    known = Cached(site.cluster, NODES, clock=site.clock)
    site.conditions.nodes = known

    def gets() -> int:
        return len([c for c in site.cluster.calls if c.verb == "get"])

    site.step()
    assert gets() == 0
    known.refresh()
    site.step()
    assert (gets(), site.written()) == (0, 0)
    site.step(REBOOT)
    assert (gets(), site.written()) == (1, 1)
    site.conditions = RebootConditions(site.cluster, site.conditions.driver, known)
    known.refresh()
    site.step(REBOOT)
    site.step(REBOOT, after=RESYNC_S)
    assert (gets(), site.written()) == (1, 1)


def test_a_condition_that_somebody_took_away_comes_back(site: Site) -> None:
    """Level-triggered: looked at again from time to time, as after a re-created Node."""
    site.step(REBOOT)
    node = site.node()
    node["status"]["conditions"] = [READY]
    site.cluster.replace(NODES, node, subresource="status")
    site.step(REBOOT)
    assert site.said() is None
    site.step(REBOOT, after=RESYNC_S)
    assert site.said() is not None


def test_trouble_is_told_and_tried_again(site: Site) -> None:
    """A right that is missing, a conflict, silence: reported by node, and the next step tries."""
    site.cluster.faults.fail_next("apply", errors.ApiConflict("409"))
    assert set(site.step(REBOOT)) == {"n1"}
    assert site.step(REBOOT) == {}
    assert site.said() is not None


def test_silent_nodes_and_nodes_without_a_node_object_are_passed_over(site: Site) -> None:
    """A node that says nothing keeps its condition."""
    site.step(REBOOT)
    assert dict(site.conditions.step({"n1": None, "n2": errors.NotOwner("x")}, NOW)) == {}
    said = site.said()
    assert said is not None
    assert said["status"] == "True"
    site.cluster.delete(NODES, Name("n1"))
    site.conditions = RebootConditions(site.cluster, "gpu.fleetscrub.dev")
    assert site.step(REBOOT) == {}
