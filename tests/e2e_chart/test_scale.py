"""More devices than fit into one ResourceSlice, on one node."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import pytest

from fleet.kube.base import Name
from tests.e2e.polling import eventually
from tests.e2e.workloads import STAY, Wish, program
from tests.e2e_chart.changes import status
from tests.e2e_chart.installation import READY_S, Installation
from tests.e2e_chart.tenants import AWAY_S

pytestmark = pytest.mark.timeout(900)
MANY = 70
SIMULATE = {"enabled": True, "devices": MANY, "memory": "1MiB"}
CLAIM_MAX = 32
"""Devices that Kubernetes gives to one claim."""
OUT = 2
"""Devices taken out of service."""


@pytest.fixture(scope="module")
def crowd(release: Installation) -> Iterator[Installation]:
    """Installed anew as the chart says where `simulate.devices` changes: after an uninstallation,
    without the node's state. What is there afterwards is of no use to anybody else."""
    release.serve()
    release.uninstall()
    shutil.rmtree(release.plugin.state)
    release.extra = {"simulate": SIMULATE}
    began = time.monotonic()
    release.install()
    release.serve(timeout_s=2 * READY_S)
    release.figures.append(
        f"installed with {MANY} devices: all clean after {time.monotonic() - began:.1f} s"
    )
    yield release
    shutil.rmtree(release.scratch)


def devices(installation: Installation) -> list[str]:
    """Names of the published devices that tenants can have."""
    return [name for name in installation.published() if name.startswith("gpu-")]


def allocated(installation: Installation, pod: Name) -> set[str]:
    """Names of the devices that a pod's claim has."""
    found = installation.claim_of(pod)["status"]["allocation"]["devices"]["results"]
    return {one["device"] for one in found}


def test_all_devices_are_published(crowd: Installation) -> None:
    """Every device is in one complete pool of more than one slice, of one generation, once."""
    pools = [one["spec"]["pool"] for one in crowd.slices()]
    assert len(pools) > 1
    assert {one["resourceSliceCount"] for one in pools} == {len(pools)}
    assert len({(one["name"], one["generation"]) for one in pools}) == 1
    assert len(devices(crowd)) == MANY
    assert f"FIT: {MANY} devices on 1 node, all in service" in status(crowd)


def test_all_but_those_out_of_service_are_given(crowd: Installation) -> None:
    """Claims for all others get just these, a pod more waits until one of those is back, and
    everything is wiped in the end."""
    names = [
        [one["name"] for one in each["spec"].get("devices") or [] if one["name"] in devices(crowd)]
        for each in crowd.slices()
    ]
    out = {each[0] for each in names if each}
    assert len(out) == OUT, "one of each slice"
    for one in sorted(out):
        words = ("quarantine", "add", one, "--node", crowd.plugin.node, "--reason", "looked at")
        crowd.head("fleet", *words)
    eventually(
        "both are tainted",
        lambda: all("quarantined" in crowd.taints(one) for one in out),
        timeout_s=30,
    )
    began = time.monotonic()
    pods = [
        crowd.run(program(STAY), crowd.claim_template(Wish(count=count)))
        for count in (CLAIM_MAX, CLAIM_MAX, MANY - OUT - 2 * CLAIM_MAX)
    ]
    for pod in pods:
        crowd.in_phase(pod, "Running", timeout_s=AWAY_S)
    crowd.figures.append(
        f"{MANY - OUT} devices wiped for {len(pods)} pods: {time.monotonic() - began:.1f} s"
    )
    given = [name for pod in pods for name in allocated(crowd, pod)]
    assert sorted(given) == sorted({*devices(crowd)} - out)
    late = crowd.run(program(STAY), crowd.claim_template())
    eventually(
        "the scheduler has nothing for one more",
        lambda: "cannot allocate all claims" in crowd.unscheduled(late),
        timeout_s=30,
    )
    back, other = sorted(out)
    for one in (back, other):
        words = ("quarantine", "clear", one, "--node", crowd.plugin.node, "--reason", "it is well")
        crowd.head("fleet", *words)
        if one == back:
            crowd.in_phase(late, "Running", timeout_s=AWAY_S)
            assert allocated(crowd, late) == {back}
    crowd.clean()
    assert f"FIT: {MANY} devices on 1 node, all in service" in status(crowd)
