"""One owner of the journal at a time, by a lock the kernel drops when the owner dies.

The lock is on a file of its own, never on the database: closing any descriptor of a database file
would drop POSIX locks on it. The descriptor is close-on-exec, so a worker never inherits ownership.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from fleet import errors


class OwnerLock:
    """An exclusive advisory lock. Holds until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self, *, owner: str) -> None:
        """Take the lock or raise `NotOwner` naming who has it; never waits."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 4096, 0).decode(errors="replace")
            os.close(fd)
            raise errors.NotOwner(
                f"the journal {self._path.parent} is owned by {_described(holder)}",
                owner=holder,
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"pid": os.getpid(), "owner": owner}).encode(), 0)
        self._fd = fd

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd is not None

    def release(self) -> None:
        """Give the lock up. Does nothing when it is not held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _described(holder: str) -> str:
    try:
        found = json.loads(holder)
        return f"{found['owner']} (pid {found['pid']})"
    except (ValueError, KeyError, TypeError):
        return "another process"
