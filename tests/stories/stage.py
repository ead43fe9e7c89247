"""What a story is told with: the footing of the suite, the coordinator, and a record of the API."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from fleet.core import errors
from fleet.kube import claim as claims
from fleet.kube.base import (
    CLAIMS,
    SLICES,
    Change,
    Cluster,
    Name,
    Object,
    Resource,
    uid_of,
    version_of,
)
from fleet.kube.claim import ClaimReading
from fleet.kube.marks import Marks
from tests.e2e.ground import Footing
from tests.e2e.place import Place
from tests.e2e.plugin_process import DRIVER, PluginProcess
from tests.e2e.polling import eventually
from tests.stories.worlds import World

MARKS = Marks(DRIVER)
WATCH_S = 5.0
WAIT_S = 60.0
LOG_LINES = 30


@dataclass(slots=True)
class CoordinatorProcess:
    """`fleet coordinate` over the plugin's state directory."""

    place: Place
    state: Path
    _process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """Where it says what it does."""
        return self.state.parent / "coordinator.log"

    def start(self) -> None:
        """Start it."""
        command = [sys.executable, "-m", "fleet.cli.main", "coordinate", "--state", str(self.state)]
        command += ["--kubeconfig", str(self.place.kubeconfig)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(10)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(20)

    def told(self) -> str:
        """The end of its log."""
        if not self.log.exists():
            return ""
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join((f"--- {self.log}", *lines))


@dataclass(frozen=True, slots=True)
class Told:
    """One version of an object, as a watch told it."""

    resource: Resource
    version: int
    change: Change
    object: Object


class Record:
    """Versions of slices and claims during a story, counted together by the server."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._told: list[Told] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._begun = {kind: threading.Event() for kind in (SLICES, CLAIMS)}
        for kind in self._begun:
            threading.Thread(target=self._follow, args=(kind,), daemon=True).start()
        for begun in self._begun.values():
            assert begun.wait(WAIT_S), "the watch does not begin"

    def close(self) -> None:
        """Watch no more."""
        self._over.set()

    def first(self, resource: Resource, fits: Callable[[Told], object]) -> int:
        """The earliest version that fits, once there is one."""
        return eventually(
            f"a version of {resource.plural} fits",
            lambda: min((one.version for one in self.told(resource) if fits(one)), default=0),
            timeout_s=10.0,
        )

    def told(self, resource: Resource) -> list[Told]:
        """What was told of this kind so far."""
        with self._lock:
            return [one for one in self._told if one.resource == resource]

    def _follow(self, resource: Resource) -> None:
        while not self._over.is_set():
            with suppress(errors.FleetError):
                for event in self._cluster.watch(resource, timeout_s=WATCH_S):
                    if event.change is Change.SYNCED:
                        self._begun[resource].set()
                        continue
                    version = int(version_of(event.object))
                    with self._lock:
                        self._told.append(Told(resource, version, event.change, event.object))
                    if self._over.is_set():
                        return
            self._over.wait(0.05)


@dataclass(kw_only=True)
class Stage(Footing):
    """A cluster with plugin and coordinator."""

    plugin: PluginProcess
    world: World
    coordinator: CoordinatorProcess
    broken: dict[str, str] = field(default_factory=dict)
    """Faults that have to be taken back, by device."""

    @contextmanager
    def recording(self) -> Iterator[Record]:
        """What happens at the API meanwhile."""
        record = Record(self.cluster)
        try:
            yield record
        finally:
            record.close()

    def break_device(self, device: str, fault: str, *options: str) -> None:
        """Break a device until `mend`."""
        self.broken[device] = fault
        self.plugin.fault(fault, device, *options)

    def slow_down(self, device: str) -> None:
        """Let wipes of this device take some seconds, which is no fault."""
        rate = 2_000_000 if self.world.real else 12_000_000
        self.break_device(device, "slow-memory", "--set", f"bytes_per_s={rate}")

    def mend(self) -> None:
        """Take all faults back; what they led to is decided by the operator."""
        for device, fault in self.broken.items():
            self.plugin.fault(fault, device, "--clear")
            view = self.plugin.device(device)
            if view is not None and view.reasons:
                reason = ("--reason", "the fault was taken back", "--operator", "tests")
                self.plugin.command("quarantine", "clear", device, *reason)
        self.broken.clear()

    @contextmanager
    def elsewhere(self) -> Iterator[Stage]:
        """The same stage in a namespace of its own."""
        name = f"fleet-story-{secrets.token_hex(3)}"
        self.world.open_namespace(name)
        try:
            yield replace(self, namespace=name)
        finally:
            self.world.end_namespace(name)

    # --- claims ---

    def named(self, source: dict[str, str]) -> Object:
        """The claim of `named_claim` now."""
        return self.cluster.get(CLAIMS, Name(source["resourceClaimName"], self.namespace))

    def reading(self, found: Object) -> ClaimReading:
        """A claim as the coordinator reads it."""
        return claims.read(found, MARKS)

    def live(self, found: Object) -> ClaimReading | None:
        """The same claim now; None when it is gone, or another of its name is there."""
        name = Name(found["metadata"]["name"], found["metadata"]["namespace"])
        with suppress(errors.ApiNotFound):
            now = self.cluster.get(CLAIMS, name)
            if uid_of(now) == uid_of(found):
                return self.reading(now)
        return None

    def in_prebind(self, pod: Name) -> Object:
        """The claim of a pod that the scheduler keeps waiting, once it is allocated."""

        def look() -> Object | None:
            claim = self.claim_of(pod)
            reading = self.reading(claim)
            assert "nodeName" not in self.pod(pod)["spec"], "it is bound already"
            return claim if reading.allocated and not reading.bound else None

        return eventually(f"{pod} waits in PreBind", look, timeout_s=WAIT_S, tell=self._told_all)

    def finalized(self, claim: Object) -> ClaimReading:
        """The claim once our finalizer is on: the write after the one that binds it."""

        def look() -> ClaimReading | None:
            now = self.live(claim)
            return now if now is not None and now.finalizer else None

        return eventually("our finalizer is on", look, timeout_s=WAIT_S, tell=self._told_all)

    def wiping_for(self, claim: Object, device: str) -> None:
        """Wait until the node wipes the device for this claim."""
        eventually(
            f"{device} is wiped for the claim",
            lambda: (
                (view := self.plugin.device(device)) is not None
                and view.state in ("WIPING", "CHECKING")
                and uid_of(claim) in view.operation
            ),
            timeout_s=WAIT_S,
            tell=self._told_all,
        )

    def clean_again(self, device: str) -> None:
        """Wait until a device is clean and nobody's."""
        eventually(
            f"{device} is clean",
            lambda: (
                (view := self.plugin.device(device)) is not None
                and view.state == "CLEAN"
                and not view.claim
            ),
            timeout_s=WAIT_S,
            tell=self._told_all,
        )

    def undone(self, claim: Object) -> None:
        """Wait until a claim has left nothing of ours: no lease, record, spec, hold, finalizer."""
        uid = uid_of(claim)

        def left() -> list[str]:
            found = [str(one.holder) for one in self.plugin.leases() if one.holder.name == uid]
            found += [one.state for one in self.plugin.claims() or () if one.uid == uid]
            found += [self.plugin.spec(uid).name] if self.plugin.spec(uid).exists() else []
            reading = self.live(claim)
            if reading is not None and reading.marked:
                found.append(f"{reading.raw.get('status')}, finalizer {reading.finalizer}")
            return found

        eventually(
            "nothing of ours is left of the claim",
            lambda: not left(),
            timeout_s=WAIT_S,
            tell=lambda: "\n".join((*left(), self._told_all())),
        )

    def _told_all(self) -> str:
        return "\n".join((*self.left(), self.plugin.told(), self.coordinator.told()))

    def told(self, name: Name) -> str:
        """All there is to know about a pod that does not do as it should."""
        return "\n".join((super().told(name), self.coordinator.told()))


def tainted(slice_: Object, device: str) -> bool:
    """Whether a device of this slice is tainted as quarantined."""
    return any(
        taint["key"] == f"{DRIVER}/quarantined"
        for one in slice_["spec"].get("devices") or ()
        if one["name"] == device
        for taint in one.get("taints") or ()
    )
