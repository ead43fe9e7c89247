"""Who a process is, whether it or anything of it still lives, and what a child does first.

A pid alone names nobody for long: identity is pid, start time and boot, plus a marker in the
environment that everything a child starts inherits. "Gone" means that no living process matches
any of them (cases B29, B44). Works from a journalled identity after the service was restarted.

Anybody can put the marker into his environment: it counts only for processes of the host, as root
or as we run, or a tenant's process that hangs would stop the node's work for ever.

The parent's side is `fleet.rpc.child`. This one imports little: each wipe pays for it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fleet.core.boot import kernel_boot_id

MARKER = "FLEET_WORKER_ID"
"""Environment variable that carries the id of a child of ours."""
PROC = Path("/proc")
SET_ID = stat.S_ISUID | stat.S_ISGID
_POLL_S = 0.01
_PENDING = ("SigPnd:", "ShdPnd:")
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def rename(name: str) -> None:
    """Give this process the name that others see."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def tie(parent: int | None = None) -> bool:
    """Have the kernel kill us when the *thread* that started us ends; again is fine.

    False: whoever started us is not `parent` any more, which ended before the signal was armed.
    Raises OSError where the kernel refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    return parent is None or os.getppid() == parent


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """A child, recognisable after its parent was restarted. `start_time` is in clock ticks."""

    worker_id: str
    pid: int
    start_time: int
    boot_id: str

    def as_json(self) -> dict[str, Any]:
        """JSON-safe form; `from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> WorkerIdentity:
        """Rebuild from `as_json`. Raises KeyError, TypeError or ValueError when malformed."""
        return cls(
            worker_id=str(found["worker_id"]),
            pid=int(found["pid"]),
            start_time=int(found["start_time"]),
            boot_id=str(found["boot_id"]),
        )


def ticks_now() -> int:
    """Now in clock ticks since boot: comparable with `start_time`."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def start_time(pid: int) -> int | None:
    """When a living process started, in clock ticks since boot; None when it is gone.

    A zombie is gone: it holds no memory and no file. One whose other threads live is not.
    """
    fields = _stat(pid)
    if fields is None or (fields[0] in (b"Z", b"X") and not _other_threads(pid)):
        return None
    return int(fields[19])


def group(leader: int) -> tuple[int, ...]:
    """Pids of living processes of the process group of `leader`."""
    number = str(leader).encode()
    return tuple(
        pid
        for pid in _pids()
        if (fields := _stat(pid)) and fields[2] == number and start_time(pid) is not None
    )


def survivors(identity: WorkerIdentity) -> tuple[int, ...]:
    """Pids of living processes that are the child or were started by it; empty: proven gone."""
    if identity.boot_id != kernel_boot_id():
        return ()
    own = (identity.pid,) if start_time(identity.pid) == identity.start_time else ()
    return tuple(sorted({*own, *marked(identity.worker_id)}))


def marked(worker_id: str, *, variable: str = MARKER) -> tuple[int, ...]:
    """Pids of living processes of the host that carry this mark, whoever started them."""
    mark = f"{variable}={worker_id}".encode()
    return tuple(sorted(p for p in _pids() if _marked(p, mark) and start_time(p) is not None))


def is_dying(pid: int, proc: Path = PROC) -> bool:
    """Whether a process was killed and lives on: it waits in the kernel and hears nothing.

    Its state letter does not tell (some drivers wait in a way that shows as sleeping).
    """
    try:
        status = (proc / str(pid) / "status").read_text()
    except (OSError, ValueError):
        return False
    pending = [line.split()[1] for line in status.splitlines() if line.startswith(_PENDING)]
    return any(int(mask, 16) >> (signal.SIGKILL - 1) & 1 for mask in pending)


def end(identity: WorkerIdentity, wait_s: float) -> bool:
    """Kill the recorded process and wait up to `wait_s`; True only when nothing of it survives.

    Never kills anything but the recorded pid with the recorded start time: a pid that was given to
    somebody else, and processes the child started, are only looked at.
    """
    if identity.boot_id == kernel_boot_id():
        _kill(identity)
    return gone_within(identity, wait_s)


def gone_within(identity: WorkerIdentity, wait_s: float) -> bool:
    """Whether nothing of the child survives, waiting up to `wait_s` seconds for it."""
    deadline = time.monotonic() + wait_s
    while survivors(identity):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def is_of_the_host(pid: int, *, proc: Path = PROC) -> bool:
    """Whether a process runs as root or as we do, in the host's or our own mount namespace.

    Started so, too: any user starts a program that takes on its owner's rights, under any name and
    with descriptors and an environment of his choice. False as well where it cannot be told.
    """
    process = proc / str(pid)
    if not sees_files_of_host(pid, proc=proc):
        return False  # and its files may lie where asking for them never ends
    try:
        started_by_anybody = (process / "exe").stat().st_mode & SET_ID
        return users(process) <= {0, os.geteuid()} and not started_by_anybody
    except OSError:
        return False


def sees_files_of_host(pid: int, *, proc: Path = PROC) -> bool:
    """Whether a process lives in the host's or our own mount namespace, so that its paths are."""
    try:
        return _mounts(proc / str(pid)) in _namespaces(proc)
    except OSError:
        return False


def users(process: Path) -> set[int]:
    """Its real, effective, saved and file system users. Raises OSError where they are not shown."""
    for line in (process / "status").read_bytes().splitlines():
        if line.startswith(b"Uid:") and len(line.split()) > 1:
            return {int(user) for user in line.split()[1:]}
    raise FileNotFoundError(f"{process / 'status'} names no user")


def _pids() -> Iterator[int]:
    with os.scandir(PROC) as entries:
        names = [entry.name for entry in entries]
    return (int(name) for name in names if name.isdecimal())


def _stat(pid: int) -> list[bytes] | None:
    """The fields of ``stat`` from the state on; None when the process is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name before it is the process's own choice: any bytes, parentheses and spaces too.
    return text[text.rindex(b")") + 2 :].split()


def _kill(identity: WorkerIdentity) -> None:
    """Kill through a pidfd: between the check and the signal the pid cannot change hands."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(identity.pid)
        try:
            if start_time(identity.pid) == identity.start_time:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _marked(pid: int, marker: bytes) -> bool:
    # Each wipe looks at every process of the node: no more is done here than there has to be.
    try:
        descriptor = os.open(f"{PROC}/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            environment = file.read()
    except OSError:
        return False  # gone, or another user's: our children run as we do
    if marker not in environment:
        return False
    return marker in environment.split(b"\0") and is_of_the_host(pid)


def _other_threads(pid: int) -> bool:
    try:
        return any(int(task.name) != pid for task in (PROC / str(pid) / "task").iterdir())
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
