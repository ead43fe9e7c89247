"""The chart was installed by Helm on a cluster with nothing in it: what an operator sees then."""

from __future__ import annotations

import json

import pytest

from fleet.kube.base import uid_of
from tests.e2e.workloads import NOT_ZERO, Wish, program
from tests.e2e_chart.installation import DEVICES, MEMORY_BYTES, RELEASE, Installation

pytestmark = pytest.mark.timeout(600)


def test_helm_lists_what_it_installed(installation: Installation) -> None:
    """The release is deployed, the store was made once by its hook, and the classes are there."""
    (listed,) = json.loads(installation.helm("list", "--output", "json"))
    assert (listed["name"], listed["status"]) == (RELEASE, "deployed")
    done = installation.kubectl(
        "get", "job", f"{RELEASE}-store", "--output", "jsonpath={.status.succeeded}"
    )
    assert done == "1"
    classes = installation.kubectl("get", "deviceclasses", "--output", "name").split()
    assert {one.rpartition("/")[2] for one in classes} >= {
        "gpu.fleetscrub.dev",
        "gpu-multi-tenant.fleetscrub.dev",
        "agent.gpu.fleetscrub.dev",
    }


def test_nothing_was_started_twice(installation: Installation) -> None:
    """No container of the release ended by itself on the way to being ready."""
    again = {
        f"{one['metadata']['name']} {each['name']}": each["restartCount"]
        for one in installation.pods()
        for each in one["status"].get("containerStatuses") or []
        if each["restartCount"]
    }
    assert again == {}


def test_status_is_good(installation: Installation) -> None:
    """`fleet status` in the standby's container ends with 0 and says how many devices serve."""
    assert f"FIT: {DEVICES} devices on 1 node, all in service" in installation.fleet("status")


def test_a_strict_pod_is_wiped_for_and_runs(installation: Installation) -> None:
    """A pod on a strict pool gets a device that was wiped under its own token, and finds zeros."""
    uuid = installation.uuid("gpu-0")
    source = installation.claim_template(Wish(uuid=uuid))
    pod = installation.run(program("say $FLEETSCRUB_DEVICE $N", NOT_ZERO, "sleep 2"), source)
    claim = uid_of(installation.claim_of(pod))
    assert installation.ended(pod) == [uuid, str(MEMORY_BYTES), "0"]
    wiped_for = [one.predicate["claim"] for one in installation.plugin.certificates("gpu-0")]
    assert claim in wiped_for
