"""Scheduler and claim controller in small, over the in-memory API server."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.kube.base import CLAIMS, PODS, SLICES, Name, Object, uid_of
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.kubelet.control import FINALIZER, ControlPlane
from tests.lab.kubelet.fake_site import NODE, slice_of

CLAIM, POD = Name("c", "ns"), Name("p", "ns")


def device(name: str, *taints: str, **more: Any) -> dict[str, Any]:
    found = {"name": name, "capacity": {"memory": {"value": "1Gi"}}, **more}
    if taints:
        found["taints"] = [{"key": "x.example.com/t", "effect": effect} for effect in taints]
    return found


@pytest.fixture
def control() -> ControlPlane:
    return ControlPlane(MemoryCluster(), node=NODE, now=lambda: 1_780_000_000.0)


def offer(control: ControlPlane, *devices: dict[str, Any]) -> None:
    control.cluster.create(SLICES, slice_of("s0", list(devices)))


def used(control: ControlPlane) -> tuple[Object, Object]:
    """(claim, pod): allocated the first free device, and bound."""
    control.create_claim(CLAIM)
    pod = control.create_pod(POD, claim=CLAIM.name)
    claim = control.allocate(CLAIM, pod, control.free()[0])
    return claim, control.bind(POD)


def names(control: ControlPlane) -> list[str]:
    return [seen.name for seen in control.free()]


def test_only_devices_that_may_be_allocated_are_free(control: ControlPlane) -> None:
    """Promise 6: tainted devices, devices without memory and allocated ones are not given."""
    offer(
        control,
        device("d0", "NoSchedule"),
        device("d1", "NoExecute"),
        device("d2", "None"),
        device("d3"),
        {"name": "agent"},
    )
    assert names(control) == ["d2", "d3"]
    used(control)
    assert names(control) == ["d3"]


def test_an_incomplete_pool_gives_nothing(control: ControlPlane) -> None:
    """Reference 2.2: only the highest generation counts, and only when all its slices are there."""
    offer(control, device("old"))
    control.cluster.create(SLICES, slice_of("s1", [device("d0")], generation=2, count=2))
    assert names(control) == []
    control.cluster.create(SLICES, slice_of("s2", [device("d1")], generation=2, count=2))
    assert names(control) == ["d0", "d1"]


def test_an_allocation_looks_as_the_schedulers(control: ControlPlane) -> None:
    """Experiments 1: finalizer, result, node, time and reservation; conditions are copied."""
    conditions = {"bindingConditions": ["a.b/Ok"], "bindingFailureConditions": ["a.b/Bad"]}
    offer(control, device("d0", **conditions))
    claim, pod = used(control)
    status = claim["status"]
    (result,) = status["allocation"]["devices"]["results"]
    assert (result["request"], result["pool"], result["device"]) == ("gpu", NODE, "d0")
    assert result["bindingConditions"] == ["a.b/Ok"]
    assert claim["metadata"]["finalizers"] == [FINALIZER]
    assert status["reservedFor"] == [{"resource": "pods", "name": "p", "uid": uid_of(pod)}]
    assert status["allocation"]["allocationTimestamp"] == "2026-05-28T20:26:40Z"
    assert pod["spec"]["nodeName"] == NODE


def test_a_pod_waits_for_the_binding_conditions(control: ControlPlane) -> None:
    """Reference 3: all of them True, for each device that has any."""
    conditions = {"bindingConditions": ["a.b/Ok"], "bindingFailureConditions": ["a.b/Bad"]}
    offer(control, device("d0", **conditions))
    claim, _ = used(control)
    assert not control.ready(CLAIM)
    for value, ready in (("False", False), ("True", True)):
        entry = {
            "driver": "gpu.example.com",
            "pool": NODE,
            "device": "d0",
            "conditions": [
                {
                    "type": "a.b/Ok",
                    "status": value,
                    "reason": "R",
                    "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
        }
        body = {
            "apiVersion": CLAIMS.api_version,
            "kind": CLAIMS.kind,
            "metadata": {"name": "c", "namespace": "ns", "uid": uid_of(claim)},
            "status": {"devices": [entry]},
        }
        control.cluster.apply(CLAIMS, body, manager="m", subresource="status")
        assert control.ready(CLAIM) is ready


def test_configuration_goes_into_the_allocation(control: ControlPlane) -> None:
    """Reference 2.4: the claim's opaque parameters arrive where the plugin reads them."""
    offer(control, device("d0"))
    parameters = {"driver": "gpu.example.com", "parameters": {"kind": "K"}}
    control.create_claim(CLAIM, parameters=parameters)
    pod = control.create_pod(POD, claim=CLAIM.name)
    claim = control.allocate(CLAIM, pod, control.free()[0])
    (entry,) = claim["status"]["allocation"]["devices"]["config"]
    assert (entry["source"], entry["opaque"]) == ("FromClaim", parameters)


def test_a_pod_that_ends_frees_its_claim(control: ControlPlane) -> None:
    """Reference 4: the update that drops the last reservation deallocates; then it can go."""
    offer(control, device("d0"))
    used(control)
    control.mark_deleted(POD)
    control.settle()
    assert names(control) == [], "the object is there until kubelet has ended the pod"
    control.erase(POD)
    control.settle()
    assert names(control) == ["d0"]
    assert control.cluster.get(CLAIMS, CLAIM)["metadata"].get("finalizers", []) == []
    control.delete_claim(CLAIM)
    assert control.cluster.list(CLAIMS).items == ()


def test_a_forced_deletion_frees_the_claim_at_once(control: ControlPlane) -> None:
    """B01: the pod's object is gone with one call, whatever still runs."""
    offer(control, device("d0"))
    used(control)
    control.erase(POD, phase="Failed")
    assert control.cluster.list(PODS).items == ()
    control.settle()
    assert names(control) == ["d0"]


def test_a_reservation_of_another_kind_keeps_the_allocation(control: ControlPlane) -> None:
    """Experiments 9: a foreign entry holds the device after its pod; removing it lets it go."""
    offer(control, device("d0"))
    claim, _ = used(control)
    body = {
        "apiVersion": CLAIMS.api_version,
        "kind": CLAIMS.kind,
        "metadata": {"name": "c", "namespace": "ns"},
        "status": {
            "reservedFor": [
                {"apiGroup": "x.example.com", "resource": "holds", "name": "h", "uid": "h1"}
            ]
        },
    }
    control.cluster.apply(CLAIMS, body, manager="hold", subresource="status")
    control.erase(POD)
    control.settle()
    control.delete_claim(CLAIM)
    control.settle()
    assert names(control) == []
    assert [e["uid"] for e in control.cluster.get(CLAIMS, CLAIM)["status"]["reservedFor"]] == ["h1"]
    body["status"] = {"reservedFor": []}
    control.cluster.apply(CLAIMS, body, manager="hold", subresource="status")
    control.settle()
    assert names(control) == ["d0"]
    assert control.cluster.list(CLAIMS).items == ()
    assert uid_of(claim)


def test_settling_twice_writes_nothing(control: ControlPlane) -> None:
    """A controller at rest is silent."""
    offer(control, device("d0"))
    used(control)
    cluster = control.cluster
    assert isinstance(cluster, MemoryCluster)
    control.settle()
    before = len(cluster.writes())
    control.settle()
    assert len(cluster.writes()) == before


def test_slices_of_one_driver_or_of_all_are_deleted(control: ControlPlane) -> None:
    """B34: as kubelet deletes them."""
    offer(control, device("d0"))
    control.delete_slices("other.example.com")
    assert names(control) == ["d0"]
    control.delete_slices("")
    assert control.devices() == ()
