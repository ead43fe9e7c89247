"""ResourceSlices on a real cluster, and what the scheduler does with them."""

from __future__ import annotations

import secrets

import pytest

from fleet.kube.base import NODES, Name, uid_of
from fleet.kube.marks import Marks
from tests.e2e.ground import Ground
from tests.e2e.plugin_process import DEVICES, DRIVER
from tests.e2e.polling import eventually
from tests.e2e.workloads import FILL, NOT_ZERO, STAY, container, phase, program

pytestmark = pytest.mark.e2e

FAULT = "counter-unread"
"""Lasts until it is taken back, and a retest may lift what it led to."""


def test_slices_list_every_device_with_its_attributes(ground: Ground) -> None:
    """B7, C4, E1: one complete pool owned by the Node; devices exclusive, described alike, and
    untainted only because they are clean."""
    slices = ground.slices()
    node = ground.cluster.get(NODES, Name(ground.plugin.node))
    assert [one["spec"]["pool"]["resourceSliceCount"] for one in slices] == [1]
    owners = slices[0]["metadata"]["ownerReferences"]
    assert [(owner["kind"], owner["uid"]) for owner in owners] == [("Node", uid_of(node))]
    devices = list(ground.published().values())
    assert sorted(one["name"] for one in devices) == [f"gpu-{i}" for i in range(DEVICES)]
    assert len({one["attributes"]["uuid"]["string"] for one in devices}) == DEVICES
    for one in devices:
        assert one["allowMultipleAllocations"] is False
        assert one["attributes"].keys() == devices[0]["attributes"].keys()
        assert one["attributes"]["simulated"] == {"bool": True}
        assert one["attributes"]["sanitizationProfile"] == {"string": "fast"}
        assert one["attributes"]["resource.kubernetes.io/pcieRoot"]["string"]


def test_an_exposed_device_is_held_until_it_is_clean_again(ground: Ground) -> None:
    """B7, DESIGN 5: while a pod uses a device our hold keeps its allocation, with no slice write;
    afterwards hold, finalizer and claim go by themselves."""
    marks = Marks(DRIVER)
    pod = ground.run(program(STAY), ground.claim_template(uuid=ground.uuid("gpu-3")))
    ground.in_phase(pod, "Running")
    claim = ground.claim_of(pod)
    assert [marks.is_hold(entry) for entry in claim["status"]["reservedFor"]].count(True) == 1
    assert marks.finalizer in claim["metadata"]["finalizers"]
    assert ground.taints("gpu-3") == ground.taints("gpu-2") == set()
    ground.delete(pod)
    eventually(
        "the claim is gone",
        lambda: uid_of(claim) not in {uid_of(one) for one in ground.claims()},
        timeout_s=10,
    )
    assert ground.taints("gpu-3") == set()


@pytest.mark.timeout(300)
def test_a_quarantined_device_is_not_allocated(ground: Ground) -> None:
    """D4, promise 6: a fault leaves the running pod alone, taints the device, keeps it from new
    pods also when the claim has ended, and no longer once a full pass succeeds."""
    secret = secrets.token_hex(16)
    device = ground.uuid("gpu-1")
    tenant = ground.run(program(FILL, STAY, secret=secret), ground.claim_template(uuid=device))
    ground.in_phase(tenant, "Running")
    eventually("kubelet shows it", lambda: health(ground, tenant) == ["Healthy"], timeout_s=30)
    ground.plugin.fault(FAULT, "gpu-1")
    try:
        eventually("it is tainted", lambda: "quarantined" in ground.taints("gpu-1"), timeout_s=20)
        assert phase(ground.pod(tenant)) == "Running"
        eventually(
            "the pod's status says so", lambda: "Unhealthy" in health(ground, tenant), timeout_s=30
        )
        ground.delete(tenant)
        assert "quarantined" in ground.taints("gpu-1")
        heir = ground.run(
            program("say $FLEETSCRUB_DEVICE", NOT_ZERO), ground.claim_template(uuid=device)
        )
        other = ground.run(program("say $FLEETSIM_DEVICE"), ground.claim_template())
        assert ground.ended(other) != ["gpu-1"]
        eventually(
            "the scheduler has nothing for the pod",
            lambda: "cannot allocate all claims" in ground.unscheduled(heir),
            timeout_s=20,
        )
        assert phase(ground.pod(heir)) == "Pending"
    finally:
        ground.plugin.fault(FAULT, "gpu-1", "--clear")
    assert ground.ended(heir, timeout_s=60) == [device, "0"]


def test_an_operator_decides_while_the_node_serves(ground: Ground) -> None:
    """Promise 6: quarantined by hand a device is tainted at once and stays so; cleared by hand it
    is wiped before anybody gets it."""
    device = ground.uuid("gpu-3")
    reason = ("--reason", "bad solder", "--operator", "e2e")
    ground.plugin.command("quarantine", "add", "gpu-3", *reason)
    eventually("it is tainted", lambda: "quarantined" in ground.taints("gpu-3"), timeout_s=10)
    heir = ground.run(program("say $FLEETSCRUB_DEVICE"), ground.claim_template(uuid=device))
    eventually(
        "the scheduler has nothing for the pod",
        lambda: "cannot allocate all claims" in ground.unscheduled(heir),
        timeout_s=20,
    )
    before = len(ground.plugin.certificates("gpu-3"))
    ground.plugin.command(
        "quarantine", "clear", "gpu-3", "--reason", "seen to", "--operator", "e2e"
    )
    assert ground.ended(heir) == [device]
    assert len(ground.plugin.certificates("gpu-3")) > before


def health(ground: Ground, pod: Name) -> list[str]:
    """Health of the pod's devices, as kubelet shows it in the pod's status."""
    found = container(ground.pod(pod)).get("allocatedResourcesStatus") or []
    return [str(one["health"]) for status in found for one in status["resources"]]
