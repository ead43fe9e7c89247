"""A Ray with a head and a raylet for each node, each on a host of its own name.

The trees of `tests.actors.trees` with more than one node. A raylet that was struck is started again
as its supervisor would: once the ``ray start`` above it has ended, with whatever it left killed.
When the head goes, all of Ray goes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from actors.identity import HOST_LABEL
from tests.actors.trees import MARK, Rays, Tree
from tests.chaos.storm import hosts

RESOURCES = ("--num-cpus=1", "--num-gpus=0", "--object-store-memory=80000000")
HEAD_HOST = "head"
PATIENCE = {"RAY_gcs_rpc_server_reconnect_timeout_s": "15"}
UP = b"This command will now block forever"
"""What ``ray start --block`` says once everything of it runs."""


@dataclass
class HostTree(Tree):
    """The processes of one ``ray start`` on a host of its own name."""

    name: str = ""
    _from: int = 0
    """Where in the log this start begins."""

    def start(self) -> None:
        """Start it, whatever was left of it killed."""
        self.reap()
        command = [str(Path(sys.executable).parent / "ray"), "start", "--block"]
        command += ["--disable-usage-stats", *self.arguments]
        with self._log.open("ab") as log:
            self._from = log.tell()
            self._process = subprocess.Popen(
                hosts.named(self.name, command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self.rays.environment(), MARK: f"{self.rays.token}-{self.mark}"},
                start_new_session=True,
            )

    @property
    def _log(self) -> Path:
        return self.rays.directory / f"{self.mark}.log"

    @property
    def begun(self) -> bool:
        """Whether all of it runs by its own word; only then another one is started beside it."""
        return not self.ended and UP in self._log.read_bytes()[self._from :]

    @property
    def failed(self) -> bool:
        """Whether it has ended by itself before all of it ran: Ray gives a start 30 s."""
        process = self._process
        if process is None or not process.poll():
            return False
        return process.returncode > 0 and UP not in self._log.read_bytes()[self._from :]

    @property
    def ended(self) -> bool:
        """Whether it is over: killed, or it lost what it needs."""
        return self._process is None or self._process.poll() is not None

    def find(self, word: str) -> list[int]:
        """Processes whose command line has `word`, without those that merely started them."""
        return [pid for pid in self.pids(word) if not _is_starter(pid)]


def _is_starter(pid: int) -> bool:
    with suppress(OSError):
        return b"ray\0start\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return True


@dataclass
class Patient(Rays):
    """A cluster that gives a busy machine time, and outlasts a head that stands still."""

    def environment(self) -> dict[str, str]:
        """As `Rays.environment`, with more time."""
        return {**super().environment(), **PATIENCE}


class Cluster:
    """The head and the raylets of `names`. `supervise` starts again what ended."""

    def __init__(self, names: Iterable[str]) -> None:
        self.rays = Patient()
        self.head = HostTree(self.rays, "head", self.rays.head.arguments, name=HEAD_HOST)
        self.raylets = {
            name: HostTree(
                self.rays,
                f"raylet-{name}",
                (f"--address={self.address}", f"--labels={HOST_LABEL}={name}", *RESOURCES),
                name=name,
            )
            for name in names
        }
        self.starts = 0
        """How often the head was started."""
        self._lock = threading.Lock()
        self._closing = False
        self._one_by_one = False

    @property
    def address(self) -> str:
        """Where the head answers."""
        return self.rays.address

    def start(self) -> None:
        """The head; the raylets come with the next looks."""
        # A head refuses to start where a file says that another one runs.
        shutil.rmtree(self.rays.directory / "ray", ignore_errors=True)
        self.head.start()
        self.starts += 1

    def supervise(self) -> None:
        """Start again what has ended; one at a time where several took too long."""
        with self._lock:
            if self._closing:
                return
            if self.head.ended:
                for raylet in self.raylets.values():
                    raylet.reap()
                self.head.reap()
                self.start()
            elif self.head.begun:
                for raylet in self.raylets.values():
                    if raylet.ended:
                        self._one_by_one |= raylet.failed
                        raylet.start()
                    if self._one_by_one and not raylet.begun:
                        return

    def end(self) -> None:
        """Kill everything and remove the files."""
        self._closing = True
        with self._lock:
            for tree in (*self.raylets.values(), self.head):
                for pid in tree.pids():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                tree.reap()
        shutil.rmtree(self.rays.directory, ignore_errors=True)
