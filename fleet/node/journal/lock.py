"""One owner of the journal at a time, by locks the kernel drops when the owner dies.

Two locks: one on a file of its own, which says who the owner is, and one on the directory, since a
lock file that somebody removes would let a second owner lock the new one. Neither is ever on the
database: closing any descriptor of a database file would drop POSIX locks on it. The descriptors
are close-on-exec, so a worker never inherits ownership.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from fleet.core import errors
from fleet.core.boot import kernel_boot_id
from fleet.core.disk import own_directory
from fleet.core.processes import start_time

OWNER_BYTES_MAX = 4096
OPENINGS_MAX = 2
"""Times the lock file is opened: again where it was replaced between opening and locking it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who has the lock, named so that nobody else can be taken for it (pids come back)."""

    pid: int
    owner: str
    start_time: int = 0
    """Of the process, in clock ticks since boot."""
    boot_id: str = ""
    since: float = 0.0
    """When it took the lock, s since boot: a process that takes it again is an owner anew. 0 in
    records of earlier versions, which do not say."""

    @classmethod
    def current(cls, owner: str) -> Owner:
        """This process, from now on."""
        pid, now = os.getpid(), time.clock_gettime(time.CLOCK_BOOTTIME)
        return cls(pid, owner, start_time(pid) or 0, str(kernel_boot_id()), now)

    def told(self) -> str:
        """Who it is, and since when it has the lock."""
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - self.since
        if not self.since or age_s < 0 or self.boot_id != str(kernel_boot_id()):
            return f"{self.owner} (pid {self.pid})"
        began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time.time() - age_s))
        return f"{self.owner} (pid {self.pid}) since {began}, for {age_s:.0f} s"

    def alive(self) -> bool:
        """Whether exactly this process still exists (a stopped one does)."""
        same_boot = self.boot_id == str(kernel_boot_id())
        return same_boot and bool(self.start_time) and start_time(self.pid) == self.start_time


def read_owner(path: Path) -> Owner | None:
    """Who wrote the lock file last; None when nobody can be read from it."""
    try:
        found = json.loads(path.read_bytes()[:OWNER_BYTES_MAX])
        return Owner(
            pid=int(found["pid"]),
            owner=str(found["owner"]),
            start_time=int(found.get("start_time", 0)),
            boot_id=str(found.get("boot_id", "")),
            since=float(found.get("since", 0.0)),
        )
    except (*errors.MALFORMED, OSError):
        return None


def holder(path: Path) -> Owner | None:
    """Who has the lock at `path` now; None where nobody has, or nobody can be read from it.

    What the file says outlives the owner, and an owner may live on without the lock: it is tried,
    shared and for a moment, which whoever takes it in that moment has to do again.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return read_owner(path)
    finally:
        os.close(fd)
    return None


class OwnerLock:
    """An exclusive advisory lock. Holds until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: ExitStack | None = None

    def acquire(self, *, owner: str) -> None:
        """Take the lock or raise `NotOwner` naming who has it; never waits."""
        own_directory(self._path.parent)
        with ExitStack() as stack:
            self._lock(self._path.parent, os.O_RDONLY | os.O_DIRECTORY, stack)
            fd = self._lock(self._path, os.O_RDWR | os.O_CREAT, stack)
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(asdict(Owner.current(owner))).encode(), 0)
            self._held = stack.pop_all()

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._held is not None

    def release(self) -> None:
        """Give the lock up. Does nothing when it is not held."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _lock(self, path: Path, flags: int, stack: ExitStack) -> int:
        """Lock what `path` names, closed with `stack`; the descriptor. Raises `NotOwner`."""
        for _ in range(OPENINGS_MAX):
            fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._refusal() from None
            if _is_named(fd, path):
                return fd
        raise self._refusal()

    def _refusal(self) -> errors.NotOwner:
        found = read_owner(self._path)
        who = found.told() if found else "another process"
        return errors.NotOwner(f"the journal {self._path.parent} is owned by {who}", owner=who)


def _is_named(fd: int, path: Path) -> bool:
    """Whether `path` still names what `fd` has open."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
