"""Which processes are known infrastructure: a list kept as data, the same for every back end."""

from __future__ import annotations

import functools
import stat
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from fleet.core.model import Process, ProcessKind
from fleet.core.processes import PROC, SET_ID, is_of_the_host, sees_files_of_host, users

COMM_LENGTH = 15
"""Characters of a process name the kernel keeps."""
OURS = "fleet-driver"
"""How processes of this service are called that ask a driver."""
WIPE = "wipe"
"""Work during which a listed daemon may stay. Nothing may stay during a reset."""
_WRITTEN_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


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
    users: tuple[str, ...] = ()
    """Accounts of its own, beside root, that its packages run it as (F80)."""
    unit: str = ""
    """Its systemd unit, which a process of one of these has to be in."""


@functools.cache
def rows() -> tuple[Daemon, ...]:
    """The list, in its order. Raises TypeError or KeyError for a row that is not complete."""
    text = resources.files(__package__).joinpath("infrastructure.toml").read_text()
    return tuple(
        Daemon(
            **{
                **row,
                "allowed_for": frozenset(row["allowed_for"]),
                "users": tuple(row.get("users", ())),
            }
        )
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


def kind(name: str, pid: int, *, proc: Path = PROC) -> ProcessKind:
    """What a process is to us, unless it is ours. `proc`: where the host's processes are seen.

    A name is the process's own choice, so a listed one counts only for a process of the host
    (`is_of_the_host`) that runs the program of that name; our own, and no other, is a script. Some
    run as a user of their own: see `_as_its_user`.
    """
    if name not in daemons() or not _runs(name, proc / str(pid)):
        return ProcessKind.FOREIGN
    known = is_of_the_host(pid, proc=proc) or not _as_its_user(_row(name), pid, proc)
    return ProcessKind.INFRASTRUCTURE if known else ProcessKind.FOREIGN


def process(pid: int, name: str, *, proc: Path = PROC) -> Process:
    """A process with what it is to us; of a listed daemon that is refused, with why."""
    found = kind(name, pid, proc=proc)
    if found is ProcessKind.FOREIGN and name in daemons():
        row, place = _row(name), proc / str(pid)
        mine = _runs(name, place) and sees_files_of_host(pid, proc=proc)
        why = _as_its_user(row, pid, proc) if mine and not _set_id(place) else ""
        name = f"{name} ({why})" if why else name
    return Process(pid, name, found)


def _row(name: str) -> Daemon:
    return next(row for row in rows() if name in (row.name, row.name[:COMM_LENGTH]))


def _as_its_user(row: Daemon, pid: int, proc: Path) -> str:
    """Why a process is not the daemon of `row` under an account of its own; "": it is.

    Only root becomes such a user. What it runs must be root's file and nobody else's to write, it
    must see the host's files, and the host's systemd must have it in its unit, or its first process
    be its parent, as that of a daemon that has left whoever started it.
    """
    process = proc / str(pid)
    if not sees_files_of_host(pid, proc=proc):
        return "runs in a container"
    try:
        accounts = users(process)
        program = (process / "exe").stat()
        fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
        groups = (process / "cgroup").read_text().splitlines() if row.unit else []
    except (OSError, ValueError):
        return "cannot be looked into"
    numbers = _numbers(row.users, proc)
    if not (accounts and accounts <= {0, *numbers.values()}):
        named = ", ".join(("root", *row.users))
        number = next(iter(sorted(accounts - {0, *numbers.values()})), "?")
        return f"runs as user {number} and counts as part of the node only as {named}"
    if program.st_uid != 0 or program.st_mode & _WRITTEN_BY_OTHERS:
        return "its program can be written by others than root"
    if program.st_mode & SET_ID:
        return "its program takes on another user"
    unit = f"/system.slice/{row.unit}"
    # Seen from a control group namespace of our own, a path begins with steps up.
    in_unit = any(line.split(":", 2)[-1].replace("/..", "") == unit for line in groups)
    if not in_unit and fields[1:2] != [b"1"]:
        return f"was not started as {row.unit} of the host's systemd"
    return ""


def _numbers(users: Iterable[str], proc: Path) -> dict[str, int]:
    """Accounts of the host by their numbers, as far as its own file of accounts has them."""
    try:
        text = (proc / "1/root/etc/passwd").read_text(errors="replace")
    except OSError:
        return {}
    lines = [line.split(":") for line in text.splitlines()]
    wanted = frozenset(users)
    return {
        line[0]: int(line[2])
        for line in lines
        if len(line) > 2 and line[0] in wanted and line[2].isdecimal()
    }


def _set_id(process: Path) -> bool:
    try:
        return bool((process / "exe").stat().st_mode & SET_ID)
    except OSError:
        return True


def _runs(name: str, process: Path) -> bool:
    """Whether the file a process runs has this name, whole or as the kernel cuts it."""
    try:
        program = (process / "exe").readlink().name.removesuffix(" (deleted)")
    except OSError:
        return False
    if name == OURS:
        return program.startswith("python")
    return program in daemons() and program[:COMM_LENGTH] == name[:COMM_LENGTH]
