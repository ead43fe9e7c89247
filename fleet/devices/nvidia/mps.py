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
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.core import errors
from fleet.core.model import Process, ProcessKind
from fleet.devices import tool
from fleet.devices.nvidia import nvml
from fleet.devices.nvidia.daemons import CONTROL, PIPE_VARIABLE, Daemon, Found, find, is_alive
from fleet.devices.nvidia.nvml import Library

_PIPE_FILES = frozenset({"control", "control_lock", "control_privileged", "log", f"{CONTROL}.pid"})
_LOG_FILES = frozenset({"control.log", "server.log"})
_STEP_S = 0.05
_ASK_S = 5.0
"""Time, s, a daemon gets to answer a question."""
EXCLUSIVE_PROCESS, DEFAULT_MODE = 3, 0


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


def settle(
    uuid: str,
    *,
    root: Path,
    policy: Policy,
    holding: Collection[int],
    clients: Collection[int] | None,
) -> Settled:
    """Do about MPS on a device what `policy` allows, and say who stays.

    `holding`: pids that have the device, as occupancy says. `clients`: those of them the driver
    lists as MPS clients; while there is one, or the driver does not tell (None), nothing is done.
    Where a daemon was ended, the caller looks at the compute mode (`leave_exclusive_mode`).
    Raises `BackendFailed` where processes cannot be listed.
    """
    found = find(root)
    if not policy.shuts_down or clients is None or clients:
        return Settled(holders(found, uuid, holding, policy))
    ended = [
        daemon
        for daemon in found.holding(uuid, holding)
        if shut_down(daemon, root=root, policy=policy)
    ]
    # Servers end with their daemon, a moment later than it.
    left = _until_gone(uuid, root, holding, policy.deadline_s if ended else 0.0)
    removed = [path for daemon in ended for path in clear(daemon, root=root)]
    servers = {one.pid for one in found.servers} if ended else set()
    gone = {one.pid for one in ended} | (servers - {one.pid for one in find(root).servers})
    return Settled(
        holders(left, uuid, holding, policy), tuple(ended), frozenset(gone), tuple(removed)
    )


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
        return not is_alive(daemon, root)
    for server in servers.split():
        clients = ask(f"get_client_list {server}") if server.isdecimal() else None
        if clients is None or clients.split():
            return False
    ask("quit", within_s=max(0.0, deadline - time.monotonic()))
    while is_alive(daemon, root):
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


def holders(
    found: Found, uuid: str, holding: Collection[int], policy: Policy
) -> tuple[Process, ...]:
    """Who of MPS holds the device, which the pids `holding` have; daemons with what to do."""
    return (
        *(
            Process(daemon.pid, _named(daemon, policy), ProcessKind.FOREIGN)
            for daemon in found.holding(uuid, holding)
        ),
        *found.serving(holding),
    )


def _named(daemon: Daemon, policy: Policy) -> str:
    where = f" of pod {daemon.pod}" if daemon.pod else ""
    return f"{CONTROL}{where} ({remedy(daemon, policy)})"


def remedy(daemon: Daemon, policy: Policy) -> str:
    """What an operator can do about a daemon that stays."""
    if not daemon.of_host:
        return "end it in its container, or delete the pod"
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
        if not is_alive(self._daemon, self._root):
            return None  # the program would start a daemon of its own, or wait for one
        try:
            said = tool.run(
                [self._program],
                limit_s=within_s,
                mark=f"mps {self._daemon.pid}",
                orders=command + "\n",
                environment=self._environment,
                with_errors=False,
            )
        except (OSError, errors.BackendFailed):
            return None
        return _lines(said.output.decode(errors="replace")) if said.code == 0 else None


def _lines(told: str) -> str:
    """Printable lines of an answer."""
    return "\n".join(nvml.text(line) for line in told.splitlines())


def _located(program: str, root: Path) -> str:
    """The control program: ours, or the host's where ours has none."""
    theirs = root / "usr/bin" / program
    return shutil.which(program) or (str(theirs) if theirs.is_file() else program)


def _until_gone(uuid: str, root: Path, holding: Collection[int], deadline_s: float) -> Found:
    deadline = time.monotonic() + deadline_s
    while True:
        left = find(root)
        daemons, servers = left.holding(uuid, holding), left.serving(holding)
        if daemons or not servers or time.monotonic() >= deadline:
            return left
        time.sleep(_STEP_S)
