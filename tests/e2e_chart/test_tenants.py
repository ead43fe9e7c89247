"""Tenants who come, go and are taken away at once: nothing of one is seen by the next."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest

from fleet.kube.base import CLAIMS, NAMESPACES, Name, uid_of
from tests.e2e import workloads
from tests.e2e.polling import eventually, throughout
from tests.e2e.succession import deaf_pod, succession
from tests.e2e.workloads import COUNT, NOT_ZERO, program
from tests.e2e_chart.installation import PLUGIN, WORKER, Installation
from tests.e2e_chart.tenants import AWAY_S, WHICH, heir, tenant

pytestmark = pytest.mark.timeout(600)


def test_a_tenants_secret_is_gone_for_the_next(installation: Installation) -> None:
    """Promise 1: what tenant A wrote all over a device is gone when tenant B gets it."""
    secret, uuid = secrets.token_hex(16), installation.uuid("gpu-0")
    pod, _ = tenant(installation, secret, uuid)
    installation.delete(pod)
    heir(installation, secret, uuid)


def test_a_force_delete_hands_nothing_over(installation: Installation) -> None:
    """B01: after a force delete of a process deaf to SIGTERM the next pod gets the device only once
    that process is gone and the memory was wiped."""
    secret, uuid = secrets.token_hex(16), installation.uuid("gpu-0")
    old, old_uid, _ = deaf_pod(installation, uuid, secret)
    source = installation.claim_template(uuid=uuid)
    installation.force_delete(old)
    said = program(WHICH, COUNT, NOT_ZERO, "sleep 1", secret=secret)
    pod = installation.run(said, source)
    alive_at, exposed_at = succession(installation, old_uid, uid_of(installation.claim_of(pod)))
    assert 0 < alive_at < exposed_at
    assert installation.ended(pod) == [uuid, "0", "0"]


def test_a_tenant_outlives_the_workers_pod(installation: Installation) -> None:
    """The worker's pod is deleted while a tenant runs: the tenant goes on with its memory, another
    worker takes the node, and what the tenant leaves is wiped for the next."""
    secret, uuid = secrets.token_hex(16), installation.uuid("gpu-1")
    pod, memory = tenant(installation, secret, uuid)
    old = uid_of(installation.part(WORKER))
    installation.delete_part(WORKER)
    eventually(
        "another worker is there",
        lambda: (pods := installation.pods(WORKER)) and uid_of(pods[0]) != old,
        timeout_s=150,
        tell=installation.told_parts,
    )
    eventually(
        "every pod is ready",
        lambda: not installation.unready(),
        timeout_s=AWAY_S,
        tell=installation.told_parts,
    )
    assert workloads.phase(installation.pod(pod)) == "Running"
    assert secret.encode() in memory.read_bytes()
    installation.delete(pod)
    heir(installation, secret, uuid)


def test_a_namespace_goes_with_claims_in_use(installation: Installation) -> None:
    """A namespace is deleted while claims in it are in use: it ends, nothing of ours keeps it, and
    the devices are wiped for the next."""
    secret, uuid = secrets.token_hex(16), installation.uuid("gpu-2")
    name = f"gone-{secrets.token_hex(3)}"
    installation.cluster.create(NAMESPACES, workloads.namespace(name))
    other = replace(installation, namespace=name)
    tenant(other, secret, uuid)
    installation.site.run("kubectl", "delete", "namespace", name, "--wait=false")

    def gone() -> bool:
        return not installation.site.run("kubectl", "get", "namespace", name, "--ignore-not-found")

    eventually("the namespace is gone", gone, timeout_s=AWAY_S, period_s=1.0)
    heir(installation, secret, uuid)


def test_a_claim_deleted_while_the_plugin_is_away(installation: Installation) -> None:
    """B23: pod and claim are deleted while no plugin runs: the claim is not let go before
    its device is wiped, and once the plugin is back nothing is left."""
    secret, uuid = secrets.token_hex(16), installation.uuid("gpu-3")
    source = installation.named_claim(uuid=uuid)
    pod, memory = tenant(installation, secret, source)
    name = Name(source["resourceClaimName"], installation.namespace)
    selector = '{"spec":{"template":{"spec":{"nodeSelector":%s}}}}'
    daemon = ("patch", "daemonset", "fleetscrub-node-plugin", "--type=merge", "--patch")
    installation.kubectl(*daemon, selector % '{"away":"true"}')
    try:
        installation.kubectl("delete", "pod", "--force", "--grace-period=0", "--ignore-not-found",
                             "--selector=app.kubernetes.io/component=node-plugin")  # fmt: skip
        eventually("no plugin runs", lambda: not installation.pods(PLUGIN), timeout_s=90)
        installation.force_delete(pod)
        installation.cluster.delete(CLAIMS, name)
        throughout(
            "a claim that is gone leaves a wiped device",
            lambda: bool(installation.claims()) or not memory.read_bytes().strip(b"\0"),
            for_s=10,
        )
    finally:
        installation.kubectl(*daemon, selector % '{"away":null}')
    eventually("the claim is gone", lambda: not installation.claims(), timeout_s=AWAY_S,
               tell=installation.told_parts)  # fmt: skip
    assert not memory.read_bytes().strip(b"\0")
    heir(installation, secret, uuid)
