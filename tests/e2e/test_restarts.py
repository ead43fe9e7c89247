"""Processes that die, are stopped or are replaced while pods run (promise 7)."""

from __future__ import annotations

import os
import secrets
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from fleet.kube.base import CLAIMS, PODS, Name, PatchKind, uid_of
from tests.e2e.ground import Ground
from tests.e2e.plugin_process import DRIVER, MEMORY_BYTES, PluginProcess
from tests.e2e.polling import eventually
from tests.e2e.workloads import FILL, STAY, Wish, phase, program

pytestmark = pytest.mark.e2e

STANDBY_S = 20.0
"""Time, s, until a new standby owns the node: a pause of 1 s, 3 s of silence, the start."""
HANG_S = 120.0
"""Time, s, until an owner that hangs has been replaced."""


def test_pods_outlive_the_plugin(ground: Ground) -> None:
    """B10, invariants 3 and 20: kill -9 and restart under a running pod; it goes on, keeps its
    memory, ends normally and leaves nothing."""
    secret = secrets.token_hex(16)
    pod = ground.run(program(FILL, STAY, secret=secret), ground.claim_template())
    ground.in_phase(pod, "Running")
    claim_uid = uid_of(ground.claim_of(pod))
    ground.plugin.kill()
    assert ground.plugin.spec(claim_uid).exists()
    ground.plugin.start()
    eventually("it serves again", ground.plugin.serves, timeout_s=30, tell=ground.plugin.told)
    assert phase(ground.pod(pod)) == "Running"
    assert [one.state for one in ground.plugin.claims() or ()] == ["PREPARED"]
    memory = ground.memory(claim_uid)
    assert secret.encode() in memory.read_bytes()
    ground.delete(pod)
    assert memory.read_bytes() == bytes(MEMORY_BYTES)


@pytest.mark.timeout(400)
def test_a_prepare_cut_off_is_done_by_the_next_try(ground: Ground) -> None:
    """Invariants 16 and 17: kill -9 in the middle of a wipe for a claim; nothing is exposed, and
    kubelet's own retry, 60 to 90 s later, ends well with a wipe from the start."""
    wish = Wish(
        uuid=ground.uuid("gpu-0"),
        parameters={
            "apiVersion": "fleetscrub.dev/v1",
            "kind": "SanitizationConfig",
            "profile": "strict",
        },
    )
    ground.plugin.fault("slow-memory", "gpu-0", "--set", "bytes_per_s=500000")
    try:
        pod = ground.run(program("say $FLEETSIM_DEVICE"), ground.claim_template(wish))
        eventually(
            "the wipe for the claim is under way",
            lambda: (found := ground.plugin.device("gpu-0")) and found.state == "WIPING",
            timeout_s=30,
            tell=lambda: ground.told(pod),
        )
        assert ground.plugin.specs() == []
        ground.plugin.kill()
    finally:
        ground.plugin.fault("slow-memory", "gpu-0", "--clear")
    ground.plugin.start()
    assert ground.ended(pod, timeout_s=200) == ["gpu-0"]


def test_a_lost_spec_is_written_again_at_the_start(ground: Ground) -> None:
    """Invariant 9: specs that vanished while the plugin was away are there again, kubelet unasked,
    and a container that restarts then resolves its device."""
    again = 'if [ -n "$(tr -d "\\0" < "$M" | head -c 1)" ]; then say again; exit 0; fi'
    wait = 'echo first 1<>"$M"; trap "exit 1" TERM; sleep 3600 & wait'
    source = ground.claim_template()
    pod = ground.run(program(again, wait), source, restart="OnFailure")
    pod_uid = uid_of(ground.in_phase(pod, "Running"))
    spec = ground.plugin.spec(uid_of(ground.claim_of(pod)))
    before = spec.read_bytes()
    ground.plugin.kill()
    spec.unlink()
    ground.plugin.start()
    eventually("the spec is back", spec.exists, timeout_s=30, tell=ground.plugin.told)
    assert spec.read_bytes() == before
    ground.signal(pod_uid, signal.SIGTERM)
    assert ground.ended(pod) == ["again"]


def test_a_claim_deleted_while_the_plugin_is_down(ground: Ground) -> None:
    """B23: pod and claim are deleted while the plugin is away. Our hold keeps the claim; somebody
    takes that off by force. The device is wiped and free afterwards, with the claim gone.
    """
    secret = secrets.token_hex(16)
    source = ground.named_claim(uuid=ground.uuid("gpu-1"))
    pod = ground.run(program(FILL, STAY, secret=secret), source)
    ground.in_phase(pod, "Running")
    name = Name(source["resourceClaimName"], ground.namespace)
    memory = ground.memory(uid_of(ground.cluster.get(CLAIMS, name)))
    ground.plugin.kill()
    ground.force_delete(pod)
    ground.cluster.delete(CLAIMS, name)
    (kept,) = ground.claims()
    assert kept["metadata"]["deletionTimestamp"]
    ground.cluster.patch(CLAIMS, name, {"metadata": {"finalizers": []}}, kind=PatchKind.MERGE)
    eventually("the claim is gone", lambda: not ground.claims(), timeout_s=20)
    assert secret.encode() in memory.read_bytes()
    ground.plugin.start()
    eventually("nothing is left", lambda: not ground.left(), timeout_s=120, tell=ground.plugin.told)
    assert memory.read_bytes() == bytes(MEMORY_BYTES)


def test_a_killed_standby_is_replaced(ground: Ground) -> None:
    """Promise 7: kill -9 of the journal's owner between prepare and unprepare, and again in the
    middle of a teardown; its successor goes on and the next pod runs."""
    pod = ground.run(program(STAY), ground.claim_template())
    ground.in_phase(pod, "Running")
    replaced(ground)
    assert [one.state for one in ground.plugin.claims() or ()] == ["PREPARED"]
    ground.cluster.delete(PODS, pod)
    eventually(
        "the teardown has begun",
        lambda: [one.state for one in ground.plugin.claims() or ()] != ["PREPARED"],
        timeout_s=40,
        period_s=0.01,
    )
    replaced(ground)
    ground.gone(pod)
    heir = ground.run(program("say $FLEETSIM_DEVICE"), ground.claim_template())
    assert len(ground.ended(heir)) == 1


def replaced(ground: Ground) -> None:
    """Kill the standby and wait for the next one to own the node."""
    old = ground.plugin.standby()
    assert old is not None
    os.kill(old, signal.SIGKILL)
    eventually(
        "another standby owns the node",
        lambda: ground.plugin.view() is not None and ground.plugin.standby() != old,
        timeout_s=STANDBY_S,
        tell=ground.plugin.told,
    )


def test_a_restarted_kubelet_finds_the_slices_again(ground: Ground) -> None:
    """B34, invariant 5: kubelet deletes the node's slices when it starts; they come back, and a pod
    that ran meanwhile goes on, ends normally, and the next one runs."""
    pod = ground.run(program(STAY), ground.claim_template())
    ground.in_phase(pod, "Running")
    before = {uid_of(one) for one in ground.slices()}
    ground.kubelet.restart()
    eventually(
        "the slices were made anew",
        lambda: (now := {uid_of(one) for one in ground.slices()}) and not now & before,
        timeout_s=60,
        tell=ground.plugin.told,
    )
    assert phase(ground.pod(pod)) == "Running"
    ground.delete(pod)
    heir = ground.run(program("say $FLEETSIM_DEVICE"), ground.claim_template())
    assert len(ground.ended(heir)) == 1


@pytest.mark.timeout(300)
def test_a_rolling_update_loses_no_call(ground: Ground) -> None:
    """B46, invariant 40: a second instance starts beside the first, which is stopped then; earlier
    pods end normally, new ones run, the slices stay, and so do the sockets of the new one."""
    old = ground.plugin
    before = ground.run(program(STAY), ground.claim_template())
    ground.in_phase(before, "Running")
    slices = {uid_of(one) for one in ground.slices()}
    new = PluginProcess(ground.place, old.state, old.node, instance="next")
    ground.instances.append(new)
    new.start()
    eventually("both serve", lambda: new.serves() and old.serves(), timeout_s=30, tell=new.told)
    assert old.stop() == 0, old.told()
    during = ground.run(program("say $FLEETSIM_DEVICE"), ground.claim_template())
    assert len(ground.ended(during)) == 1
    ground.delete(before)
    registry = ground.place.kubelet_root / "plugins_registry"
    assert [path.name for path in registry.glob(f"{DRIVER}*")] == [f"{DRIVER}-next-reg.sock"]
    assert {uid_of(one) for one in ground.slices()} == slices
    old.start()
    eventually("both serve", lambda: new.serves() and old.serves(), timeout_s=30, tell=old.told)
    assert new.stop() == 0, new.told()
    after = ground.run(program("say $FLEETSIM_DEVICE"), ground.claim_template())
    assert len(ground.ended(after)) == 1


def test_a_stopped_plugin_leaves_no_socket_and_no_process(ground: Ground) -> None:
    """Invariant 4: after SIGTERM the sockets are gone, the standby has ended, slices stay."""
    standby = ground.plugin.standby()
    assert standby is not None
    assert ground.plugin.stop() == 0
    registry = ground.place.kubelet_root / "plugins_registry"
    assert list(registry.glob(f"{DRIVER}*")) == []
    assert not Path(f"/proc/{standby}").exists()
    assert len(ground.published()) > 0


@pytest.mark.timeout(300)
def test_a_standby_that_hangs_is_replaced(ground: Ground) -> None:
    """Promise 7, DESIGN 5: an owner of the journal that is stopped (SIGSTOP) and answers nothing is
    killed after a while; its successor goes on, and the pod that ran meanwhile ends normally."""
    pod = ground.run(program(STAY), ground.claim_template())
    ground.in_phase(pod, "Running")
    old = ground.plugin.standby()
    assert old is not None
    os.kill(old, signal.SIGSTOP)
    try:
        eventually(
            "another standby owns the node",
            lambda: ground.plugin.standby() not in (None, old) and ground.plugin.view(),
            timeout_s=HANG_S,
            period_s=1.0,
            tell=ground.plugin.told,
        )
    finally:
        with suppress(ProcessLookupError):
            os.kill(old, signal.SIGCONT)
    assert [one.state for one in ground.plugin.claims() or ()] == ["PREPARED"]
    ground.delete(pod)
