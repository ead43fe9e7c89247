"""Chapter of the demo: pods with MIG slices through the real node plugin and a stand-in kubelet.

Kubelet, container runtime, scheduler and API server are those of `tests.lab.kubelet`. Beside
each container a program runs in a cgroup of the same pod, which has the memory of the instance that
the pod's device nodes reach: nodes are plain files here, and open nothing by themselves.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fleet.core import errors
from fleet.core.profiles import Profile
from fleet.core.settings import HealthPolicy, KubernetesSettings, NodeSettings, Settings
from fleet.kube.base import CLAIMS, NODES, Name, uid_of
from fleet.plugin import configuration
from fleet.wiring.plans import NodePlan, plan_fleet
from node_plugin import wiring
from tests.drivers.stage import BrokenOff, Part, Stage
from tests.drivers.tenants import GpuTenant
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine
from tests.lab.kubelet.cgroups import PodCgroups
from tests.lab.kubelet.control import ControlPlane, Seen
from tests.lab.kubelet.kubelet import KubeletSim
from tests.lab.kubelet.pods import Phase, Pod
from tests.lab.kubelet.resources import PodIdentity
from tests.lab.kubelet.runtime import Container, Runtime
from tests.lab.kubelet.timings import Timings

TIMINGS = Timings().scaled(0.02)
SECRET_BYTES = 4096
PATIENCE_S = 60.0
PART, BESIDE = Part(2, 2), Part(4, 4)
_PAUSE_S = 0.05
_FRESH = {
    "apiVersion": configuration.API_VERSION,
    "kind": configuration.KIND,
    "profile": "strict",
}


class GpuRuntime(Runtime):
    """Containers whose pod also runs a program on the GPU."""

    def __init__(self, cdi_directory: Path, cgroups: PodCgroups, stage: Stage) -> None:
        super().__init__(cdi_directory, cgroups)
        self._stage = stage
        self.tenants: dict[str, GpuTenant] = {}
        self._places: dict[str, Path] = {}

    def create(self, pod_uid: str, ids: Iterable[str], *, stubborn: bool = False) -> Container:
        """The program in a cgroup of its own, and then the container: then the pod runs."""
        given = tuple(ids)
        tenant = GpuTenant(self._reached(set(self.resolve(given).nodes)))
        cgroup = self.cgroups.make_container(pod_uid, uuid.uuid4().hex)
        self.cgroups.enter(cgroup, tenant.pid)
        self.tenants[pod_uid], self._places[pod_uid] = tenant, cgroup
        try:
            return super().create(pod_uid, given, stubborn=stubborn)
        except errors.FleetError:
            self.remove_container(pod_uid)
            raise

    def remove_container(self, pod_uid: str) -> None:
        """Both end."""
        tenant = self.tenants.pop(pod_uid, None)
        if tenant is not None:
            tenant.kill()
            self.cgroups.remove(self._places.pop(pod_uid))
        super().remove_container(pod_uid)

    def _reached(self, nodes: set[str]) -> str:
        """What CUDA shows whoever has these nodes."""
        for gi in self._stage.instances().values():
            if self._stage.capabilities(gi) <= nodes:
                return self._stage.uuid_of(gi)
        raise errors.SpecUnavailable("the nodes of the pod reach no instance")


@dataclass(frozen=True, slots=True)
class User:
    """One pod with one claim on one slice."""

    pod: Pod
    name: Name
    claim: Name
    claim_uid: str
    part: Part


class Cluster:
    """One node with the real plugin, and all of a cluster that it meets."""

    def __init__(self, stage: Stage, directory: Path) -> None:
        self._stage = stage
        self._plan = _plan(stage, directory)
        kubernetes = self._plan.settings.kubernetes
        self._driver = kubernetes.driver
        self._cdi = Path(kubernetes.cdi_directory)
        self._cluster = MemoryCluster(Engine(seed=uuid.uuid4().hex))
        self.control = ControlPlane(self._cluster, node=self._plan.node, now=time.time)
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._plan.node}}
        self._cluster.create(NODES, body)
        self._runtime = GpuRuntime(self._cdi, PodCgroups(Path(kubernetes.cgroup_root)), stage)
        self._sim = KubeletSim(
            Path(kubernetes.kubelet_root),
            self._runtime,
            read_claim=lambda namespace, name: self._cluster.get(CLAIMS, Name(name, namespace)),
            timings=TIMINGS,
            delete_slices=self.control.delete_slices,
            told=stage.telling.heard,
        )
        self._plugin = wiring.open_plugin(self._plan, self._cluster)

    def start(self) -> None:
        """Kubelet and the plugin begin."""
        self._sim.start()
        self._plugin.start()

    def stop(self) -> None:
        """Everything ends."""
        self._sim.power_off()
        self._plugin.stop()

    def free(self, part: Part) -> Seen | None:
        """The slice as the scheduler may take it now."""
        found = {seen.name: seen for seen in self.control.free()}
        try:
            return found[self._stage.named(part, list(found))]
        except ValueError:
            return None

    def run(self, name: str, part: Part) -> User:
        """A claim allocated this slice, and a pod that uses it. Raises `BrokenOff`."""
        self.wait(lambda: self.free(part) is not None)
        device = self.free(part)
        if device is None:
            raise BrokenOff(f"{part} is not on offer")
        pod_name, claim_name = Name(name, "demo"), Name(f"{name}-slice", "demo")
        fresh = {"driver": self._driver, "parameters": _FRESH}
        claim = self.control.create_claim(claim_name, parameters=fresh)
        pod = self.control.create_pod(pod_name, claim=claim_name.name)
        self.control.allocate(claim_name, pod, device)
        self.control.bind(pod_name)
        identity = PodIdentity("demo", name, uid_of(pod), (claim_name.name,))
        user = User(Pod(identity), pod_name, claim_name, uid_of(claim), part)
        self._stage.telling.line(
            f"   pod {name}: claim {user.claim_uid} is allocated {device.name}"
        )
        self._sim.add_pod(user.pod)
        if not self.wait(lambda: self._sim.phase(user.pod.uid) is Phase.RUNNING):
            raise BrokenOff(f"pod {name} does not run: {self._sim.error(user.pod.uid)}")
        return user

    def end(self, user: User) -> bool:
        """The pod is deleted, then its claim; whether kubelet came to an end with it."""
        self.control.mark_deleted(user.name)
        self._sim.delete_pod(user.pod.uid)
        gone = self.wait(lambda: self._sim.phase(user.pod.uid) is Phase.GONE)
        self.control.erase(user.name)
        self.control.settle()
        self.control.delete_claim(user.claim)
        self.control.settle()
        return gone

    def tenant(self, user: User) -> GpuTenant:
        """The program of a pod."""
        return self._runtime.tenants[user.pod.uid]

    def spec(self, user: User) -> Path:
        """The CDI spec of a pod's claim."""
        (found,) = (path for path in self.specs() if user.claim_uid in path.name)
        return found

    def specs(self) -> list[Path]:
        """All CDI specs there are."""
        return sorted(self._cdi.glob("*.json"))

    def wait(self, condition: Callable[[], bool]) -> bool:
        """Let time pass until it holds."""
        until = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() >= until:
                return False
            self.control.settle()
            time.sleep(_PAUSE_S)
        return True


def tell(stage: Stage, directory: Path, *, beside: bool) -> None:
    """The life of two pods on one slice, and with `beside` of a third one on the same GPU."""
    telling = stage.telling
    telling.step("The same through kubelet: the real node plugin publishes the slices")
    telling.line(
        "   until its standby has started, the plugin says that nobody answers for the node"
    )
    cluster = Cluster(stage, directory)
    try:
        cluster.start()
        ready = cluster.wait(
            lambda: (
                cluster.free(PART) is not None
                and cluster.free(BESIDE) is not None
                and not stage.instances()
            )
        )
        telling.line(f"   {len(cluster.control.devices())} devices in the node's ResourceSlices")
        telling.expect("the slices are on offer, and no instance exists", holds=ready)
        _tell_pods(stage, cluster, beside=beside)
    finally:
        cluster.stop()


def _tell_pods(stage: Stage, cluster: Cluster, *, beside: bool) -> None:
    telling = stage.telling
    secret = secrets.token_bytes(SECRET_BYTES)
    telling.step("Pod alice: her slice is created, wiped, verified and exposed")
    alice = _tell_start(stage, cluster, "alice", PART)
    cluster.tenant(alice).plant(secret)
    found = cluster.tenant(alice).search(secret)
    telling.line(f"   alice searched {cluster.tenant(alice).size} B: {found} blocks of her secret")
    telling.expect("her secret is in her slice", holds=found > 0)
    others = []
    if beside:
        telling.step("Pod carol: another slice of the same GPU, while alice has hers")
        carol = _tell_start(stage, cluster, "carol", BESIDE)
        found = cluster.tenant(carol).search(secret)
        telling.expect("carol finds nothing of alice's secret", holds=found == 0)
        others = [carol]

    telling.step("alice ends: her slice is wiped and destroyed; pod bob gets the same slice")
    telling.expect("alice ends", holds=cluster.end(alice))
    left = {(other.part.start, other.part.size) for other in others}
    gone = cluster.wait(lambda: set(stage.instances()) == left)
    telling.expect("her instance is gone, and no other", holds=gone)
    bob = cluster.run("bob", PART)
    found = cluster.tenant(bob).search(secret)
    telling.line(f"   bob searched {cluster.tenant(bob).size} B: {found} blocks of alice's secret")
    telling.expect("bob finds nothing of alice's secret", holds=found == 0)
    for user in (bob, *others):
        telling.expect(f"{user.name.name} ends", holds=cluster.end(user))
    gone = cluster.wait(lambda: not stage.instances() and not cluster.specs())
    telling.expect("no instance and no CDI spec is left", holds=gone)


def _tell_start(stage: Stage, cluster: Cluster, name: str, part: Part) -> User:
    telling = stage.telling
    stage.soil(part)
    user = cluster.run(name, part)
    telling.expect(
        "the instance exists, and its memory was wiped",
        holds=(part.start, part.size) in stage.instances() and not stage.soiled(part),
    )
    telling.expect(
        "the CDI spec has the nodes of this instance only, and libraries read-only",
        holds=stage.judge_spec(cluster.spec(user), part),
    )
    return user


def _plan(stage: Stage, directory: Path) -> NodePlan:
    """The stage's node, from now on served to kubelet."""
    settings = Settings(
        profile=Profile.FAST,  # strict waits for conditions that a coordinator sets
        node=NodeSettings(idle_delay_s=0.0),
        health=HealthPolicy(sweep_period_s=5.0),
        hardware=stage.hardware,
        kubernetes=KubernetesSettings(
            kubelet_root=str(directory / "kubelet"),
            cdi_directory=str(directory / "cdi"),
            cgroup_root=str(directory / "cgroup"),
            publish_period_s=0.2,
        ),
    )
    fleet = plan_fleet(stage.state, settings=settings, serve=stage.node)
    return fleet.nodes[0]
