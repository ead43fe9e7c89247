"""Which processes are known infrastructure: a list kept as data, the same for every back end."""

from __future__ import annotations

import functools
import os
import stat
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from fleet.model import Process, ProcessKind

COMM_LENGTH = 15
"""Characters of a process name the kernel keeps."""
OURS = "fleet-driver"
"""How processes of this service are called that ask a driver."""
WIPE = "wipe"
"""Work during which a listed daemon may stay. Nothing may stay during a reset."""
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Daemon:
    """One row of the list."""

    name: str
    text: str
    """What it does, in a few words."""
    allowed_for: frozenset[str]
    """Kinds of work it may stay for."""
    source: str
    """Where its name and the need to expect it were read."""


@functools.cache
def rows() -> tuple[Daemon, ...]:
    """The list, in its order. Raises TypeError or KeyError for a row that is not complete."""
    text = resources.files(__package__).joinpath("infrastructure.toml").read_text()
    return tuple(
        Daemon(**{**row, "allowed_for": frozenset(row["allowed_for"])})
        for row in tomllib.loads(text)["daemon"]
    )


@functools.cache
def daemons() -> frozenset[str]:
    """Names of daemons that may stay for a wipe, whole and as the kernel cuts them."""
    names = {row.name for row in rows() if WIPE in row.allowed_for}
    return frozenset(names | {name[:COMM_LENGTH] for name in names})


def described(process: Process) -> str:
    """A process for a message: name, pid and, of a listed daemon, what it does."""
    known = process.kind is ProcessKind.INFRASTRUCTURE
    for row in rows() if known else ():
        if process.name in (row.name, row.name[:COMM_LENGTH]):
            return f"{process.name} (pid {process.pid}), which {row.text}"
    return f"{process.name} (pid {process.pid})"


def listed(processes: Iterable[Process]) -> str:
    """Processes for a message, each as `described`."""
    return ", ".join(described(process) for process in processes)


def kind(name: str, pid: int, *, proc: Path = _PROC) -> ProcessKind:
    """What a process is to us, unless it is ours. `proc`: where the host's processes are seen.

    A name is the process's own choice, so a listed one counts only for a process of the host
    (`is_of_the_host`) that runs the program of that name; our own, and no other, is a script.
    """
    known = name in daemons() and is_of_the_host(pid, proc=proc) and _runs(name, proc / str(pid))
    return ProcessKind.INFRASTRUCTURE if known else ProcessKind.FOREIGN


def is_of_the_host(pid: int, *, proc: Path = _PROC) -> bool:
    """Whether a process runs as root or as we do, in the host's or our own mount namespace.

    Started so, too: any user starts a program that takes on its owner's rights, under any name and
    with descriptors and an environment of his choice. False as well where it cannot be told.
    """
    process = proc / str(pid)
    if not sees_files_of_host(pid, proc=proc):
        return False  # and its files may lie where asking for them never ends
    try:
        started_by_anybody = (process / "exe").stat().st_mode & (stat.S_ISUID | stat.S_ISGID)
        return _users(process) <= {0, os.geteuid()} and not started_by_anybody
    except OSError:
        return False


def _users(process: Path) -> set[int]:
    """Its real, effective, saved and file system users. Raises OSError where they are not shown."""
    for line in (process / "status").read_bytes().splitlines():
        if line.startswith(b"Uid:") and len(line.split()) > 1:
            return {int(user) for user in line.split()[1:]}
    raise FileNotFoundError(f"{process / 'status'} names no user")


def _runs(name: str, process: Path) -> bool:
    """Whether the file a process runs has this name, whole or as the kernel cuts it."""
    try:
        program = (process / "exe").readlink().name.removesuffix(" (deleted)")
    except OSError:
        return False
    if name == OURS:
        return program.startswith("python")
    return program in daemons() and program[:COMM_LENGTH] == name[:COMM_LENGTH]


def sees_files_of_host(pid: int, *, proc: Path = _PROC) -> bool:
    """Whether a process lives in the host's or our own mount namespace, so that its paths are."""
    try:
        return _mounts(proc / str(pid)) in _namespaces(proc)
    except OSError:
        return False


def _mounts(process: Path) -> str:
    """Name of a process's mount namespace, unique among those that live."""
    return str((process / "ns" / "mnt").readlink())


def _namespaces(proc: Path) -> set[str]:
    found: set[str] = set()
    for host in ("self", "1"):
        with suppress(OSError):
            found.add(_mounts(proc / host))
    return found
