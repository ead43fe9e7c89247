"""kill -9 of every part, one at a time, while tenants run, start and end (promise 7)."""

from __future__ import annotations

import secrets
import time

import pytest

from fleet.kube.base import PODS, uid_of
from tests.e2e import workloads
from tests.e2e.polling import eventually
from tests.e2e.workloads import STAY, Wish, program
from tests.e2e_chart.installation import HEAD, PLUGIN, WORKER, Installation
from tests.e2e_chart.tenants import heir, tenant

pytestmark = pytest.mark.timeout(600)
PROCESSES = {
    "plugin": (PLUGIN, "fleet-node-plugin"),
    "standby": (WORKER, "fleet node standby"),
    "bridge": (WORKER, "actors.bridge"),
    "node-actor": (WORKER, "ray::NodeActor"),
    "raylet": (WORKER, "raylet/raylet "),
    "coordinator": (HEAD, "ray::CoordinatorActor"),
    "head": (HEAD, "ray start --head"),
}
SLOW = ("slow-memory", "gpu-0")
RATE = ("--set", "bytes_per_s=4000000")
"""16 MiB take 4 s a pass: long enough to be met, not so long that it is a fault."""
WORK_S = 60.0


@pytest.mark.parametrize("killed", PROCESSES)
def test_f77_a_tenant_outlives_what_is_killed(installation: Installation, killed: str) -> None:
    """Promise 7, F77: kill -9 of a part while a tenant runs: the tenant goes on and ends, with the
    part perhaps still away; the next one runs on the same device and finds zeros."""
    secret, uuid = secrets.token_hex(16), installation.uuid("gpu-0")
    pod, memory = tenant(installation, secret, uuid)
    part, words = PROCESSES[killed]
    began = time.monotonic()
    installation.kill(part, words)
    assert workloads.phase(installation.pod(pod)) == "Running"
    assert secret.encode() in memory.read_bytes()
    installation.delete(pod, timeout_s=120)
    gone = time.monotonic() - began
    heir(installation, secret, uuid)
    installation.figures.append(
        f"kill -9 of {killed}: tenant gone after {gone:.1f} s,"
        f" the next on its device after {time.monotonic() - began:.1f} s"
    )


def test_kubelet_is_killed_under_a_tenant(installation: Installation) -> None:
    """kill -9 of kubelet while a claim is prepared: the tenant goes on, ends normally, and what it
    wrote is wiped for the next."""
    secret, uuid = secrets.token_hex(16), installation.uuid("gpu-1")
    pod, _ = tenant(installation, secret, uuid)
    with installation.away(installation.kubelet):
        assert workloads.phase(installation.pod(pod)) == "Running"
    installation.delete(pod, timeout_s=120)
    heir(installation, secret, uuid)


def test_kubelet_is_killed_in_the_middle_of_a_prepare(installation: Installation) -> None:
    """kill -9 of kubelet once the node has a record of the claim and before the pod runs: the pod
    runs after kubelet is back, prepared again, and finds zeros."""
    uuid = installation.uuid("gpu-0")
    pod = installation.run(program(STAY), installation.claim_template(uuid=uuid))
    eventually(
        "the node has a record of the claim",
        installation.plugin.claims,
        timeout_s=WORK_S,
        period_s=0.005,
        tell=lambda: installation.told(pod),
    )
    with installation.away(installation.kubelet):
        assert workloads.phase(installation.pod(pod)) == "Pending"
    installation.in_phase(pod, "Running", timeout_s=200)
    assert [one.state for one in installation.plugin.claims() or ()] == ["PREPARED"]
    installation.delete(pod)


def test_kubelet_is_killed_in_the_middle_of_a_teardown(installation: Installation) -> None:
    """kill -9 of kubelet while a tenant's device is wiped: the wipe goes on, and once kubelet is
    back the pod goes and nothing is left of it."""
    secret, uuid = secrets.token_hex(16), installation.uuid("gpu-0")
    pod, _ = tenant(installation, secret, uuid)
    installation.plugin.fault(*SLOW, *RATE)
    try:
        installation.cluster.delete(PODS, pod)
        eventually(
            "the teardown's wipe is under way",
            lambda: (found := installation.plugin.device("gpu-0")) and found.state == "WIPING",
            timeout_s=WORK_S,
            tell=lambda: installation.told(pod),
        )
        with installation.away(installation.kubelet):
            assert installation.pod(pod)
    finally:
        installation.plugin.fault("slow-memory", "gpu-0", "--clear")
    installation.gone(pod, timeout_s=200)
    heir(installation, secret, uuid)


def test_the_scheduler_is_killed_while_a_pod_waits(installation: Installation) -> None:
    """kill -9 of the scheduler while it waits for a device to be wiped for a claim: once it is back
    the pod runs, on one device, under one lease."""
    wish = Wish(uuid=installation.uuid("gpu-0"))
    installation.plugin.fault(*SLOW, *RATE)
    try:
        pod = installation.run(program(STAY), installation.claim_template(wish))
        eventually(
            "the wipe for the claim is under way",
            lambda: (found := installation.plugin.device("gpu-0")) and found.state == "WIPING",
            timeout_s=WORK_S,
            tell=lambda: installation.told(pod),
        )
        with installation.away(installation.scheduler):
            assert workloads.phase(installation.pod(pod)) == "Pending"
    finally:
        installation.plugin.fault("slow-memory", "gpu-0", "--clear")
    installation.in_phase(pod, "Running", timeout_s=200)
    claim = uid_of(installation.claim_of(pod))
    assert [one.uid for one in installation.plugin.claims() or ()] == [claim]
    assert len(installation.plugin.leases()) == 1
    installation.delete(pod)
