"""MPS daemons and servers among the processes of a node, and which device each of them holds.

Both are known by what they call themselves, which anybody can. One of the host that may serve a
device holds it, clients or not: our own processes would run inside its server. One in a container
holds what it or its servers have, and no more: else any pod could block every GPU by a name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fleet.core import errors
from fleet.core.model import Process, ProcessKind
from fleet.core.processes import sees_files_of_host
from fleet.devices import threads
from fleet.devices.nvidia import nvml
from fleet.devices.sysfs import read_text

CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"
_CUT = "nvidia-cuda-mps"
"""What the kernel shows of either name."""
PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 # the vendor's default, not ours
LOG_DIRECTORY = "/var/log/nvidia-mps"
"""Where a daemon has its pipes and logs unless its environment says otherwise."""
PIPE_VARIABLE, LOG_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
_POD = re.compile(
    r"kubepods[^\n]*[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?=[./\n]|$)"
)
_PARENT, _START_TIME = 1, 19
"""Fields of ``stat``, counted from the state after the name."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """One control daemon. Paths are the host's."""

    pid: int
    started: int
    """Start time in ticks since boot: with the pid, its identity."""
    user: int
    pipes: str
    logs: str
    visible: tuple[str, ...] | None
    """Devices it was limited to, by UUID or index; None: all of them."""
    of_host: bool = False
    """Whether it sees the host's files. Paths of any other are not the host's, and not ours to
    touch; it is asked nothing."""
    pod: str = ""
    """UID of the pod it runs in; "": in none, or that is not told."""
    servers: frozenset[int] = frozenset()
    """Pids of the servers it started."""

    def serves(self, uuid: str) -> bool:
        """Whether it may take in clients of this device; in doubt it does.

        A beginning of a UUID names a device too, and an index may name any.
        """
        if self.visible is None:
            return True
        return any(not _is_uuid(name) or uuid.startswith(name) for name in self.visible)

    def holds(self, uuid: str, holding: Collection[int]) -> bool:
        """Whether it keeps this device, which the pids `holding` have, from being free."""
        if self.of_host:
            return self.serves(uuid)
        return self.pid in holding or not self.servers.isdisjoint(holding)


@dataclass(frozen=True, slots=True)
class Found:
    """Everything of MPS on a node at one moment."""

    daemons: tuple[Daemon, ...] = ()
    servers: tuple[Process, ...] = ()
    """Servers, and processes of which only the cut name can be read."""

    def holding(self, uuid: str, holding: Collection[int] = ()) -> tuple[Daemon, ...]:
        """Daemons that hold the device, which the pids `holding` have."""
        return tuple(daemon for daemon in self.daemons if daemon.holds(uuid, holding))

    def serving(self, holding: Collection[int]) -> tuple[Process, ...]:
        """Servers among the pids `holding` a device. One whose daemon has gone is one too."""
        return tuple(server for server in self.servers if server.pid in holding)


def find(root: Path) -> Found:
    """Daemons and servers among the processes below ``<root>/proc``. Raises `BackendFailed`."""
    daemons: list[Daemon] = []
    servers: list[Process] = []
    started: dict[int, set[int]] = {}
    for process in _processes(root):
        if not (read_text(process / "comm") or "").startswith(_CUT):
            continue
        pid = int(process.name)
        program = _program(process)
        if program == CONTROL:
            daemon = _daemon(process)
            if daemon is not None:
                daemons.append(daemon)
        else:
            servers.append(Process(pid, program or _CUT, ProcessKind.FOREIGN))
            started.setdefault(_field(process, _PARENT) or 0, set()).add(pid)
    return Found(
        tuple(replace(one, servers=frozenset(started.get(one.pid, ()))) for one in daemons),
        tuple(servers),
    )


def is_alive(daemon: Daemon, root: Path) -> bool:
    """Whether this daemon, and no later process with its pid, is there below ``<root>/proc``."""
    process = root / "proc" / str(daemon.pid)
    state = (read_text(process / "stat") or "").rpartition(")")[2].split()[:1]
    return _field(process, _START_TIME) == daemon.started and state != ["Z"]


def _processes(root: Path) -> Iterator[Path]:
    try:
        found = sorted((root / "proc").iterdir())
    except OSError as error:
        raise errors.BackendFailed(
            f"whether an MPS daemon runs is unknown: {root / 'proc'} cannot be listed: {error}"
        ) from error
    yield from (path for path in found if path.name.isdecimal())


def _program(process: Path) -> str:
    """Name of the program by its first argument; "" of a process that is ending."""
    try:
        _, arguments = threads.living(threads.views(process), "cmdline")
    except OSError:
        return ""
    return nvml.text(arguments.split(b"\0")[0]).rpartition("/")[2]


def _daemon(process: Path) -> Daemon | None:
    """The daemon a process is; None: it ended meanwhile.

    Where its environment may not be read, its directories are taken for the usual ones and it is
    taken to serve every device.
    """
    started, user = _field(process, _START_TIME), _owner(process)
    if started is None or user is None:
        return None
    of_host = sees_files_of_host(int(process.name), proc=process.parent)
    plain = Daemon(
        int(process.name),
        started,
        user,
        PIPE_DIRECTORY,
        LOG_DIRECTORY,
        visible=None,
        of_host=of_host,
        pod=_pod(process),
    )
    try:
        pairs = threads.living(threads.views(process), "environ")[1].split(b"\0")
    except OSError:
        return plain
    told = dict(pair.decode(errors="replace").split("=", 1) for pair in pairs if b"=" in pair)
    visible = told.get(VISIBLE_VARIABLE)
    return replace(
        plain,
        pipes=_directory(told.get(PIPE_VARIABLE), PIPE_DIRECTORY),
        logs=_directory(told.get(LOG_VARIABLE), LOG_DIRECTORY),
        visible=None if visible is None else tuple(_names(visible)),
    )


def _names(visible: str) -> Sequence[str]:
    return [name.strip() for name in visible.split(",") if name.strip()]


def _is_uuid(name: str) -> bool:
    return name.startswith("GPU-")


def _directory(told: str | None, usual: str) -> str:
    """A directory from an environment; one that is not plain and absolute is not believed."""
    if not told or not told.startswith("/") or os.path.normpath(told) != told:
        return usual
    return told


def _pod(process: Path) -> str:
    """UID of the pod a process runs in, as its control groups tell; "": none that is told."""
    found = _POD.search(read_text(process / "cgroup") or "")
    return found[1].replace("_", "-") if found else ""


def _field(process: Path, field: int) -> int | None:
    """One number of ``stat``; None: gone. The name before it may contain anything."""
    fields = (read_text(process / "stat") or "").rpartition(")")[2].split()
    told = fields[field] if len(fields) > field else ""
    return int(told) if told.isdecimal() else None


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:
        return None
