"""Pods that come and go on every device while the storm lasts, and what each of them must find.

A slot is one device: it is scheduler, kubelet and user for one pod after the other. Kubelet repeats
an unprepare until it succeeds; a prepare is given up after a while, as users give up. Whatever a
pod finds that it must not find is a broken promise.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fleet.core import errors
from fleet.core.errors import FleetError
from fleet.kube.base import CLAIMS, Name, uid_of
from fleet.plugin.requests import AskedClaim
from tests.chaos.storm.exposure import Exposures
from tests.chaos.storm.site import Place
from tests.chaos.storm.system import System
from tests.lab.kubelet.cgroups import PodCgroups
from tests.lab.kubelet.connection import V1, Connection
from tests.lab.kubelet.control import ControlPlane, Seen
from tests.lab.kubelet.resources import PodIdentity, Resources
from tests.lab.kubelet.runtime import Container, Runtime

NAMESPACE = "tenants"
SECRET_BYTES = 64
CALL_S = 20.0
PAUSE_S = 0.25
READY_MAX_S = 60.0
PREPARE_MAX_S = 90.0
CONTAINER_MAX_S = 30.0
"""Time, s, in which a container of a prepared pod can be made; kubelet tries again and again."""
LIVES_S = (0.5, 4.0)
CALM_MAX_S = 240.0
"""Time, s, without faults in which kubelet's repeated unprepare succeeds."""
FORCED, EARLY = 0.12, 0.1
"""How often a pod is deleted by force, and how often kubelet asks for a teardown too early."""


class Kubelet:
    """Kubelet and container runtime of one node. They live on, whoever else dies."""

    def __init__(self, system: System, place: Place) -> None:
        plan = system.plans[place.node]
        driver = plan.settings.kubernetes.driver
        self.place = place
        self.runtime = Runtime(place.disk.directory / "cdi", PodCgroups(place.cgroups))
        self.connection = Connection(str(place.kubelet / "plugins" / driver / "dra.sock"), V1)
        self.resources = Resources(
            place.kubelet / "dra_manager_state",
            read_claim=lambda namespace, name: system.cluster.get(CLAIMS, Name(name, namespace)),
            find=lambda _: self.connection,
            call_s=CALL_S,
        )

    def end(self) -> None:
        """Hang up, and end what still runs."""
        self.connection.close()
        self.runtime.power_off()


@dataclass
class _Pod:
    name: Name
    claimed: Name
    uid: str = ""
    claim: str = ""
    secret: bytes = b""

    @property
    def identity(self) -> PodIdentity:
        return PodIdentity(NAMESPACE, self.name.name, self.uid, (self.claimed.name,))


@dataclass
class Slot:
    """One device and its pods, one after the other; `step` is one pod's life."""

    system: System
    kubelet: Kubelet
    exposures: Exposures
    device: int
    stopping: threading.Event
    """Set once no new pod is to come."""
    calm: threading.Event
    """Set once no fault falls any more."""
    pods: int = 0
    busy: bool = False
    _calm_at: float = field(default=0.0)

    def __post_init__(self) -> None:
        node = self.kubelet.place.node
        self._control = ControlPlane(self.system.cluster, node=node, now=time.time)
        self._chance = random.Random(f"{self.system.story.seed}/{node}/{self.device}")
        self._breaks = self.system.story.breaks

    def step(self) -> None:
        """One pod, if its device is on offer."""
        if self.stopping.is_set():
            return
        seen = self._offered()
        if seen is None:
            return
        self.busy = True
        try:
            self._live(seen)
        finally:
            self.busy = False

    def _offered(self) -> Seen | None:
        free = {seen.name: seen for seen in self._control.free()}
        every = sorted(seen.name for seen in self._control.devices() if seen.has_memory)
        return free.get(every[self.device]) if self.device < len(every) else None

    def _live(self, seen: Seen) -> None:
        self.pods += 1
        name = f"{self.kubelet.place.node}-{self.device}-{self.pods}"
        pod = _Pod(Name(f"pod-{name}", NAMESPACE), Name(f"claim-{name}", NAMESPACE))
        pod.claim = uid_of(self._control.create_claim(pod.claimed))
        made = self._control.create_pod(pod.name, claim=pod.claimed.name)
        pod.uid = uid_of(made)
        self._control.allocate(pod.claimed, made, seen)
        if not self._until(lambda: self._control.ready(pod.claimed), READY_MAX_S):
            self.system.story.tell("pod given up", pod=pod.name.name, why="not ready to be bound")
            self._gone(pod)
            return
        self._control.bind(pod.name)
        self.kubelet.runtime.start_sandbox(pod.uid)
        if self._prepared(pod):
            container = self._container(pod)
            if container is not None:
                self._run(pod, container)
        self._leave(pod)

    def _prepared(self, pod: _Pod) -> bool:
        last = ""

        def prepared() -> bool:
            nonlocal last
            try:
                self.kubelet.resources.prepare(pod.identity)
            except FleetError as error:
                last = error.detail
                return False
            return True

        if self._until(prepared, PREPARE_MAX_S):
            return True
        self.system.story.tell("pod given up", pod=pod.name.name, why=last)
        return False

    def _container(self, pod: _Pod) -> Container | None:
        found = next(one for one in self.kubelet.resources.entries() if one.uid == pod.claim)
        ids = [
            cdi for listed in found.drivers.values() for device in listed for cdi in device.cdi_ids
        ]
        made: list[Container] = []
        last = ""

        def created() -> bool:
            nonlocal last
            try:
                made.append(self.kubelet.runtime.create(pod.uid, ids))
            except FleetError as error:
                last = error.detail
                return False
            return True

        if not self._until(created, CONTAINER_MAX_S):
            self._breaks(f"{pod.name} is prepared and its container cannot be made: {last}")
            return None
        return made[0]

    # --- a container's life ---

    def _run(self, pod: _Pod, container: Container) -> None:
        memory = Path(container.edits.memories[0])
        if not self.exposures.begin(memory, pod.name.name):
            return
        try:
            self.exposures.judge_memory(memory, pod.name.name)
            seen = container.ask("search", self.exposures.last_secret(memory))
            if seen["found"] or seen["nonzero"]:
                self._breaks(f"{pod.name} finds {seen['nonzero']} bytes that are not zero")
            pod.secret = self._chance.randbytes(SECRET_BYTES)
            self.exposures.plant(memory, pod.name.name, pod.secret)
            container.ask("write", pod.secret)
            self.exposures.judge_proof(self.kubelet.place, memory, pod.name.name, pod.claim)
            if self._chance.random() < EARLY:
                self._ask_early(pod)
            forced = self._chance.random() < FORCED
            until = time.monotonic() + self._chance.uniform(*LIVES_S)
            while time.monotonic() < until:
                self._still_there(pod, container, memory)
                threading.Event().wait(PAUSE_S)
            if forced:
                self._erased(pod, container, memory)
            self._still_there(pod, container, memory)
        finally:
            self.exposures.end(memory)

    def _still_there(self, pod: _Pod, container: Container, memory: Path) -> None:
        if not container.running():
            self._breaks(f"{pod.name}: its process was ended while it ran")
        elif pod.secret not in memory.read_bytes():
            self._breaks(f"{pod.name} lost its memory while it ran")

    def _ask_early(self, pod: _Pod) -> None:
        """Kubelet may ask for a teardown under a running pod: refused, and nothing changes."""
        asked = AskedClaim(NAMESPACE, pod.claim, pod.claimed.name)
        with suppress(FleetError):
            answer = self.kubelet.connection.unprepare([asked], timeout_s=CALL_S)[pod.claim]
            if not answer.error:
                self._breaks(f"{pod.name} was torn down while it runs")

    def _erased(self, pod: _Pod, container: Container, memory: Path) -> None:
        """Deleted by force: the API forgets the pod while its container runs on."""
        with suppress(errors.ApiNotFound):
            self._control.erase(pod.name, phase="Failed")
        self._control.settle()
        if self._offered() is not None:  # it would be refused; a scheduler is sent in vain
            self.system.story.tell("on offer while in use", pod=pod.name.name)
        until = time.monotonic() + self._chance.uniform(0.5, 2.0)
        while time.monotonic() < until:
            self._still_there(pod, container, memory)
            threading.Event().wait(PAUSE_S)

    # --- the end of a pod ---

    def _leave(self, pod: _Pod) -> None:
        with suppress(errors.ApiNotFound):
            self._control.mark_deleted(pod.name)
        self.kubelet.runtime.remove_container(pod.uid)
        last = ""
        calm_at = 0.0
        while True:
            try:
                self.kubelet.resources.unprepare(pod.identity)
                break
            except FleetError as error:
                last = error.detail
            if self.calm.is_set():
                calm_at = calm_at or time.monotonic()
                if time.monotonic() - calm_at > CALM_MAX_S:
                    self._breaks(f"the teardown of {pod.name} does not end: {last}")
                    break
            threading.Event().wait(PAUSE_S)
        specs = self.kubelet.place.disk.directory / "cdi"
        left = [path.name for path in specs.glob(f"*{pod.claim}*.json")]
        if left:
            self._breaks(f"{pod.name} was torn down, {left} is left")
        self.kubelet.runtime.remove_sandbox(pod.uid)
        self._gone(pod)

    def _gone(self, pod: _Pod) -> None:
        """The objects of the pod go."""
        with suppress(errors.ApiNotFound):
            self._control.erase(pod.name)
        self._control.settle()
        with suppress(errors.ApiNotFound):
            self._control.delete_claim(pod.claimed)

    def _until(self, ask: Callable[[], bool], limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while True:
            with suppress(errors.ApiNotFound):
                if ask():
                    return True
            if time.monotonic() > deadline:
                return False
            threading.Event().wait(PAUSE_S)
