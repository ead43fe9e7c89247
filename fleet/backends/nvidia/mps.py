"""CUDA MPS: a daemon that takes every CUDA process of the node in, tenants and wipers alike.

A wiper inside a server shares it with tenants, and limits for clients cut what it can take. So our
workers look for a daemon in a directory that is empty (`empty_pipe_directory`), and a daemon that
serves the device counts as a holder, until policy lets us ask it to end and it has.

Decisions:

1. No client is ever ended by us, nor a server: a daemon is asked to quit only while the driver and
   the daemon itself know of no client. It is asked without a time limit of its own, because past
   that it would end clients that came meanwhile; the limit here is on how long we wait.
2. Removed afterwards is only what such a daemon makes, in its own directories, owned by its user.
3. Compute mode ``exclusive process`` is what whoever starts a daemon sets for it: once the daemon
   has gone it is a leftover, and default is put back.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet import errors
from fleet.backends import infrastructure
from fleet.backends.nvidia import nvml
from fleet.backends.nvidia.nvml import Library
from fleet.backends.sysfs import read_text
from fleet.model import Process, ProcessKind

CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"
_CUT = "nvidia-cuda-mps"
"""What the kernel shows of either name."""
PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 # the vendor's default, not ours
LOG_DIRECTORY = "/var/log/nvidia-mps"
"""Where a daemon has its pipes and logs unless its environment says otherwise."""
PIPE_VARIABLE, LOG_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
_PIPE_FILES = frozenset({"control", "control_lock", "control_privileged", "log", f"{CONTROL}.pid"})
_LOG_FILES = frozenset({"control.log", "server.log"})
_STEP_S = 0.05
_ASK_S = 5.0
"""Time, s, a daemon gets to answer a question."""
EXCLUSIVE_PROCESS, DEFAULT_MODE = 3, 0


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

    def serves(self, uuid: str) -> bool:
        """Whether it may take in clients of this device; in doubt it does.

        A beginning of a UUID names a device too, and an index may name any.
        """
        if self.visible is None:
            return True
        return any(not _is_uuid(name) or uuid.startswith(name) for name in self.visible)


@dataclass(frozen=True, slots=True)
class Policy:
    """What may be done about a daemon."""

    shuts_down: bool = False
    deadline_s: float = 20.0
    """Time, s, from asking it to quit until it counts as a holder that stays."""
    program: str = CONTROL


@dataclass(frozen=True, slots=True)
class Settled:
    """What was done about MPS on a device."""

    holders: tuple[Process, ...] = ()
    """Who stays on it, and why it is not free."""
    ended: tuple[Daemon, ...] = ()
    gone: frozenset[int] = frozenset()
    """Pids of those, and of the servers that ended with them: no holders any more."""
    removed: tuple[str, ...] = ()
    """Leftovers of the daemons ended that were removed."""


@dataclass(frozen=True, slots=True)
class Found:
    """Everything of MPS on a node at one moment."""

    daemons: tuple[Daemon, ...] = ()
    servers: tuple[Process, ...] = ()
    """Servers, and processes of which only the cut name can be read."""

    def holders(self, uuid: str, holding: Collection[int] = ()) -> tuple[Process, ...]:
        """Daemons that serve the device, and servers among the pids `holding` it.

        A server whose daemon has gone is one too.
        """
        daemons = [one for one in self.daemons if one.serves(uuid)]
        return (
            *(Process(one.pid, CONTROL, ProcessKind.FOREIGN) for one in daemons),
            *(server for server in self.servers if server.pid in holding),
        )


def empty_pipe_directory(run: Path) -> Path:
    """A directory without a daemon, below `run`, for `PIPE_VARIABLE` of our own CUDA processes.

    Raises `BackendFailed` where it cannot be made, or has something in it: it would capture us.
    """
    path = run / "no-mps"
    try:
        path.mkdir(mode=0o500, parents=True, exist_ok=True)
        occupied = next(path.iterdir(), None)
    except OSError as error:
        raise errors.BackendFailed(f"{path} cannot be made or read: {error}") from error
    if occupied is not None:
        raise errors.BackendFailed(
            f"{path} has to be empty, and has {occupied.name} in it",
            remedy="remove it; nothing but us may write there",
        )
    return path


def find(root: Path) -> Found:
    """Daemons and servers among the processes below ``<root>/proc``. Raises `BackendFailed`."""
    daemons, servers = [], []
    for process in _processes(root):
        if not (read_text(process / "comm") or "").startswith(_CUT):
            continue
        pid = int(process.name)
        if _program(process) == CONTROL:
            daemon = _daemon(process)
            if daemon is not None:
                daemons.append(daemon)
        else:
            name = _program(process) or _CUT
            servers.append(Process(pid, name, ProcessKind.FOREIGN))
    return Found(tuple(daemons), tuple(servers))


def settle(
    uuid: str, *, root: Path, policy: Policy, holding: Collection[int], clients: Collection[int]
) -> Settled:
    """Do about MPS on a device what `policy` allows, and say who stays.

    `holding`: pids that have the device, as occupancy says. `clients`: those of them the driver
    lists as MPS clients; while there is one, nothing is done. Where a daemon was ended, the caller
    looks at the compute mode (`leave_exclusive_mode`). Raises `BackendFailed` where processes
    cannot be listed.
    """
    found = find(root)
    if not policy.shuts_down or clients:
        return Settled(found.holders(uuid, holding))
    ended = [
        daemon
        for daemon in found.daemons
        if daemon.serves(uuid) and shut_down(daemon, root=root, policy=policy)
    ]
    # Servers end with their daemon, a moment later than it.
    holders = _until_gone(uuid, root, holding, policy.deadline_s if ended else 0.0)
    removed = [path for daemon in ended for path in clear(daemon, root=root)]
    servers = {one.pid for one in found.servers} if ended else set()
    gone = {one.pid for one in ended} | (servers - {one.pid for one in find(root).servers})
    return Settled(holders, tuple(ended), frozenset(gone), tuple(removed))


def shut_down(daemon: Daemon, *, root: Path, policy: Policy) -> bool:
    """Ask a daemon without clients to quit and wait; whether it has ended.

    False as well where it has clients, does not say, or does not answer in time: it stays then.
    """
    if not daemon.of_host:
        return False
    deadline = time.monotonic() + policy.deadline_s
    ask = _Ask(daemon, root, policy.program)
    servers = ask("get_server_list")
    if servers is None:
        return not _alive(daemon, root)
    for server in servers.split():
        clients = ask(f"get_client_list {server}") if server.isdecimal() else None
        if clients is None or clients.split():
            return False
    ask("quit", within_s=max(0.0, deadline - time.monotonic()))
    while _alive(daemon, root):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_STEP_S)
    return True


def clear(daemon: Daemon, *, root: Path) -> tuple[str, ...]:
    """Remove what a daemon that has ended left in its directories; the host's paths removed.

    Only files that such a daemon makes and that belong to its user, never through a link; what is
    left makes the directory stay.
    """
    removed: list[str] = []
    if not daemon.of_host:
        return ()
    for directory, names in ((daemon.pipes, _PIPE_FILES), (daemon.logs, _LOG_FILES)):
        with suppress(OSError):
            place = root / directory.lstrip("/")
            removed += [f"{directory}/{name}" for name in _emptied(place, names, daemon.user)]
            place.rmdir()
            removed.append(directory)
    return tuple(removed)


def _emptied(place: Path, names: frozenset[str], user: int) -> Sequence[str]:
    """Remove files of these names that belong to `user` from a directory of his; which.

    The directory is held open meanwhile: its path may be made to lead elsewhere by then. Raises
    OSError for a directory that is not his, or a link.
    """
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(directory).st_uid != user:
            raise PermissionError(f"{place} does not belong to user {user}")
        found = []
        for name in sorted(names):
            with suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if status.st_uid == user and not stat.S_ISDIR(status.st_mode):
                    os.unlink(name, dir_fd=directory)
                    found.append(name)
        return found
    finally:
        os.close(directory)


def leave_exclusive_mode(library: Library, handle: Any) -> bool:
    """Put the default compute mode back where a daemon that has gone left the exclusive one.

    Whether it did. Raises `BackendFailed` where the driver refuses, `DeviceLost`.
    """
    if library.ask("nvmlDeviceGetComputeMode", handle) != EXCLUSIVE_PROCESS:
        return False
    library.call("nvmlDeviceSetComputeMode", handle, DEFAULT_MODE)
    return True


def remedy(policy: Policy) -> str:
    """What an operator can do about a daemon that stays."""
    if policy.shuts_down:
        return "end the clients of the MPS daemon; it is asked to quit once it has none"
    return f"end it with `echo quit | {CONTROL}`, or set hardware.mps to shut-down"


class _Ask:
    """Puts commands to one daemon through the control program."""

    def __init__(self, daemon: Daemon, root: Path, program: str) -> None:
        self._daemon = daemon
        self._root = root
        self._program = _located(program, root)
        pipes = root / daemon.pipes.lstrip("/")
        self._environment = {**os.environ, PIPE_VARIABLE: str(pipes), "LC_ALL": "C"}

    def __call__(self, command: str, *, within_s: float = _ASK_S) -> str | None:
        """What the daemon says; None: it cannot be asked, refused, or did not answer in time."""
        if not _alive(self._daemon, self._root):
            return None  # the program would start a daemon of its own, or wait for one
        try:
            done = subprocess.run(
                [self._program],
                input=command + "\n",
                env=self._environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=within_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return _lines(done.stdout) if done.returncode == 0 else None


def _lines(told: str) -> str:
    """Printable lines of an answer."""
    return "\n".join(nvml.text(line) for line in told.splitlines())


def _located(program: str, root: Path) -> str:
    """The control program: ours, or the host's where ours has none."""
    theirs = root / "usr/bin" / program
    return shutil.which(program) or (str(theirs) if theirs.is_file() else program)


def _until_gone(
    uuid: str, root: Path, holding: Collection[int], deadline_s: float
) -> tuple[Process, ...]:
    deadline = time.monotonic() + deadline_s
    while True:
        left = find(root)
        holders = left.holders(uuid, holding)
        daemons = any(daemon.serves(uuid) for daemon in left.daemons)
        if not holders or daemons or time.monotonic() >= deadline:
            return holders
        time.sleep(_STEP_S)


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
        first = (process / "cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return ""
    return nvml.text(first).rpartition("/")[2]


def _daemon(process: Path) -> Daemon | None:
    """The daemon a process is; None: it ended meanwhile.

    Where its environment may not be read, its directories are taken for the usual ones and it is
    taken to serve every device.
    """
    started, user = _started(process), _owner(process)
    if started is None or user is None:
        return None
    of_host = infrastructure.sees_files_of_host(int(process.name), proc=process.parent)
    plain = Daemon(int(process.name), started, user, PIPE_DIRECTORY, LOG_DIRECTORY, None, of_host)
    try:
        pairs = (process / "environ").read_bytes().split(b"\0")
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


def _started(process: Path) -> int | None:
    """Start time in ticks since boot; None: gone. The name before it may contain anything."""
    fields = (read_text(process / "stat") or "").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[19].isdecimal() else None


def _alive(daemon: Daemon, root: Path) -> bool:
    process = root / "proc" / str(daemon.pid)
    state = (read_text(process / "stat") or "").rpartition(")")[2].split()[:1]
    return _started(process) == daemon.started and state != ["Z"]


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:
        return None
