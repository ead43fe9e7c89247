"""The kubelet stand-in: finds plugins, runs pods, keeps the checkpoint, restarts and reboots.

It speaks to a plugin exactly as kubelet does (reference 1), so that a plugin which lives with it
has met every order of calls kubelet can produce. Pods are real processes on simulated devices.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from fleet.core import errors
from tests.lab.kubelet import checkpoint
from tests.lab.kubelet.pods import Phase, Pod, PodEvent, PodWorker, Surroundings, Told
from tests.lab.kubelet.registration import PluginRegistry
from tests.lab.kubelet.resources import ReadClaim, Resources
from tests.lab.kubelet.runtime import Runtime
from tests.lab.kubelet.timings import Timings

DeleteSlices = Callable[[str], None]
"""Deletes the node's ResourceSlices of one driver, or of all drivers for ""."""


def _nobody(event: PodEvent) -> None:
    """Events go nowhere by default."""


def _no_slices(driver: str) -> None:
    """Without an API server there are no slices."""


class KubeletSim:
    """Kubelet of one node. Safe for threads; starts nothing before `start`."""

    def __init__(
        self,
        root: Path,
        runtime: Runtime,
        *,
        read_claim: ReadClaim,
        timings: Timings | None = None,
        delete_slices: DeleteSlices = _no_slices,
        told: Told = _nobody,
    ) -> None:
        """`root` is kubelet's root directory, made with what is expected in it."""
        self.root = root
        self.runtime = runtime
        self.timings = timings or Timings()
        self.by_count = False
        """Show defect (a) of reference 1.5 from the next start on."""
        self.read_claim = read_claim
        self._delete_slices = delete_slices
        self._listener = told
        self._lock = threading.RLock()
        self._pods: dict[str, tuple[Pod, bool]] = {}
        """Pods at the API server, and whether they are being deleted."""
        self._workers: dict[str, PodWorker] = {}
        self._process: _Process | None = None
        self.events: list[PodEvent] = []
        (root / "plugins_registry").mkdir(parents=True, exist_ok=True)
        (root / "plugins").mkdir(parents=True, exist_ok=True)

    # --- the process ---------------------------------------------------------

    def start(self) -> None:
        """Kubelet starts: checkpoint read, plugins found, pods taken up where they are.

        Raises `CheckpointUnreadable`: a kubelet does not start on a damaged checkpoint.
        """
        with self._lock:
            if self._process is not None:
                raise errors.InputInvalid("this kubelet runs already")
            process = _Process(self)
            self._process = process
            alive = set(self._pods)
            for pod, deleting in tuple(self._pods.values()):
                self._begin(pod, deleting=deleting)
        process.begin(orphans=[u for u in self.runtime.sandboxes() if u not in alive])

    def stop(self) -> None:
        """Kubelet ends: containers run on, calls in flight are cut off, nothing is told."""
        with self._lock:
            process, self._process = self._process, None
            workers, self._workers = self._workers, {}
        for worker in workers.values():
            worker.end()
        if process is not None:
            process.close()
        for worker in workers.values():
            worker.join()

    def restart(self) -> None:
        """Stop and start: what is prepared is forgotten, the checkpoint is not."""
        self.stop()
        self.start()

    def power_off(self) -> None:
        """The node loses power: kubelet, every container and the CDI directory are gone.

        Whoever calls this ends the plugin too, changes the boot id, and calls `start`.
        """
        self.stop()
        self.runtime.power_off()

    # --- pods ----------------------------------------------------------------

    def add_pod(self, pod: Pod) -> None:
        """A pod is bound to this node."""
        with self._lock:
            self._pods[pod.uid] = (pod, False)
            if self._process is not None:
                self._begin(pod, deleting=False)

    def delete_pod(self, uid: str, *, force: bool = False) -> None:
        """The API's pod is deleted; with `force` the object is gone at once."""
        with self._lock:
            found = self._pods.get(uid)
            if found is None:
                raise errors.ApiNotFound(f"there is no pod {uid}")
            if force:
                del self._pods[uid]
            else:
                self._pods[uid] = (found[0], True)
            worker = self._workers.get(uid)
        if worker is not None:
            worker.delete(forced=force)

    def retry(self, uid: str) -> None:
        """An event of the pod (a changed annotation, say) makes kubelet look at it now."""
        with self._lock:
            worker = self._workers.get(uid)
        if worker is not None:
            worker.retry()

    def restart_container(self, uid: str) -> None:
        """Kill the pod's container; kubelet creates the next one in the same sandbox."""
        container = self.runtime.container(uid)
        if container is None:
            raise errors.ApiNotFound(f"pod {uid} has no container")
        container.kill()

    def phase(self, uid: str) -> Phase:
        """Where the pod is; GONE when kubelet knows nothing of it."""
        with self._lock:
            worker = self._workers.get(uid)
        return Phase.GONE if worker is None else worker.phase()

    def error(self, uid: str) -> str:
        """Why the pod does not get on; empty when it does."""
        with self._lock:
            worker = self._workers.get(uid)
        return "" if worker is None else worker.error

    def wait(self, condition: Callable[[], bool], *, timeout_s: float) -> bool:
        """Wait until `condition` holds; whether it came to hold in time."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        return True

    def wait_phase(self, uid: str, phase: Phase, *, timeout_s: float) -> bool:
        """Wait until the pod is in this phase; whether it came to be in time."""
        return self.wait(lambda: self.phase(uid) is phase, timeout_s=timeout_s)

    # --- what it knows -------------------------------------------------------

    @property
    def plugins(self) -> PluginRegistry:
        """The plugins of the running process. Raises `PluginUnavailable` when there is none."""
        return self._running().registry

    @property
    def resources(self) -> Resources:
        """The claims of the running process. Raises `PluginUnavailable` when there is none."""
        return self._running().resources

    def _running(self) -> _Process:
        process = self._process
        if process is None:
            raise errors.PluginUnavailable("this kubelet does not run")
        return process

    def _begin(self, pod: Pod, *, deleting: bool) -> None:
        worker = PodWorker(pod, self._running().around)
        self._workers[pod.uid] = worker
        if deleting:
            worker.delete(forced=False)
        worker.start()

    def active(self) -> set[str]:
        """UIDs of pods that are at work or at the API server."""
        with self._lock:
            busy = {u for u, worker in self._workers.items() if worker.phase() is not Phase.GONE}
            for uid in [u for u in self._pods if u in self._workers and u not in busy]:
                del self._pods[uid]  # terminal: the API server forgets it
            return busy | set(self._pods)

    def tell(self, event: PodEvent) -> None:
        """Note an event."""
        self.events.append(event)
        self._listener(event)

    def delete_slices(self, driver: str) -> None:
        """As given; a failure is only an event."""
        try:
            self._delete_slices(driver)
        except errors.FleetError as error:
            self.tell(PodEvent("", "SlicesNotDeleted", error.detail))


class _Process:
    """What exists once per kubelet process: registry, claims, the thread that looks around."""

    def __init__(self, kubelet: KubeletSim) -> None:
        self._kubelet = kubelet
        timings = kubelet.timings
        self.registry = PluginRegistry(
            kubelet.root / "plugins_registry",
            timings,
            lambda what, detail: kubelet.tell(PodEvent("", what, detail)),
        )
        self.resources = Resources(
            kubelet.root / checkpoint.NAME,
            read_claim=kubelet.read_claim,
            find=self.registry.find,
            call_s=timings.call_s,
            by_count=kubelet.by_count,
        )
        self.around = Surroundings(self.resources, kubelet.runtime, timings, kubelet.tell)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_around, name="kubelet", daemon=True)
        self._orphans: list[str] = []

    def begin(self, *, orphans: list[str]) -> None:
        """Start to look around; `orphans` are sandboxes of pods that the API has forgotten."""
        self._orphans = orphans
        self._thread.start()

    def close(self) -> None:
        """End; calls in flight fail."""
        self._over.set()
        self.registry.close()
        self._thread.join()
        self.registry.close()  # what was just being registered

    def _look_around(self) -> None:
        self._kubelet.delete_slices("")
        timings = self._kubelet.timings
        orphans_at = time.monotonic() + timings.orphan_period_s
        for uid in self._orphans:
            self._end_orphan(uid)
        while not self._over.is_set():
            now = time.monotonic()
            for driver in self.registry.tick(now):
                self._kubelet.delete_slices(driver)
            if now >= orphans_at:
                orphans_at = now + timings.orphan_period_s
                self._reconcile()
            self._over.wait(timings.poll_s)

    def _end_orphan(self, uid: str) -> None:
        """Containers of a pod the API has forgotten are ended; its claims are left to reconcile."""
        container = self._kubelet.runtime.container(uid)
        if container is not None:
            container.terminate()
            deadline = time.monotonic() + self._kubelet.timings.force_grace_s
            while container.running() and time.monotonic() < deadline:
                if self._over.wait(0.05):
                    return
            self._kubelet.runtime.remove_container(uid)
        self._kubelet.runtime.remove_sandbox(uid)
        self._kubelet.tell(PodEvent("", "OrphanEnded", uid))

    def _reconcile(self) -> None:
        try:
            for uid in self.resources.unprepare_absent(self._kubelet.active()):
                self._kubelet.tell(PodEvent("", "OrphanUnprepared", uid))
        except errors.FleetError as error:
            if not self._over.is_set():
                self._kubelet.tell(PodEvent("", "OrphanNotUnprepared", error.detail))
