"""Hosts on one machine: names of their own for processes, and small disks of their own.

A bridge finds the raylet of its machine by the host's name, so every node's processes run in a UTS
namespace with a name of its own, and its state is on a tmpfs of a few MiB, mounted where only the
storm sees it. Where namespaces are not to be had there is one node, and its disk is filled by a
limit on the size of files (RLIMIT_FSIZE), which `Ground` says.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ENTERED = "FLEET_STORM_GROUND"
"""Environment variable of the program once it runs in namespaces of its own."""
PLAIN = "plain"
OWN = "namespaces"
DISK_BYTES = 48 << 20
BALLAST = "ballast"
PIECE = bytes(1 << 16)
_UNSHARE = ("unshare", "--mount", "--uts", "--propagation", "private")
_MAPPED = ("unshare", "--user", "--map-root-user", "--mount", "--uts", "--propagation", "private")
_NAMED = 'hostname "$0" && exec "$@"'
_TRIAL = "hostname storm-trial && mount -t tmpfs -o size=64k tmpfs /mnt"


def enter(arguments: Sequence[str]) -> None:
    """Run this program again in namespaces of its own, if they are to be had; else go on."""
    if ENTERED in os.environ:
        return
    for wrap in (_UNSHARE, _MAPPED):
        with suppress(OSError):
            tried = subprocess.run([*wrap, "sh", "-c", _TRIAL], check=False, capture_output=True)
            if tried.returncode == 0:
                command = [*wrap, sys.executable, "-m", "tests.chaos.storm", *arguments]
                os.environ[ENTERED] = OWN
                os.execvp(command[0], command)  # noqa: S606 - no shell is meant
    os.environ[ENTERED] = PLAIN


def own() -> bool:
    """Whether hosts have names and disks of their own."""
    return os.environ.get(ENTERED) == OWN


def named(host: str, command: Sequence[str]) -> list[str]:
    """The command on a host of this name; its process id is that of the command."""
    if not own():
        return list(command)
    return ["unshare", "--uts", "sh", "-c", _NAMED, host, *command]


@dataclass
class Disk:
    """The disk of one node's state."""

    directory: Path

    @property
    def told(self) -> str:
        """What stands for a full disk here."""
        return f"tmpfs of {DISK_BYTES >> 20} MiB filled" if own() else "RLIMIT_FSIZE of 0"

    def make(self) -> None:
        """Mount it, where that is to be had."""
        self.directory.mkdir(parents=True)
        if own():
            size = f"size={DISK_BYTES}"
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(self.directory)], check=True
            )

    def fill(self, pids: Iterable[int]) -> None:
        """No byte more can be written (by these processes, without a disk of our own)."""
        if not own():
            _limit(pids, 0)
            return
        ballast = os.open(self.directory / BALLAST, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            with suppress(OSError):
                while True:
                    os.write(ballast, PIECE)
            with suppress(OSError):
                while True:
                    os.write(ballast, b"\0")
        finally:
            os.close(ballast)

    def empty(self, pids: Iterable[int]) -> None:
        """There is room again."""
        if own():
            (self.directory / BALLAST).unlink(missing_ok=True)
        else:
            _limit(pids, resource.RLIM_INFINITY)

    def end(self) -> None:
        """Unmount it."""
        if own():
            subprocess.run(["umount", "--lazy", str(self.directory)], check=False)


def _limit(pids: Iterable[int], most_bytes: int) -> None:
    for pid in pids:
        with suppress(OSError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most_bytes, hard))
