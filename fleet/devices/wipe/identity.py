"""Who a worker process is, and whether anything of it is still alive.

A pid alone names nobody for long: identity is pid, start time and boot, plus a marker in the
environment that everything the worker starts inherits. "Gone" means that no living process matches
any of them (cases B29, B44). Works from a journalled identity after the service was restarted.

Anybody can put the marker into his environment: it counts only for processes of the host, as root
or as we run, or a tenant's process that hangs would stop the node's work for ever.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fleet.core.boot import kernel_boot_id
from fleet.devices.infrastructure import is_of_the_host

MARKER = "FLEET_WORKER_ID"
"""Environment variable that carries the worker's id."""
_PROC = Path("/proc")
_POLL_S = 0.01
_PENDING = ("SigPnd:", "ShdPnd:")


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """A worker, recognisable after its parent was restarted. `start_time` is in clock ticks."""

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
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name before it is the process's own choice: any bytes, parentheses and spaces too.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X") and not _other_threads(pid):
        return None
    return int(fields[19])


def survivors(identity: WorkerIdentity) -> tuple[int, ...]:
    """Pids of living processes that are the worker or were started by it; empty: proven gone."""
    if identity.boot_id != kernel_boot_id():
        return ()
    marker = f"{MARKER}={identity.worker_id}".encode()
    found = []
    for pid in _pids():
        own = pid == identity.pid and start_time(pid) == identity.start_time
        if own or (_marked(pid, marker) and start_time(pid) is not None):
            found.append(pid)
    return tuple(sorted(found))


def marked(worker_id: str, *, variable: str = MARKER) -> tuple[int, ...]:
    """Pids of living processes of the host that carry this mark, whoever started them."""
    mark = f"{variable}={worker_id}".encode()
    return tuple(sorted(p for p in _pids() if _marked(p, mark) and start_time(p) is not None))


def _pids() -> Iterator[int]:
    with os.scandir(_PROC) as entries:
        names = [entry.name for entry in entries]
    return (int(name) for name in names if name.isdecimal())


def is_dying(pid: int, proc: Path = _PROC) -> bool:
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
    somebody else, and processes the worker started, are only looked at.
    """
    if identity.boot_id == kernel_boot_id():
        _kill(identity)
    return gone_within(identity, wait_s)


def gone_within(identity: WorkerIdentity, wait_s: float) -> bool:
    """Whether nothing of the worker survives, waiting up to `wait_s` seconds for it."""
    deadline = time.monotonic() + wait_s
    while survivors(identity):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


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
        descriptor = os.open(f"{_PROC}/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            environment = file.read()
    except OSError:
        return False  # gone, or another user's: our workers run as we do
    if marker not in environment:
        return False
    return marker in environment.split(b"\0") and is_of_the_host(pid, proc=_PROC)


def _other_threads(pid: int) -> bool:
    try:
        return any(int(task.name) != pid for task in (_PROC / str(pid) / "task").iterdir())
    except OSError:
        return False
