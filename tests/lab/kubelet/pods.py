"""The life of one pod on kubelet: prepare, containers, end, unprepare, each with its retries.

One thread per pod, as kubelet has one worker per pod: a pod that waits for its device holds up
nobody else. What the pod is made of (sandbox, container, checkpoint) outlives the worker, so that a
kubelet which starts again finds it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from fleet.core import errors
from tests.lab.kubelet.resources import PodIdentity, Resources
from tests.lab.kubelet.runtime import Runtime
from tests.lab.kubelet.timings import Timings

_LOOK_S = 0.05


class Phase(StrEnum):
    """Where a pod is."""

    PENDING = "Pending"
    RUNNING = "Running"
    TERMINATING = "Terminating"
    GONE = "Gone"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of one container. `stubborn`: its process ignores SIGTERM."""

    identity: PodIdentity
    stubborn: bool = False

    @property
    def uid(self) -> str:
        return self.identity.uid


@dataclass(frozen=True, slots=True)
class PodEvent:
    """Something kubelet did for a pod, in the words of its events."""

    pod: str
    """Name; empty for what concerns no pod."""
    what: str
    detail: str = ""
    took_s: float = 0.0


Told = Callable[[PodEvent], None]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all pods of one kubelet process share."""

    resources: Resources
    runtime: Runtime
    timings: Timings
    told: Told


class PodWorker:
    """Drives one pod until it is gone or kubelet ends."""

    def __init__(self, pod: Pod, around: Surroundings) -> None:
        self.pod = pod
        self.error = ""
        """Why the last attempt failed; empty once it succeeded."""
        self._around = around
        self._wake = threading.Event()
        self._over = threading.Event()
        self._deleted = False
        self._forced = False
        self._gone = False
        self._thread = threading.Thread(target=self._run, name=f"pod {pod.identity.name}")
        self._thread.daemon = True

    def phase(self) -> Phase:
        """Where the pod is now."""
        if self._gone:
            return Phase.GONE
        if self._deleted:
            return Phase.TERMINATING
        container = self._around.runtime.container(self.pod.uid)
        return Phase.RUNNING if container is not None and container.running() else Phase.PENDING

    def start(self) -> None:
        """Begin, or go on from what is there."""
        self._thread.start()

    def delete(self, *, forced: bool) -> None:
        """The pod is to end. A forced deletion shortens one that is under way."""
        self._forced = self._forced or forced
        self._deleted = True
        self._wake.set()

    def retry(self) -> None:
        """Something about the pod changed: what waits for a retry is tried now."""
        self._wake.set()

    def end(self) -> None:
        """Kubelet ends: leave everything as it is."""
        self._over.set()
        self._wake.set()

    def join(self) -> None:
        """Wait until the worker has ended."""
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set() and not self._gone:
            wait_s = self._terminated() if self._deleted else self._synced()
            if wait_s:
                self._wake.wait(wait_s)
            self._wake.clear()

    def _synced(self) -> float:
        """One step of a pod that is to run; returns how long, s, to wait before the next."""
        around, uid = self._around, self.pod.uid
        container = around.runtime.container(uid)
        if container is not None and container.running():
            return _LOOK_S
        if container is not None:
            around.runtime.remove_container(uid)
            self._tell("ContainerDied", f"process {container.pid}")
        if uid not in around.runtime.sandboxes() and not self._prepared():
            return around.timings.prepare_retry_s
        return _LOOK_S if self._created() else around.timings.container_retry_s

    def _prepared(self) -> bool:
        began = time.monotonic()
        try:
            asked = self._around.resources.prepare(self.pod.identity)
        except errors.FleetError as error:
            self._failed("FailedPrepareDynamicResources", error, began)
            return False
        self._around.runtime.start_sandbox(self.pod.uid)
        if asked:
            devices = self._around.resources.devices(self.pod.identity)
            names = ", ".join(f"{one.pool}/{one.device}" for one in devices)
            self._tell("NodePrepareResources answered", names, began)
        return True

    def _created(self) -> bool:
        began = time.monotonic()
        devices = self._around.resources.devices(self.pod.identity)
        ids = [cdi for device in devices for cdi in device.cdi_ids]
        try:
            container = self._around.runtime.create(self.pod.uid, ids, stubborn=self.pod.stubborn)
        except errors.FleetError as error:
            self._failed("CreateContainerError", error, began)
            return False
        self.error = ""
        self._tell("Started", f"process {container.pid}", began)
        return True

    def _terminated(self) -> float:
        """One step of a pod that is to end."""
        around, uid = self._around, self.pod.uid
        if around.runtime.container(uid) is not None and not self._stopped():
            return _LOOK_S
        began = time.monotonic()
        try:
            asked = around.resources.unprepare(self.pod.identity)
        except errors.FleetError as error:
            self._failed("FailedUnprepareDynamicResources", error, began)
            return around.timings.unprepare_retry_s
        if asked:
            self._tell("NodeUnprepareResources answered", "", began)
        around.runtime.remove_sandbox(uid)
        self.error = ""
        self._gone = True
        return 0.0

    def _stopped(self) -> bool:
        """Whether the container was brought to its end; not when kubelet ends first."""
        container = self._around.runtime.container(self.pod.uid)
        if container is None:
            return True
        began = time.monotonic()
        container.terminate()
        while container.running():
            if self._over.is_set():
                return False
            timings = self._around.timings
            grace_s = timings.force_grace_s if self._forced else timings.grace_s
            if time.monotonic() - began >= grace_s:
                break
            self._over.wait(_LOOK_S)
        killed = container.running()
        self._around.runtime.remove_container(self.pod.uid)
        self._tell("Killed" if killed else "Stopped", f"process {container.pid}", began)
        return True

    def _failed(self, what: str, error: errors.FleetError, began: float) -> None:
        if self._over.is_set():
            return  # kubelet hung up itself
        self.error = error.detail
        self._tell(what, error.detail, began)

    def _tell(self, what: str, detail: str, began: float | None = None) -> None:
        took = 0.0 if began is None else time.monotonic() - began
        self._around.told(PodEvent(self.pod.identity.name, what, detail, took))
