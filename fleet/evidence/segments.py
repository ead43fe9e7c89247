"""Append-only files of signed envelopes: framing, order, durability, crash recovery.

A log is a directory of segments named after their first entry. A segment is JSON lines
``{"chain":...,"entry":<envelope>,"number":n}``. ``chain`` is SHA-256 over the previous entry's
chain value and this envelope's digest: a changed, missing or moved line shows, and one chain value
names everything before it (the coordinator countersigns it).

Decisions:

1. One writer, by a close-on-exec file lock held from the first append; readers need no lock.
2. Only an unfinished last line is crash debris: it was never acknowledged. It is set aside under a
   new name. A finished line that is wrong stays where it is and is reported for ever.
3. A reader goes on behind every damage, so that one bad byte does not hide the rest.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fleet.errors import LedgerUnavailable, NotOwner
from fleet.evidence.disk import make_directory, sync_directory, write_all, write_new
from fleet.evidence.dsse import digest_of
from fleet.model import Digest

SEGMENT_BYTES = 8 * 1024 * 1024
GENESIS = "0" * 64
SUFFIX = ".jsonl"
TORN_SUFFIX = ".torn"
LOCK_NAME = "writer.lock"
_LINE = re.compile(
    rb'\{"chain":"([0-9a-f]{64})","entry":(\{.*\}),"number":([1-9][0-9]{0,17})\}', re.DOTALL
)

_SEGMENT = re.compile(r"[0-9]{12}\.jsonl")


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is: file, byte offset of the line, entry number and unit where known."""

    file: str
    offset: int = 0
    entry: int | None = None
    unit: str = ""

    def __str__(self) -> str:
        entry = f", entry {self.entry}" if self.entry is not None else ""
        unit = f", unit {self.unit}" if self.unit else ""
        return f"{self.file}, byte {self.offset}{entry}{unit}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored envelope. `envelope` None: known by digest only (left out of an export)."""

    number: int
    digest: Digest
    chain: str
    envelope: bytes | None
    place: Place
    sound: bool = True
    """False: out of order or not matching its chain value."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as the writer left it."""

    code: str
    detail: str
    place: Place


def next_chain(chain: str, digest: Digest) -> str:
    """Chain value of an entry from its predecessor's."""
    return hashlib.sha256(f"{chain} {digest}".encode()).hexdigest()


def spell_line(envelope: bytes, *, number: int, chain: str) -> bytes:
    """One line as stored."""
    return b'{"chain":"%s","entry":%s,"number":%d}\n' % (chain.encode(), envelope, number)


class Sequence:
    """Judges entries in the order found: numbers, chain values, doubles."""

    def __init__(self, first: int = 1) -> None:
        self.expected = first
        self.chains: dict[int, set[str]] = {first - 1: {GENESIS}} if first == 1 else {}
        """Acceptable chain values by number: as recorded and as computed."""
        self._seen: dict[Digest, int] = {}

    @property
    def chain(self) -> str:
        """The chain value the next entry builds on."""
        return min(self.chains.get(self.expected - 1, {GENESIS}))

    def skip(self) -> None:
        """An entry could not be read at all: it counts, its chain value is unknown."""
        self.chains.pop(self.expected, None)
        self.expected += 1

    def judge(self, entry: Entry) -> Iterator[Entry | Damage]:
        """Whatever is wrong with the place of `entry`, then the entry."""
        found: list[Damage] = []
        place, number = entry.place, entry.number
        if (first := self._seen.get(entry.digest)) is not None:
            found.append(Damage("duplicate-entry", f"is entry {first} again", place))
        elif number < self.expected:
            found.append(Damage("out-of-order", f"comes after entry {self.expected - 1}", place))
        elif number > self.expected:
            gap = f"entries {self.expected} to {number - 1} are missing before it"
            found.append(Damage("missing-entries", gap, place))
        before = self.chains.get(number - 1)
        recorded = entry.chain
        values = {next_chain(chain, entry.digest) for chain in before or ()}
        if not found and before and recorded not in values:
            found.append(Damage("altered-entry", "its bytes do not match its chain value", place))
        if number >= self.expected:
            self.chains[number] = {recorded} if recorded in values else {recorded, *values}
            self.expected = number + 1
        self._seen.setdefault(entry.digest, number)
        yield from found
        sound = not found or all(damage.code == "missing-entries" for damage in found)
        yield entry if sound else replace(entry, sound=False)


class Reader:
    """Reads a log from its start and, on later polls, what was added since."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sequence = Sequence()
        self._segment = ""
        self._offset = 0
        self._rest = b""

    def start_at(self, path: Path) -> None:
        """Begin at this segment, trusting its name for the first number."""
        self._segment, self.sequence = path.name, Sequence(int(path.stem))

    def poll(self) -> Iterator[Entry | Damage]:
        """All complete lines not read yet."""
        paths = segment_paths(self.directory)
        for path in paths:
            if path.name < self._segment:
                continue
            if path.name > self._segment:
                yield from self._leave()
                self._segment, self._offset = path.name, 0
            yield from self._read(path)

    def tail(self) -> Damage | None:
        """The unfinished last line, if there is one after everything was polled."""
        if not self._segment:
            return None
        place = Place(self._segment, self._offset, self.sequence.expected)
        if self._rest:
            return Damage("truncated", f"the last line is cut off: {len(self._rest)} bytes", place)
        return (
            Damage("empty-file", "the segment holds nothing", place) if not self._offset else None
        )

    def _leave(self) -> Iterator[Damage]:
        if (damage := self.tail()) is not None:
            yield damage
            if damage.code == "truncated":
                self.sequence.skip()
        self._rest = b""

    def _read(self, path: Path) -> Iterator[Entry | Damage]:
        content = read_from(path, self._offset)
        end = content.rfind(b"\n") + 1
        if end < len(content):
            # The writer may be in the middle of this very line: look once more.
            content = read_from(path, self._offset)
            end = content.rfind(b"\n") + 1
        self._rest = content[end:]
        start = 0
        while start < end:
            stop = content.index(b"\n", start)
            yield from self._line(content[start:stop])
            self._offset += stop + 1 - start
            start = stop + 1

    def _line(self, line: bytes) -> Iterator[Entry | Damage]:
        place = Place(self._segment, self._offset, self.sequence.expected)
        match = _LINE.fullmatch(line)
        if match is None:
            yield Damage("unreadable-entry", "the line is not an entry", place)
            self.sequence.skip()
            return
        chain, envelope, digits = match.groups()
        number = int(digits)
        place = replace(place, entry=number)
        if self._offset == 0 and self._segment != segment_name(number):
            yield Damage("renamed-file", f"its first entry is {number}", place)
        entry = Entry(number, digest_of(envelope), chain.decode(), envelope, place)
        yield from self.sequence.judge(entry)


def segment_name(number: int) -> str:
    """File name of the segment whose first entry is `number`."""
    return f"{number:012d}{SUFFIX}"


def segment_paths(directory: Path) -> list[Path]:
    """All segments in order."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.glob(f"*{SUFFIX}") if _SEGMENT.fullmatch(path.name))


def read_from(path: Path, offset: int, length: int = -1) -> bytes:
    """Bytes of `path` from `offset` on. Raises `LedgerUnavailable`."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)
    except OSError as error:
        raise LedgerUnavailable(f"{path} cannot be read: {error.strerror}") from error


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
            raise LedgerUnavailable(f"{directory} cannot be used: {error}") from error

    def close(self) -> None:
        """Give the lock back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        os.close(self._lock)

    def append(self, envelope: bytes) -> Entry:
        """Store `envelope`; durable when this returns.

        Raises `LedgerUnavailable`, nothing stored; then close this writer and open another.
        """
        digest = digest_of(envelope)
        number, chain = self._next, next_chain(self._chain, digest)
        line = spell_line(envelope, number=number, chain=chain)
        try:
            if self._descriptor is None or self._size + len(line) > self._segment_bytes:
                self._rotate(number)
            assert self._descriptor is not None  # noqa: S101 - _rotate opened it
            write_all(self._descriptor, line)
            os.fsync(self._descriptor)
        except OSError as error:
            self._undo()
            raise LedgerUnavailable(
                f"entry {number} cannot be written to {self.directory}: {error.strerror}"
            ) from error
        place = Place(self._path.name, self._size, number)
        self._size += len(line)
        self._next, self._chain = number + 1, chain
        return Entry(number, digest, chain, envelope, place)

    def _rotate(self, number: int) -> None:
        path = self.directory / segment_name(number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
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
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
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
