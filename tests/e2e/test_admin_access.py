"""Who may look into devices of others: the node decides, whatever the server let through."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest

from fleet.kube.base import Name, Selection
from tests.e2e import workloads
from tests.e2e.ground import Ground
from tests.e2e.polling import eventually
from tests.e2e.workloads import STAY, Wish, program

pytestmark = pytest.mark.e2e


@pytest.mark.timeout(300)
def test_f60_the_label_of_a_namespace_lets_nobody_look_into_devices(ground: Ground) -> None:
    """F60: a namespace that carries the label for admin access, and is not one that may look, is
    let into no device: the scheduler allocates and the node refuses, in use by others or not."""
    tenant = ground.run(program(STAY), ground.claim_template(uuid=ground.uuid("gpu-1")))
    ground.in_phase(tenant, "Running")
    before = ground.plugin.specs()
    name = f"fleet-e2e-{secrets.token_hex(3)}"
    ground.cluster.create(workloads.NAMESPACES, workloads.namespace(name))
    try:
        other = replace(ground, namespace=name)
        eventually("an account", lambda: _has_account(other), timeout_s=30)
        for uuid in ("", ground.uuid("gpu-1")):
            pod = other.run(program("say no"), other.claim_template(Wish(admin=True, uuid=uuid)))
            assert name in refusal(other, pod)
            assert other.pod(pod)["status"]["phase"] == "Pending"
            assert ground.plugin.specs() == before
            other.delete(pod)
    finally:
        ground.cluster.delete(workloads.NAMESPACES, Name(name))
    ground.delete(tenant)


def refusal(ground: Ground, pod: Name) -> str:
    """What the pod's events say, once the node has refused its claim."""
    return eventually(
        "the node refuses",
        lambda: next((one for one in ground.events(pod) if "may not look" in one), ""),
        timeout_s=60,
        tell=lambda: ground.told(pod),
    )


def _has_account(ground: Ground) -> bool:
    listed = ground.cluster.list(workloads.ACCOUNTS, Selection(namespace=ground.namespace))
    return bool(listed.items)
