"""Carrying out the faults of a plan: signals to processes, closed addresses, removed files, disks.

What lasts is ended by a thread of its own, so that faults overlap as they fall.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.checks import living
from tests.chaos.life import MARKER
from tests.chaos.storm.campaigns import Campaigns
from tests.chaos.storm.fronts import Front
from tests.chaos.storm.plan import SHARED, Blow, Kind, Target
from tests.chaos.storm.site import Place
from tests.chaos.storm.system import System

WORKER_WAIT_S = 4.0


@dataclass
class Striker:
    """Strikes the system, and writes down what it did."""

    system: System
    campaigns: Campaigns
    missed: int = 0
    """Faults that met nobody: the victim was down already."""
    _lasting: list[threading.Thread] = field(default_factory=list)

    def strike(self, blow: Blow) -> None:
        """Carry one fault out, or say that there was nobody."""
        place = self.system.places[blow.node]
        lasts_s, told = 0.0, {}
        match blow.kind:
            case Kind.KILL:
                found = self._killed(blow, place)
                lasts_s = blow.lasts_s if blow.target in _FRONTS else 0.0
            case Kind.STOP | Kind.FREEZE:
                found, lasts_s = self._stopped(blow, place), blow.lasts_s
            case Kind.CUT:
                found = self._signalled([self._front(blow.target).pid], signal.SIGUSR1)
            case Kind.UNLINK:
                path = self._socket(blow.target, place)
                found = [0] if path.is_socket() else []
                path.unlink(missing_ok=True)
                told["file"] = path.name
            case Kind.FULL:
                found, lasts_s = [0], blow.lasts_s
                told["by"] = place.disk.told
                self._fill(blow, place)
        if not found:
            self.missed += 1
            self.system.story.tell("missed", number=blow.number, target=blow.target)
            return
        self.system.story.fault(
            number=blow.number,
            kind=blow.kind,
            target=blow.target,
            node="" if blow.target in SHARED else place.node,
            lasts_s=lasts_s,
            pids=[pid for pid in found if pid],
            **told,
        )

    def calm(self) -> None:
        """Wait until everything that lasts is over."""
        for thread in self._lasting:
            thread.join()

    # --- kinds ---

    def _killed(self, blow: Blow, place: Place) -> list[int]:
        if blow.target is Target.HEAD:
            return self.system.rays.head.kill()
        if blow.target in _FRONTS:
            name = _FRONTS[blow.target]
            front = self._front(blow.target)
            if name in self.system.held or not front.pid:
                return []
            self.system.held.add(name)
            found = self._signalled([front.pid], signal.SIGKILL)
            self._later(blow.lasts_s, lambda: self.system.held.discard(name))
            return found
        return self._signalled(self._victims(blow, place), signal.SIGKILL)

    def _stopped(self, blow: Blow, place: Place) -> list[int]:
        if blow.target in _FRONTS:
            victims = [self._front(blow.target).pid]
        elif blow.target is Target.CLOUD:
            victims = [self.system.cloud_pid]
        elif blow.target is Target.HEAD:
            victims = self.system.rays.head.find("gcs_server")
        else:
            victims = self._victims(blow, place)
        found = self._signalled(victims, signal.SIGSTOP)
        self._later(blow.lasts_s, lambda: self._signalled(found, signal.SIGCONT))
        return found

    def _fill(self, blow: Blow, place: Place) -> None:
        found = [pid for pid, _ in self._processes() if pid != os.getpid()]
        place.disk.fill(found)
        self._later(blow.lasts_s, lambda: place.disk.empty(found))

    def _socket(self, target: Target, place: Place) -> Path:
        if target is Target.DOOR:
            return place.directory / "door.sock"
        driver = self.system.plans[place.node].settings.kubernetes.driver
        return place.kubelet / "plugins" / driver / "dra.sock"

    # --- whom ---

    def _victims(self, blow: Blow, place: Place) -> list[int]:
        rays = self.system.rays
        match blow.target:
            case Target.WORKER:
                return self._one(blow, self._awaited_workers(place))
            case Target.ACTOR:
                return rays.raylets[place.node].find("ray::NodeActor")
            case Target.COORDINATOR:
                trees = (rays.head, *rays.raylets.values())
                return [pid for tree in trees for pid in tree.find("ray::CoordinatorActor")]
            case Target.PLUGIN:
                return [self.system.plugins[place.node].pid]
            case Target.STANDBY:
                return self._children(place, "standby")
            case Target.BRIDGE:
                return self._children(place, "actors.bridge")
            case Target.RAYLET:
                return rays.raylets[place.node].find("raylet/raylet")
            case Target.CAMPAIGN:
                return [self.campaigns.pid]
        return []

    def _awaited_workers(self, place: Place) -> list[int]:
        """Those of the node; waited for a little, since each lives for one wipe only."""
        deadline = time.monotonic() + WORKER_WAIT_S
        while not (found := self._workers(place)) and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        return found

    def _workers(self, place: Place) -> list[int]:
        owner = place.owner()
        return [
            pid
            for pid, command in self._processes()
            if "fleet.devices.wipe.worker" in command and _parent(pid) == owner
        ]

    def _children(self, place: Place, word: str) -> list[int]:
        plan = f"/{place.node}/plan.json"
        return [
            pid
            for pid, command in self._processes()
            if word in command and plan in command and "node_plugin" not in command
        ]

    def _processes(self) -> list[tuple[int, str]]:
        found = []
        for pid in living(MARKER, str(self.system.root)):
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                found.append((pid, words.replace(b"\0", b" ").decode(errors="replace")))
        return found

    def _one(self, blow: Blow, found: Sequence[int]) -> list[int]:
        return [sorted(found)[int(blow.chance * len(found))]] if found else []

    def _front(self, target: Target) -> Front:
        return {
            Target.CLOUD_FRONT: self.system.cloud_front,
            Target.API_FRONT: self.system.api_front,
        }[target]

    # --- doing it ---

    def _signalled(self, pids: Sequence[int], number: signal.Signals) -> list[int]:
        found = []
        for pid in pids:
            if pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
                    found.append(pid)
        return found

    def _later(self, pause_s: float, act: Callable[[], object]) -> None:
        def wait() -> None:
            threading.Event().wait(pause_s)
            act()

        thread = threading.Thread(target=wait, daemon=True)
        self._lasting.append(thread)
        thread.start()


_FRONTS = {Target.CLOUD_FRONT: "cloud", Target.API_FRONT: "api"}


def _parent(pid: int) -> int:
    with suppress(OSError, ValueError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    return 0
