"""The kubelet stand-in against a small plugin: the orders of calls kubelet produces."""

from __future__ import annotations

import copy
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.kube.base import Object
from fleet.node import kubelet_checkpoint
from tests.lab.kubelet.cgroups import PodCgroups
from tests.lab.kubelet.fake_plugin import DRIVER, FakePlugin
from tests.lab.kubelet.kubelet import KubeletSim
from tests.lab.kubelet.pods import Phase, Pod
from tests.lab.kubelet.resources import PodIdentity
from tests.lab.kubelet.runtime import Runtime
from tests.lab.kubelet.timings import Timings

FAST = Timings(
    poll_s=0.02,
    backoff_first_s=0.05,
    prepare_retry_s=0.1,
    unprepare_retry_s=0.1,
    container_retry_s=0.1,
    grace_s=0.5,
    force_grace_s=0.3,
    orphan_period_s=0.2,
    health_reopen_s=0.1,
    absent_s=0.3,
)
LIMIT_S = 15.0


class Node:
    """A kubelet, its runtime, a plugin and the claims at the API server."""

    def __init__(self, directory: Path) -> None:
        self.memory = directory / "memory.bin"
        self.memory.write_bytes(bytes(1 << 20))
        self.runtime = Runtime(directory / "cdi", PodCgroups(directory / "cgroup"))
        self.plugin = FakePlugin(directory / "kubelet", directory / "cdi", self.memory)
        self.claims: dict[str, Object] = {}
        self.slices_deleted: list[str] = []
        self.sim = KubeletSim(
            directory / "kubelet",
            self.runtime,
            read_claim=self.read,
            timings=FAST,
            delete_slices=self.slices_deleted.append,
        )

    def read(self, namespace: str, name: str) -> Object:
        if name not in self.claims:
            raise errors.ApiNotFound(f"{namespace}/{name}")
        return copy.deepcopy(self.claims[name])

    def claim(self, name: str, *pods: Pod) -> str:
        uid = str(uuid.uuid4())
        results = [{"request": "gpu", "driver": DRIVER, "pool": "node-a", "device": "gpu-0"}]
        self.claims[name] = {
            "metadata": {"name": name, "namespace": "default", "uid": uid},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "uid": pod.uid} for pod in pods],
            },
        }
        return uid

    def wait(self, condition: Callable[[], bool]) -> None:
        assert self.sim.wait(condition, timeout_s=LIMIT_S)

    def until(self, pod: Pod, phase: Phase) -> None:
        assert self.sim.wait_phase(pod.uid, phase, timeout_s=LIMIT_S), self.sim.events

    def calls(self, kind: str) -> list[tuple[str, ...]]:
        return [uids for call, uids in self.plugin.calls if call == kind]

    def happened(self, what: str) -> int:
        return sum(event.what == what for event in self.sim.events)


def pod(name: str, *claims: str, stubborn: bool = False) -> Pod:
    return Pod(PodIdentity("default", name, str(uuid.uuid4()), claims), stubborn=stubborn)


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="kl-") as short:  # paths of sockets are short
        found = Node(Path(short))
        found.plugin.start()
        found.sim.start()
        yield found
        found.plugin.gate.set()
        found.sim.power_off()
        found.plugin.stop()


def running(node: Node, name: str = "a", *, stubborn: bool = False) -> tuple[Pod, str]:
    one = pod(name, f"claim-{name}", stubborn=stubborn)
    uid = node.claim(f"claim-{name}", one)
    node.sim.add_pod(one)
    node.until(one, Phase.RUNNING)
    return one, uid


def test_the_life_of_a_pod(node: Node) -> None:
    """Prepare before the container, unprepare after it, and nothing is left."""
    one, uid = running(node)
    assert node.calls("prepare") == [(uid,)]
    container = node.runtime.container(one.uid)
    assert container is not None
    assert container.ask("write", b"s" * 64)["written"] == 1
    assert node.memory.read_bytes().count(b"s") == 3 * 64
    node.sim.delete_pod(one.uid)
    node.until(one, Phase.GONE)
    assert node.calls("unprepare") == [(uid,)]
    assert node.runtime.cgroups.pods() == ()
    assert node.sim.resources.entries() == ()
    order = [event.what for event in node.sim.events]
    assert order.index("Stopped") < order.index("NodeUnprepareResources answered")


def test_the_pod_is_in_the_checkpoint_before_the_call(node: Node) -> None:
    """Reference 1.4: a plugin asked for a prepare finds the pod's UID in kubelet's file."""
    node.plugin.gate.clear()
    one = pod("a", "claim-a")
    uid = node.claim("claim-a", one)
    node.sim.add_pod(one)
    node.wait(lambda: node.calls("prepare") == [(uid,)])
    found = kubelet_checkpoint.read(node.sim.root / kubelet_checkpoint.NAME)
    assert found.pods == {uid: (one.uid,)}
    node.plugin.gate.set()
    node.until(one, Phase.RUNNING)


def test_the_process_is_in_its_pods_cgroup(node: Node) -> None:
    """A running container's process is listed below a directory named after the pod."""
    one, _ = running(node)
    container = node.runtime.container(one.uid)
    assert container is not None
    assert f"pod{one.uid}" in str(container.cgroup)
    assert (container.cgroup / "cgroup.procs").read_text().split() == [str(container.pid)]


def test_a_failed_prepare_is_asked_again(node: Node) -> None:
    """Reference 1.4: a claim's error fails the pod, and the same call comes again later."""
    one = pod("a", "claim-a")
    uid = node.claim("claim-a", one)
    node.plugin.errors[uid] = "device held by claim x"
    node.sim.add_pod(one)
    node.wait(lambda: len(node.calls("prepare")) >= 3)
    assert "device held by claim x" in node.sim.error(one.uid)
    assert node.sim.phase(one.uid) is Phase.PENDING
    node.plugin.errors.clear()
    node.until(one, Phase.RUNNING)
    assert node.sim.error(one.uid) == ""


def test_unprepare_comes_also_when_the_prepare_failed(node: Node) -> None:
    """Reference 1.5: a pod whose call failed is unprepared when it is deleted."""
    one = pod("a", "claim-a")
    uid = node.claim("claim-a", one)
    node.plugin.errors[uid] = "no"
    node.sim.add_pod(one)
    node.wait(lambda: bool(node.calls("prepare")))
    node.plugin.errors.clear()
    node.sim.delete_pod(one.uid)
    node.until(one, Phase.GONE)
    assert node.calls("unprepare") == [(uid,)]


def test_checks_before_the_call_leave_no_trace(node: Node) -> None:
    """Reference 1.4: without reservation there is no call, and later no unprepare either."""
    one = pod("a", "claim-a")
    node.claim("claim-a")
    node.sim.add_pod(one)
    node.wait(lambda: "not allowed to use" in node.sim.error(one.uid))
    node.sim.delete_pod(one.uid)
    node.until(one, Phase.GONE)
    assert (node.calls("prepare"), node.calls("unprepare")) == ([], [])


def test_a_failed_unprepare_keeps_the_pod(node: Node) -> None:
    """Reference 1.5: the pod stays terminating until the plugin answers success."""
    one, uid = running(node)
    node.plugin.errors[uid] = "still wiping"
    node.sim.delete_pod(one.uid)
    node.wait(lambda: len(node.calls("unprepare")) >= 2)
    assert node.sim.phase(one.uid) is Phase.TERMINATING
    assert node.runtime.cgroups.pods() == (one.uid,)
    node.plugin.errors.clear()
    node.until(one, Phase.GONE)


def test_a_container_that_dies_is_created_again_without_a_call(node: Node) -> None:
    """Invariant 27: restarts resolve the CDI ids again, and kubelet asks no plugin."""
    one, _ = running(node)
    first = node.runtime.container(one.uid)
    node.sim.restart_container(one.uid)
    node.wait(lambda: node.happened("Started") == 2)
    second = node.runtime.container(one.uid)
    assert first is not None
    assert second is not None
    assert first.pid != second.pid
    assert len(node.calls("prepare")) == 1


def test_an_id_without_a_spec_is_no_container(node: Node) -> None:
    """B10: a lost CDI file means CreateContainerError, for ever, and no call."""
    one, uid = running(node)
    spec = node.plugin.cdi / f"claim-{uid}.json"
    spec.unlink()
    node.sim.restart_container(one.uid)
    node.wait(lambda: node.happened("CreateContainerError") >= 2)
    assert uid in node.sim.error(one.uid)
    assert len(node.calls("prepare")) == 1
    node.plugin.write_spec(uid)
    node.until(one, Phase.RUNNING)


def test_two_pods_share_a_claim(node: Node) -> None:
    """Reference 1.5: one prepare for both, and unprepare when the last of them goes."""
    first, second = pod("a", "shared"), pod("b", "shared")
    uid = node.claim("shared", first, second)
    for one in (first, second):
        node.sim.add_pod(one)
        node.until(one, Phase.RUNNING)
    assert node.calls("prepare") == [(uid,)]
    node.sim.delete_pod(first.uid)
    node.until(first, Phase.GONE)
    assert node.calls("unprepare") == []
    node.sim.delete_pod(second.uid)
    node.until(second, Phase.GONE)
    assert node.calls("unprepare") == [(uid,)]


def test_a_restart_forgets_what_is_prepared_and_nothing_else(node: Node) -> None:
    """Reference 1.6: the running pod runs on unasked; a further pod makes kubelet ask again."""
    first, second = pod("a", "shared"), pod("b", "shared")
    uid = node.claim("shared", first, second)
    node.sim.add_pod(first)
    node.until(first, Phase.RUNNING)
    process = node.runtime.container(first.uid)
    node.sim.restart()
    node.until(first, Phase.RUNNING)
    assert node.runtime.container(first.uid) is process
    assert node.calls("prepare") == [(uid,)]
    node.sim.add_pod(second)
    node.until(second, Phase.RUNNING)
    assert node.calls("prepare") == [(uid,), (uid,)]
    assert len(node.sim.resources.devices(second.identity)) == 2, "appended, as 1.36.2 does"


def test_a_restart_during_a_prepare_asks_again(node: Node) -> None:
    """Reference 1.6: the connection breaks, and a second call comes while the first runs."""
    node.plugin.gate.clear()
    one = pod("a", "claim-a")
    uid = node.claim("claim-a", one)
    node.sim.add_pod(one)
    node.wait(lambda: node.calls("prepare") == [(uid,)])
    node.sim.restart()
    node.wait(lambda: node.calls("prepare") == [(uid,), (uid,)])
    node.plugin.gate.set()
    node.until(one, Phase.RUNNING)


def test_a_reboot_prepares_surviving_pods_again(node: Node) -> None:
    """B10: after a reboot the CDI directory is empty, the checkpoint is not, kubelet asks anew."""
    one, uid = running(node)
    before = node.runtime.container(one.uid)
    node.sim.power_off()
    assert before is not None
    assert not before.running()
    assert node.plugin.prepared() == set()
    assert node.runtime.cgroups.pods() == ()
    node.sim.start()
    node.until(one, Phase.RUNNING)
    assert node.calls("prepare") == [(uid,), (uid,)]


def test_a_forced_deletion_lingers(node: Node) -> None:
    """B01: the API has forgotten the pod while its process runs; unprepare comes after it."""
    one, _ = running(node, stubborn=True)
    container = node.runtime.container(one.uid)
    assert container is not None
    node.sim.delete_pod(one.uid, force=True)
    node.wait(lambda: node.sim.phase(one.uid) is Phase.TERMINATING)
    assert container.running()
    assert node.calls("unprepare") == []
    node.until(one, Phase.GONE)
    assert not container.running()
    assert node.happened("Killed") == 1
    assert len(node.calls("unprepare")) == 1


def test_a_forced_deletion_while_kubelet_is_down(node: Node) -> None:
    """Reference 1.5: the orphan is ended at the start, its claim unprepared by the reconcile."""
    one, uid = running(node)
    container = node.runtime.container(one.uid)
    assert container is not None
    node.sim.stop()
    node.sim.delete_pod(one.uid, force=True)
    assert container.running()
    node.sim.start()
    node.wait(lambda: node.calls("unprepare") == [(uid,)])
    assert not container.running()
    node.wait(lambda: node.sim.resources.entries() == ())
    assert node.happened("OrphanUnprepared") == 1


def test_an_old_claim_of_the_name_blocks_a_new_one(node: Node) -> None:
    """Reference 1.4: another UID under a name still known waits for the old one's unprepare."""
    one, old = running(node, stubborn=True)
    node.sim.delete_pod(one.uid, force=True)
    second = pod("b", "claim-a")
    node.claim("claim-a", second)
    node.sim.add_pod(second)
    node.wait(lambda: old in node.sim.error(second.uid))
    node.until(second, Phase.RUNNING)


def test_one_pod_names_the_claim_of_another(node: Node) -> None:
    """Reference 1.5 (a): 1.36.2 unprepares a claim in use for a pod that never had it."""
    node.sim.stop()
    node.sim.by_count = True
    node.sim.start()
    one, uid = running(node)
    stranger = pod("b", "claim-a")
    node.sim.add_pod(stranger)
    node.wait(lambda: "not allowed" in node.sim.error(stranger.uid))
    node.sim.delete_pod(stranger.uid)
    node.wait(lambda: node.calls("unprepare") == [(uid,)])
    assert node.sim.phase(one.uid) is Phase.RUNNING


def test_slices_are_deleted_at_start_and_after_a_long_absence(node: Node) -> None:
    """B34: every start deletes all slices of the node, a lost driver those of its own."""
    node.wait(lambda: len(node.sim.plugins.registered()) == 1)
    node.wait(lambda: node.sim.plugins.find(DRIVER) is not None)
    assert node.slices_deleted == [""]
    node.sim.restart()
    node.wait(lambda: node.slices_deleted == ["", ""])
    node.wait(lambda: len(node.sim.plugins.registered()) == 1)
    node.plugin.stop()
    node.wait(lambda: node.slices_deleted == ["", "", DRIVER])


def test_a_damaged_checkpoint_stops_kubelet(node: Node) -> None:
    """Reference 1.6: kubelet does not start on a checkpoint whose checksum is wrong."""
    node.sim.stop()
    path = node.sim.root / kubelet_checkpoint.NAME
    path.write_text(path.read_text().replace("DRACheckpoint", "DRACheckpoinT"))
    with pytest.raises(errors.CheckpointUnreadable):
        node.sim.start()
    path.unlink()
    node.sim.start()


def test_the_plugin_may_be_away(node: Node) -> None:
    """Reference 1.5: without its plugin a pod neither starts nor ends, and goes on afterwards."""
    node.wait(lambda: len(node.sim.plugins.registered()) == 1)
    node.plugin.stop()
    node.wait(lambda: node.sim.plugins.registered() == ())
    one = pod("a", "claim-a")
    node.claim("claim-a", one)
    node.sim.add_pod(one)
    node.wait(lambda: "not registered" in node.sim.error(one.uid))
    node.plugin.start()
    node.until(one, Phase.RUNNING)


def test_misuse_is_said(node: Node) -> None:
    """Pods nobody added, a second start, and questions to a kubelet that is down are errors."""
    with pytest.raises(errors.ApiNotFound):
        node.sim.delete_pod("nobody")
    with pytest.raises(errors.ApiNotFound):
        node.sim.restart_container("nobody")
    with pytest.raises(errors.InputInvalid):
        node.sim.start()
    node.sim.stop()
    with pytest.raises(errors.PluginUnavailable):
        node.sim.plugins.registered()
