"""One Kubernetes node under test: real node service behind its door, API server in memory, cgroups
and kubelet's checkpoint as files. Only gRPC and kubelet itself are missing.

Waiting between two tries passes at once (`Bench.clock` is moved by it); work of the node takes the
time it takes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleet.core.clock import ManualClock, SystemClock
from fleet.core.profiles import Profile
from fleet.core.settings import KubernetesSettings, Settings
from fleet.core.sqlite import Unreadable
from fleet.kube.base import CLAIMS, NODES, PODS, SLICES, Name, Object, uid_of
from fleet.kube.marks import Marks
from fleet.node import kubelet_checkpoint
from fleet.node.journal.journal import Commit
from fleet.node.service import NodeService
from fleet.plugin.claims import ClaimServing
from fleet.plugin.reconciler import Keeper
from fleet.plugin.requests import AskedClaim
from fleet.plugin.retries import Waiting, leaving
from fleet.rpc.client import DoorNode
from fleet.wiring import adapters, plugin
from fleet.wiring.adapters import NodePlan
from fleet.wiring.plugin import PluginParts
from tests.fleet.node.conftest import WAIT_S, Lab, quick_settings
from tests.fleet.node.trees import Tree, checkpoint_text
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine, Target
from tests.lab.apiserver.removal import Preconditions
from tests.scratch import directory

DRIVER = "gpu.fleetscrub.dev"
MARKS = Marks(DRIVER)
NODE = "n1"
SPACE = "tenant"


def result(
    device: str,
    *,
    request: str = "gpu",
    driver: str = DRIVER,
    pool: str = NODE,
    **more: Any,
) -> Object:
    """One result of an allocation, as the scheduler writes it."""
    return {"request": request, "driver": driver, "pool": pool, "device": device, **more}


def _request(name: str, alternative: str = "") -> Object:
    if alternative:
        return {"name": name, "firstAvailable": [{"name": alternative, "deviceClassName": "gpu"}]}
    return {"name": name, "exactly": {"deviceClassName": "gpu"}}


@dataclass
class Pod:
    """A pod of the API and its cgroups, which know no process until `run`."""

    bench: Bench
    name: str
    uid: str

    @property
    def entry(self) -> Object:
        """Its entry in reservedFor."""
        return {"resource": "pods", "name": self.name, "uid": self.uid}

    def run(self) -> None:
        """Let a process be in its cgroup."""
        self.bench.tree.enter(self._paths())

    def leave(self) -> None:
        """Let its cgroups be empty."""
        self.bench.tree.leave(self._paths())

    def end(self, phase: str = "Succeeded") -> None:
        """Let the API say that its containers have ended."""
        found = self.bench.cluster.get(PODS, Name(self.name, SPACE))
        found["status"] = {**found.get("status", {}), "phase": phase}
        self.bench.cluster.replace(PODS, found, subresource="status")

    def delete(self) -> None:
        """Force-delete it: the API forgets it at once, its processes live on."""
        target = Target(PODS, Name(self.name, SPACE))
        self.bench.cluster.engine.delete(target, Preconditions(grace_s=0))

    def _paths(self) -> list[Path]:
        found = self.bench.tree.hierarchies[0].rglob(f"pod{self.uid}")
        return list(found) or self.bench.tree.pod(self.uid)


class ServerClock(SystemClock):
    """The API server's clock, which a test sets forward."""

    ahead_s = 0.0

    def now(self) -> float:
        """Its time of day."""
        return super().now() + self.ahead_s


@dataclass
class Bench(Lab):
    """The node `n1` of two accelerators, its API objects and the plugin's domain."""

    kubernetes: Mapping[str, Any] = field(default_factory=dict)
    clock: ManualClock = field(init=False)
    server_clock: ServerClock = field(init=False)
    cluster: MemoryCluster = field(init=False)
    parts: PluginParts = field(init=False)
    serving: ClaimServing = field(init=False)
    meanwhile: Callable[[float], object] = field(init=False)
    """Called at each pause with the monotonic time of `clock`."""

    def __post_init__(self) -> None:
        self.tree = Tree(self.state / "cgroup", "v2-cgroupfs")
        self.cdi = self.state / "cdi"
        self.kubelet = self.state / "kubelet"
        self.kubelet.mkdir()
        self.checkpoint = self.kubelet / kubelet_checkpoint.NAME
        self.remember({})
        section = KubernetesSettings(
            cdi_directory=str(self.cdi),
            kubelet_root=str(self.kubelet),
            cgroup_root=str(self.tree.root),
            **{"admin_namespaces": (SPACE,), **self.kubernetes},
        )
        self.settings = self.settings.model_copy(update={"kubernetes": section})
        self.clock = ManualClock(1_700_000_000.0)
        self.server_clock = ServerClock()
        self.cluster = MemoryCluster(Engine(clock=self.server_clock))
        self.meanwhile = lambda _: None
        head = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        self.cluster.create(NODES, head)
        super().__post_init__()

    def open(self, *, settings: Settings | None = None) -> NodeService:
        """Open the node as a kubelet's node, and the plugin's side anew."""
        self.plan: NodePlan = self.plan.model_copy(update={"kubernetes": True})
        found = super().open(settings=settings)
        self.plug()
        return found

    def plug(self) -> None:
        """A new plugin process, as far as the domain knows."""
        self.unplug()
        self.door = adapters.open_door(self.plan)
        self.parts = plugin.plugin_parts(self.plan, self.cluster, self.door)
        waiting = Waiting(self.clock, self._pause, leaving(self.door))
        self.serving = replace(self.parts.serving, waiting=waiting, clock=self.clock)

    def unplug(self) -> None:
        """End the plugin process."""
        door: DoorNode | None = getattr(self, "door", None)
        if door is not None:
            door.close()
            self.parts.publisher.close()
            self.parts.store.close()

    def _pause(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.meanwhile(self.clock.monotonic())

    # --- kubelet's side ---

    def remember(self, claims: Mapping[str, Sequence[str]]) -> None:
        """Write kubelet's checkpoint: pods by claim UID."""
        self.checkpoint.write_text(checkpoint_text(claims))

    # --- the API's side ---

    def pod(self, name: str = "pod-1", *, node: str = NODE) -> Pod:
        """A pod bound to a node."""
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": SPACE},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "x"}]},
        }
        return Pod(self, name, uid_of(self.cluster.create(PODS, body)))

    def create(
        self, name: str, *requests: str, namespace: str = SPACE, finalizers: Sequence[str] = ()
    ) -> AskedClaim:
        """A claim without an allocation; a request ``name/alternative`` offers that alternative."""
        wanted = [_request(*request.split("/")) for request in requests or ("gpu",)]
        body: Object = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace, "finalizers": list(finalizers)},
            "spec": {"devices": {"requests": wanted}},
        }
        return AskedClaim(namespace, uid_of(self.cluster.create(CLAIMS, body)), name)

    def allocate(
        self, asked: AskedClaim, *results: Object, config: Sequence[Object] = ()
    ) -> AskedClaim:
        """Give the claim an allocation."""
        devices: Object = {"results": list(results)}
        if config:
            devices["config"] = list(config)
        return self._status(asked, allocation={"devices": devices})

    def reserve(self, asked: AskedClaim, *pods: Pod | Object) -> AskedClaim:
        """Let the claim be reserved for exactly these."""
        entries = [pod.entry if isinstance(pod, Pod) else pod for pod in pods]
        return self._status(asked, reservedFor=entries)

    def deallocate(self, asked: AskedClaim) -> None:
        """What the claim controller does when the last consumer has gone, or was force-deleted."""
        self._status(asked, allocation=None, reservedFor=None)

    def _status(self, asked: AskedClaim, **fields: object) -> AskedClaim:
        found = self.claim_of(asked)
        status = {**found.get("status", {}), **fields}
        found["status"] = {key: value for key, value in status.items() if value is not None}
        self.cluster.replace(CLAIMS, found, subresource="status")
        return asked

    def claim_of(self, asked: AskedClaim) -> Object:
        """The claim as the API has it."""
        return self.cluster.get(CLAIMS, Name(asked.name, asked.namespace))

    def delete(self, asked: AskedClaim) -> None:
        """Delete the claim, our finalizer taken off by force; with others it stays, Terminating."""
        found = self.claim_of(asked)
        kept = [f for f in found["metadata"].get("finalizers", ()) if f != MARKS.finalizer]
        if kept != found["metadata"].get("finalizers", []):
            found["metadata"]["finalizers"] = kept
            self.cluster.replace(CLAIMS, found)
        self.cluster.delete(CLAIMS, Name(asked.name, asked.namespace))

    def bound(self, name: str, *devices: str, pods: Sequence[Pod] = ()) -> AskedClaim:
        """A claim allocated these devices, reserved for `pods` (or for one pod of its own)."""
        asked = self.create(name)
        self.allocate(asked, *(result(device) for device in devices))
        return self.reserve(asked, *(pods or (self.pod(f"pod-of-{asked.uid}"),)))

    # --- looking ---

    @property
    def specs(self) -> list[str]:
        """Names of everything in the directory of specs."""
        return sorted(p.name for p in self.cdi.iterdir()) if self.cdi.is_dir() else []

    def spec(self, asked: AskedClaim) -> Path:
        """Where the claim's spec is, if it is."""
        return self.cdi / f"fleetscrub.dev-gpu_{asked.uid}.json"

    def record(self, asked: AskedClaim) -> str:
        """State of the claim's record."""
        return next((str(c.state) for c in self.node.claims() if c.uid == asked.uid), "ABSENT")

    def taints(self, device: str) -> list[str]:
        """Taints of a device in the slices, keys without the driver; ``absent`` without one."""
        found = self._published(device)
        if found is None:
            return ["absent"]
        return [str(taint["key"]).partition("/")[2] for taint in found.get("taints", [])]

    def effects(self, device: str) -> list[str]:
        """Effects of the taints of a device in the slices."""
        found = self._published(device) or {}
        return [str(taint["effect"]) for taint in found.get("taints", [])]

    def _published(self, device: str) -> Object | None:
        entries = [d for s in self.cluster.list(SLICES).items for d in s["spec"].get("devices", [])]
        return next((entry for entry in entries if entry["name"] == device), None)

    # --- breaking ---

    @contextmanager
    def failing_disk(self, number: int, *, for_good: bool = False) -> Iterator[list[int]]:
        """The `number`-th transaction from here on fails; with `for_good` all after it do too.

        Yields the numbers of those that were tried.
        """
        registry = self.node._registry
        commit_before = registry.commit
        seen: list[int] = []

        @contextmanager
        def commit() -> Iterator[Commit]:
            seen.append(len(seen) + 1)
            if seen[-1] == number or (for_good and seen[-1] > number > 0):
                raise Unreadable("the disk is full", path="journal.db")
            with commit_before() as changes:
                yield changes

        registry.commit = commit  # type: ignore[method-assign] # the disk is what breaks here
        try:
            yield seen
        finally:
            registry.commit = commit_before  # type: ignore[method-assign] # and is mended

    # --- the plugin's other half ---

    def keeper(self) -> Keeper:
        """What a plugin's keeper is, over this node and these slices."""
        parts = replace(self.parts, serving=self.serving)
        return plugin.keeper(self.plan, self.door, parts, lambda _: None)

    @contextmanager
    def kept(self) -> Iterator[Keeper]:
        """A keeper that steps many times a second, as the plugin's thread does."""
        keeper, stop = self.keeper(), threading.Event()

        def run() -> None:
            while not stop.wait(0.02):
                keeper.step(time.time())

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield keeper
        finally:
            stop.set()
            thread.join(WAIT_S)


@contextmanager
def bench(profile: Profile = Profile.FAST, **kubernetes: object) -> Iterator[Bench]:
    """A bench whose devices are proven free; all of it is gone at the end."""
    settings = quick_settings().model_copy(update={"profile": profile})
    with directory("dra-") as state:
        made = Bench(state, settings, kubernetes=kubernetes)
        made.free()
        try:
            yield made
        finally:
            made.unplug()
            made.node.close()
