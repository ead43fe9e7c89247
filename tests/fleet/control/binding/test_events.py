"""Events of the coordinator, as the API server has them."""

from __future__ import annotations

from fleet.control.binding.decisions import PodFact
from fleet.control.binding.events import Telling
from fleet.core.clock import ManualClock
from fleet.kube.base import EVENTS
from fleet.kube.claim import read
from fleet.kube.events import Events
from fleet.kube.marks import Marks
from tests.lab.apiserver.cluster import MemoryCluster

CLAIM = {"metadata": {"name": "c", "namespace": "ns", "uid": "u-1"}}


def test_owners_are_warned_once_about_their_own_object() -> None:
    """D3: an event names claim or pod, is a warning, and a repeat is not a second event."""
    cluster = MemoryCluster()
    tell = Telling(Events(cluster, "fleetscrub-coordinator", ManualClock(1e9)))
    reading = read(CLAIM, Marks("gpu.fleetscrub.dev"))
    for _ in range(2):
        tell.claim(reading, "HeldAfterUse", "it is still held")
    tell.pod("ns", PodFact("p", "u-2", bound=True, leaving=False), "DeviceFailed", "it failed")
    found = {
        (event["type"], event["reason"], event["involvedObject"]["name"])
        for event in cluster.list(EVENTS).items
    }
    assert found == {("Warning", "HeldAfterUse", "c"), ("Warning", "DeviceFailed", "p")}
    assert len(cluster.list(EVENTS).items) == 2


def test_who_waits_is_told_on_claim_and_pod() -> None:
    """The pod is where its owner looks first; it is no warning, since it may pass by itself."""
    cluster = MemoryCluster()
    tell = Telling(Events(cluster, "fleetscrub-coordinator", ManualClock(1e9)))
    pod = {"resource": "pods", "name": "p", "uid": "u-2"}
    claim = CLAIM | {"status": {"reservedFor": [pod]}}
    tell.waiting(read(claim, Marks("gpu.fleetscrub.dev")), "gpu-0 is wiped and checked")
    found = cluster.list(EVENTS).items
    assert {one["involvedObject"]["name"] for one in found} == {"c", "p"}
    assert {(one["type"], one["reason"]) for one in found} == {("Normal", "WaitForDevice")}
    assert all("gpu-0 is wiped and checked" in one["message"] for one in found)
    assert all("fleet claim show ns/c" in one["message"] for one in found)
