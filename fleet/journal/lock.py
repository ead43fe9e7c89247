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
from contextlib import ExitStack, suppress
from pathlib import Path

from fleet import errors

OPENINGS_MAX = 2
"""Times the lock file is opened: again where it was replaced between opening and locking it."""


class OwnerLock:
    """An exclusive advisory lock. Holds until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: ExitStack | None = None

    def acquire(self, *, owner: str) -> None:
        """Take the lock or raise `NotOwner` naming who has it; never waits."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            self._lock(self._path.parent, os.O_RDONLY | os.O_DIRECTORY, stack)
            fd = self._lock(self._path, os.O_RDWR | os.O_CREAT, stack)
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps({"pid": os.getpid(), "owner": owner}).encode(), 0)
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
        holder = ""
        with suppress(OSError):
            holder = self._path.read_text(errors="replace")[:4096]
        return errors.NotOwner(
            f"the journal {self._path.parent} is owned by {_described(holder)}", owner=holder
        )


def _is_named(fd: int, path: Path) -> bool:
    """Whether `path` still names what `fd` has open."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _described(holder: str) -> str:
    try:
        found = json.loads(holder)
        return f"{found['owner']} (pid {found['pid']})"
    except (ValueError, KeyError, TypeError):
        return "another process"
