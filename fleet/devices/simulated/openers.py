"""Who has a memory file open, by asking the kernel: also a tenant in a container that told nobody.

A container sees the file through a bind mount, under another name in another namespace, but it is
the same inode. First the kernel is asked whether anybody has it open at all (a write lease is given
only then, at the cost of a few system calls); only if so, every process is looked through.

A process of the host that only reads (`fleet sim search`, `fleet prove`) is a look from outside and
not a holder; one that may write, or lives in another mount namespace than ours, is.

Every thread is looked at that has a table of descriptors of its own. Not seen are descriptors that
no process has: in flight on a socket, or registered with io_uring and closed. The lease tells that
somebody has the file, and while no other opener explains that, it is in use (`UNSEEN`).
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fleet.core.errors import BackendFailed
from fleet.core.model import Process, ProcessKind
from fleet.core.processes import is_of_the_host
from fleet.devices import infrastructure, threads

_PROC = "/proc"
_LOOKS = 3
"""How often a file that is open by nobody to be found is looked at before that is believed."""
UNSEEN = Process(0, "a process that cannot be seen", ProcessKind.FOREIGN)

Inode = tuple[int, int]
"""Device and inode number."""


@dataclass(frozen=True, slots=True)
class _Look:
    """How one process has files open."""

    pid: int
    writing: bool


def openers(paths: Sequence[Path], *, known: Iterable[int] = ()) -> tuple[Process, ...]:
    """Processes other than this one and the `known` pids that have one of the files open or mapped.

    Raises BackendFailed when a file cannot be looked at. Costs a few system calls per file when
    nobody has any open, else a walk over all processes.
    """
    excused = {os.getpid(), *known}
    certain = False
    for _ in range(_LOOKS):
        answers = _answers(paths)
        wanted = {_inode(path) for path, answer in answers.items() if answer is not False}
        certain = True in answers.values()
        looks = [look for pid in _pids() if (look := _look(pid, wanted))] if wanted else []
        found = [look for look in looks if look.pid not in excused and _holds(look)]
        # Another process that asks has the file open for a moment: it is gone at a second look.
        held = [look for look in found if _look(look.pid, wanted) is not None]
        if held or len(looks) > len(found) or not certain:
            return tuple(_process(look.pid) for look in held)
    return (UNSEEN,)


def _answers(paths: Sequence[Path]) -> dict[Path, bool | None]:
    """`_open_elsewhere` of each file; one of us asks at a time, or we would find one another."""
    with ExitStack() as locked:
        for directory in sorted({path.parent for path in paths}):
            try:
                descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                raise BackendFailed(f"{directory} cannot be looked at: {error}") from error
            locked.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        return {path: _open_elsewhere(path) for path in paths}


def _open_elsewhere(path: Path) -> bool | None:
    """Whether another open file of this inode exists; None where the kernel does not tell.

    It gives a write lease to the sole opener only. While we have it somebody else's open waits for
    us, and a signal tells us so: one that is ignored is chosen.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except BlockingIOError:
        return True  # somebody else is asking
    except OSError as error:
        raise BackendFailed(f"the memory file {path} cannot be looked at: {error}") from error
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def _inode(path: Path) -> Inode:
    try:
        status = path.stat()
    except OSError as error:
        raise BackendFailed(f"the memory file {path} cannot be looked at: {error}") from error
    return status.st_dev, status.st_ino


def _pids() -> list[int]:
    with os.scandir(_PROC) as entries:
        return [int(entry.name) for entry in entries if entry.name.isdecimal()]


def _look(pid: int, wanted: set[Inode]) -> _Look | None:
    """How a process has one of the files open or mapped; None when it has not, or is gone."""
    writing = []
    with suppress(OSError):
        views = threads.views(Path(f"{_PROC}/{pid}"))
        for view in threads.tables(views, comparable=_comparable()):
            writing += _descriptors(view, wanted)
        writing += _mappings(*threads.living(views, "maps"), wanted)
    return _Look(pid, any(writing)) if writing else None


def _descriptors(view: Path, wanted: set[Inode]) -> list[bool]:
    """For each of a thread's descriptors of one of the files: whether it can write."""
    found: list[bool] = []
    with suppress(OSError), os.scandir(view / "fd") as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat()
                if (status.st_dev, status.st_ino) in wanted:
                    found.append(_writes(view, entry.name))
    return found


def _writes(view: Path, descriptor: str) -> bool:
    with suppress(OSError):
        lines = (view / "fdinfo" / descriptor).read_bytes().splitlines()
        for line in lines:
            if line.startswith(b"flags:"):
                return int(line[6:], 8) & os.O_ACCMODE != os.O_RDONLY
    return True


@cache
def _comparable() -> bool:
    return threads.are_ours(Path(_PROC))


def _mappings(process: Path, content: bytes, wanted: set[Inode]) -> list[bool]:
    """For each of its mappings of one of the files: whether it can write."""
    if not any(b" %d " % inode in content for _, inode in wanted):
        return []
    found = []
    for line in content.splitlines():
        area, permissions, _, device, inode, *_ = line.split(maxsplit=5)
        for wanted_device, wanted_inode in wanted:
            if int(inode) == wanted_inode and _same(process, area, device, wanted_device):
                found.append(permissions[1:2] == b"w" and permissions[3:4] == b"s")
    return found


def _same(process: Path, area: bytes, device: bytes, wanted: int) -> bool:
    """Whether a mapping of the right inode number is on the right file system.

    Layered file systems show another device here than a stat does; then the mapped file is asked,
    and when even that is refused, the same number counts as the same file.
    """
    major, _, minor = device.partition(b":")
    if os.makedev(int(major, 16), int(minor, 16)) == wanted:
        return True
    try:
        return (process / "map_files" / area.decode()).stat().st_dev == wanted
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _holds(look: _Look) -> bool:
    """Whether this is more than somebody of the host who reads."""
    return look.writing or not is_of_the_host(look.pid)


def _process(pid: int) -> Process:
    try:
        name = _readable(Path(f"{_PROC}/{pid}/comm").read_bytes())
    except OSError:
        name = "unknown"
    return infrastructure.process(pid, name)


def _readable(name: bytes) -> str:
    """A process's name for the record. It is the process's own choice: any bytes, any control."""
    text = name.decode(errors="replace").strip()
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)
