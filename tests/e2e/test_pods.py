"""Pods with claims on a real cluster: what a container gets, what the next must not find."""

from __future__ import annotations

import json
import secrets

import pytest

from fleet.kube.base import CLAIMS, PODS, Name, uid_of
from tests.e2e import workloads
from tests.e2e.ground import Ground
from tests.e2e.plugin_process import DRIVER, MEMORY_BYTES
from tests.e2e.polling import eventually, throughout
from tests.e2e.workloads import COUNT, FILL, NOT_ZERO, STAY, Wish, program

pytestmark = pytest.mark.e2e


def test_a_pod_gets_its_device_through_cdi(ground: Ground) -> None:
    """A5, A6: a container finds its device's variables, node and memory, and no other device's."""
    source = ground.claim_template(uuid=ground.uuid("gpu-2"))
    look = 'say "$FLEETSIM_DEVICE" "$FLEETSCRUB_DEVICE" "$N" $(ls /dev/fleetsim)'
    pod = ground.run(program(look, '[ -c "$M.node" ] && say node', 'echo x > "$M.node"'), source)
    said = ground.ended(pod)
    uuid = ground.uuid("gpu-2")
    assert said == ["gpu-2", uuid, str(MEMORY_BYTES), "gpu-2", "gpu-2.node", "node"]


def test_the_spec_exists_as_long_as_the_claim_is_prepared(ground: Ground) -> None:
    """Promise 3: one spec, named after the claim's UID, while the pod runs; none afterwards."""
    pod = ground.run(program(STAY), ground.claim_template())
    ground.in_phase(pod, "Running")
    uid = uid_of(ground.claim_of(pod))
    assert ground.plugin.specs() == [ground.plugin.spec(uid).name]
    spec = json.loads(ground.plugin.spec(uid).read_text())
    assert [one["name"].startswith(uid) for one in spec["devices"]] == [True]
    ground.delete(pod)
    assert ground.plugin.specs() == []


def test_a_secret_of_one_pod_is_not_visible_to_the_next(ground: Ground) -> None:
    """Promise 1: what pod A wrote all over the memory, and read back, is gone for pod B."""
    secret = secrets.token_hex(16)
    device = ground.uuid("gpu-0")
    first = ground.run(
        program(FILL, COUNT, NOT_ZERO, secret=secret), ground.claim_template(uuid=device)
    )
    lines = MEMORY_BYTES // (len(secret) + 1)
    count, filled = map(int, ground.ended(first))
    assert count in (lines, lines + 1)
    assert filled == MEMORY_BYTES
    ground.delete(first)
    second = ground.run(
        program("say $FLEETSCRUB_DEVICE", COUNT, NOT_ZERO, secret=secret),
        ground.claim_template(uuid=device),
    )
    assert ground.ended(second) == [device, "0", "0"]


def test_a_restarted_container_finds_its_device_again(ground: Ground) -> None:
    """A4, invariant 27: a restart resolves the same CDI ids, nothing was wiped meanwhile."""
    secret = secrets.token_hex(16)
    told = 'say again "$FLEETSIM_DEVICE" $(ls /dev/fleetsim); exit 0'
    again = f'if grep -q {{secret}} "$M"; then {told}; fi'
    pod = ground.run(
        program(again, FILL, "say first", "exit 1", secret=secret),
        ground.claim_template(uuid=ground.uuid("gpu-1")),
        restart="OnFailure",
    )
    assert ground.ended(pod) == ["again", "gpu-1", "gpu-1", "gpu-1.node"]
    status = workloads.container(ground.pod(pod))
    assert status["restartCount"] == 1
    assert workloads.said(status["lastState"]) == ["first"]


def test_a_shared_claim_is_torn_down_after_its_last_pod(ground: Ground) -> None:
    """Two pods of one claim share a device; it is wiped only once both are gone (promise 4)."""
    secret = secrets.token_hex(16)
    source = ground.named_claim(uuid=ground.uuid("gpu-3"))
    first = ground.run(program(FILL, STAY, secret=secret), source)
    ground.in_phase(first, "Running")
    second = ground.run(program(STAY), source)
    ground.in_phase(second, "Running")
    claim = ground.cluster.get(CLAIMS, Name(source["resourceClaimName"], ground.namespace))
    ground.delete(first)
    memory = ground.memory(uid_of(claim))
    assert [one.state for one in ground.plugin.claims() or ()] == ["PREPARED"]
    assert secret.encode() in memory.read_bytes()
    assert ground.plugin.spec(uid_of(claim)).exists()
    ground.delete(second)
    eventually("the claim is torn down", lambda: ground.plugin.claims() == (), timeout_s=10)
    assert memory.read_bytes() == bytes(MEMORY_BYTES)


def test_one_claim_may_have_several_devices(ground: Ground) -> None:
    """A6: a container gets the nodes and memory of each device of its claim, and of no other."""
    pod = ground.run(program("say $(ls /dev/fleetsim)"), ground.claim_template(Wish(count=3)))
    devices = [one for one in ground.ended(pod) if not one.endswith(".node")]
    assert len(devices) == 3


def test_a_claim_may_demand_its_own_wipe(ground: Ground) -> None:
    """B3, C2: with profile strict in its configuration a claim is exposed only after a wipe under
    its own token, whatever the node's profile accepts."""
    wish = Wish(
        uuid=ground.uuid("gpu-2"),
        parameters={
            "apiVersion": "fleetscrub.dev/v1",
            "kind": "SanitizationConfig",
            "profile": "strict",
        },
    )
    before = len(ground.plugin.certificates("gpu-2"))
    pod = ground.run(program(STAY), ground.claim_template(wish))
    ground.in_phase(pod, "Running")
    newest = ground.plugin.certificates("gpu-2")
    (lease,) = ground.plugin.leases()
    assert len(newest) == before + 1
    assert newest[-1].token == lease.token
    assert newest[-1].predicate["claim"] == uid_of(ground.claim_of(pod))


def test_a_claim_that_asks_for_less_is_refused_aloud(ground: Ground) -> None:
    """C2, invariant 15: the pod's event says what is wrong with the configuration; nothing is
    exposed, and deleting the pod leaves nothing."""
    wish = Wish(parameters={"apiVersion": "fleetscrub.dev/v1", "kind": "Retain"})
    pod = ground.run(program(STAY), ground.claim_template(wish))
    told = eventually(
        "an event of the pod says why",
        lambda: [text for text in ground.events(pod) if "SanitizationConfig" in text],
        timeout_s=100,
        tell=lambda: ground.told(pod),
    )
    assert "Retain" in told[0]
    assert ground.plugin.specs() == []
    ground.delete(pod)


@pytest.mark.timeout(300)
def test_who_looks_into_a_device_holds_up_its_wipe(ground: Ground) -> None:
    """B35: a claim with adminAccess sees the tenant's memory; the tenant's teardown waits for it,
    and nothing is wiped under its eyes."""
    secret = secrets.token_hex(16)
    device = ground.uuid("gpu-0")
    tenant = ground.run(program(FILL, STAY, secret=secret), ground.claim_template(uuid=device))
    tenant_uid = uid_of(ground.in_phase(tenant, "Running"))
    memory = ground.memory(uid_of(ground.claim_of(tenant)))
    wish = Wish(uuid=device, admin=True, tolerated=(f"{DRIVER}/not-clean",))
    seen = 'grep -q {secret} "$M" || exit 1'
    watcher = ground.run(program(seen, STAY, secret=secret), ground.claim_template(wish))
    ground.in_phase(watcher, "Running")
    ground.cluster.delete(PODS, tenant)
    eventually("the tenant's process ends", lambda: not ground.alive(tenant_uid), timeout_s=40)
    throughout(
        "the tenant's teardown waits, and the watcher sees the memory as it was",
        lambda: bool(ground.pod(tenant)) and secret.encode() in memory.read_bytes(),
        for_s=3.0,
    )
    states = sorted(one.state for one in ground.plugin.claims() or ())
    assert states == ["PREPARED", "UNPREPARING"]
    assert workloads.phase(ground.pod(watcher)) == "Running"
    ground.delete(watcher)
    ground.gone(tenant)
    eventually("it is wiped", lambda: not memory.read_bytes().strip(b"\0"), timeout_s=30)
