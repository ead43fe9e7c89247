"""Appending to a log of segments: durability, crash recovery, one writer.

Decisions:

1. One writer, by a close-on-exec file lock held from the first append.
2. Only an unfinished last line is crash debris: it was never acknowledged. It is set aside under a
   new name.
3. What was written is on disk only if the file written is still the one its name leads to: that is
   compared on both sides of the fsync.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from pathlib import Path

from fleet.core.disk import make_directory, same_file, sync_directory, write_all, write_new
from fleet.core.errors import LedgerUnavailable, NotOwner
from fleet.evidence.dsse import digest_of
from fleet.evidence.segments import (
    GENESIS,
    SEGMENT_BYTES,
    TORN_SUFFIX,
    Entry,
    Place,
    Reader,
    next_chain,
    read_from,
    segment_name,
    segment_paths,
    spell_line,
)

LOCK_NAME = "writer.lock"


class Writer:
    """Appends to a log. Exists only while it holds the lock."""

    def __init__(self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.directory = directory
        self._segment_bytes = segment_bytes
        self._descriptor: int | None = None
        self._size = 0
        self._next, self._chain = 1, GENESIS
        try:
            make_directory(directory, mode=0o750)
            self._place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise LedgerUnavailable(f"{directory} cannot be used: {error}") from error
        try:
            self._lock = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o640)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(self._lock)
                raise NotOwner(
                    f"another process writes {directory}",
                    remedy="retry; only the process that owns the node appends evidence",
                ) from error
            try:
                self._recover()
            except BaseException:
                os.close(self._lock)
                raise
        except OSError as error:
            os.close(self._place)
            raise LedgerUnavailable(f"{directory} cannot be used: {error}") from error
        except BaseException:
            os.close(self._place)
            raise

    def close(self) -> None:
        """Give the lock back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        os.close(self._lock)
        os.close(self._place)

    def append(self, envelope: bytes) -> Entry:
        """Store `envelope`; durable when this returns.

        Raises `LedgerUnavailable`, nothing stored; then close this writer and open another.
        """
        digest = digest_of(envelope)
        number, chain = self._next, next_chain(self._chain, digest)
        line = spell_line(envelope, number=number, chain=chain)
        try:
            self._refuse_displaced(self._size)
        except OSError as error:  # nothing was written: whatever lies there is left alone
            raise self._failed(number, error) from error
        try:
            if self._descriptor is None or self._size + len(line) > self._segment_bytes:
                self._rotate(number)
            assert self._descriptor is not None  # noqa: S101 - _rotate opened it
            write_all(self._descriptor, line)
            os.fsync(self._descriptor)
            self._refuse_displaced(self._size + len(line))
        except OSError as error:
            self._undo()
            raise self._failed(number, error) from error
        place = Place(self._path.name, self._size, number)
        self._size += len(line)
        self._next, self._chain = number + 1, chain
        return Entry(number, digest, chain, envelope, place)

    def _failed(self, number: int, error: OSError) -> LedgerUnavailable:
        return LedgerUnavailable(
            f"entry {number} cannot be written to {self.directory}: {error.strerror}"
        )

    def _refuse_displaced(self, size: int) -> None:
        """Raise OSError unless directory, lock and segment are the ones opened, of `size` bytes.

        A descriptor goes on working after its file was removed or renamed; what is written to it
        then is nowhere.
        """
        opened = [(self.directory, self._place), (self.directory / LOCK_NAME, self._lock)]
        if self._descriptor is not None:
            opened.append((self._path, self._descriptor))
            if os.fstat(self._descriptor).st_size != size:
                raise OSError(errno.EIO, f"{self._path.name} was changed by somebody else")
        for path, descriptor in opened:
            if not same_file(path.stat(), os.fstat(descriptor)):
                raise OSError(errno.ESTALE, f"{path.name} was replaced by another one")

    def _rotate(self, number: int) -> None:
        path = self.directory / segment_name(number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o640)
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._path, self._size = descriptor, path, os.fstat(descriptor).st_size
        sync_directory(self.directory)

    def _undo(self) -> None:
        """Take a half-written line back. If that fails too, the next opening sets it aside."""
        if self._descriptor is None:
            return
        try:
            if os.fstat(self._descriptor).st_size > self._size:
                os.ftruncate(self._descriptor, self._size)
                os.fsync(self._descriptor)
        except OSError:
            os.close(self._descriptor)
            self._descriptor = None

    def _recover(self) -> None:
        """Set an unfinished last line aside and find where to go on."""
        while (paths := segment_paths(self.directory)) and not _set_tail_aside(paths[-1]):
            pass
        reader = Reader(self.directory)
        if paths:
            path = paths[-1]
            reader.start_at(path)
            for _ in reader.poll():
                pass
            self._path, self._size = path, path.stat().st_size
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
            # A process killed before its fsync left entries that `append` will answer for.
            os.fsync(self._descriptor)
            os.fsync(self._place)
        self._next, self._chain = reader.sequence.expected, reader.sequence.chain


def _set_tail_aside(path: Path) -> bool:
    """Move an unfinished last line to a file of its own. False: no entry is left in `path`."""
    content = read_from(path, 0)
    end = content.rfind(b"\n") + 1
    if end < len(content):
        torn = content[end:]
        mark = hashlib.sha256(torn).hexdigest()[:12]
        aside = path.with_name(f"{path.stem}-{end}-{mark}{TORN_SUFFIX}")
        write_new(aside, torn, mode=0o640)
        with path.open("r+b") as file:
            file.truncate(end)
            os.fsync(file.fileno())
    if end:
        return True
    path.unlink()  # a segment that never held an entry
    sync_directory(path.parent)
    return False
