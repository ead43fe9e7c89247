"""Files that are visible complete or not at all, and durable when the call returns (A1).

The order is what counts: a temporary file in the same directory (a runtime's watch misses a file
moved in from elsewhere), its mode whatever the umask, all bytes, fsync, rename over the final name,
fsync of the directory. Whatever fails, the temporary file goes and what was visible stays.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fleet.node.cdi.parser import SIZE_MAX_BYTES

SPEC_MODE = 0o644
DIRECTORY_MODE = 0o755


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of the system a write is made of, given so that each can fail on request."""

    open: Callable[[Path, int, int], int] = os.open
    write: Callable[[int, bytes], int] = os.write
    fsync: Callable[[int], None] = os.fsync
    replace: Callable[[Path, Path], None] = os.replace


def put(path: Path, text: bytes, temporary: Path, calls: Calls) -> None:
    """Make `path` a plain file of this content, readable by all. Raises OSError.

    A link at `path` is replaced, its target untouched. The caller syncs the directory.
    """
    try:
        temporary.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = calls.open(temporary, flags, SPEC_MODE)
        try:
            os.fchmod(fd, SPEC_MODE)
            rest = text
            while rest:
                rest = rest[calls.write(fd, rest) :]
            calls.fsync(fd)
        finally:
            os.close(fd)
        calls.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def make(directory: Path, calls: Calls) -> None:
    """Make the directory; one that exists is its maker's and stays as it is. Raises OSError.

    Runtimes read it, whatever our umask.
    """
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        return
    directory.chmod(DIRECTORY_MODE)
    sync(directory.parent, calls)


def sync(directory: Path, calls: Calls) -> None:
    """Make names in the directory durable. Raises OSError."""
    fd = calls.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, 0)
    try:
        calls.fsync(fd)
    finally:
        os.close(fd)


def written(path: Path, text: bytes) -> bool:
    """Whether `path` is what `put` would make it: a plain file of this content and mode."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size != len(text):
            return False
        return stat.S_IMODE(found.st_mode) == SPEC_MODE and _all(fd, len(text)) == text
    except OSError:
        return False
    finally:
        os.close(fd)


def content(path: Path) -> bytes:
    """What a runtime reads at `path`, links followed; cut above the largest size of a spec.

    Raises OSError; of something that is no file, IsADirectoryError or `NotAFile`.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise IsADirectoryError(f"{path} is a directory")
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotAFile(f"{path} is no plain file")
        return _all(fd, SIZE_MAX_BYTES + 1)
    finally:
        os.close(fd)


class NotAFile(OSError):
    """A pipe, socket or device where a spec was looked for."""


def _all(fd: int, most: int) -> bytes:
    chunks: list[bytes] = []
    while most > 0 and (chunk := os.read(fd, most)):
        chunks.append(chunk)
        most -= len(chunk)
    return b"".join(chunks)
