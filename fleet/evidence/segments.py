"""Append-only files of signed envelopes: framing, order, reading. `writer` writes them.

A log is a directory of segments named after their first entry. A segment is JSON lines
``{"chain":...,"entry":<envelope>,"number":n}``. ``chain`` is SHA-256 over the previous entry's
chain value and this envelope's digest: a changed, missing or moved line shows, and one chain value
names everything before it (the coordinator countersigns it).

Decisions:

1. Readers need no lock and follow a growing log.
2. A reader goes on behind every damage, so that one bad byte does not hide the rest.
3. A finished line that is wrong stays where it is and is reported for ever.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fleet.core.disk import read_regular, same_file
from fleet.core.errors import LedgerUnavailable
from fleet.core.model import Digest
from fleet.evidence.dsse import digest_of

SEGMENT_BYTES = 8 * 1024 * 1024
MOST_SEGMENT_BYTES = 64 * 1024 * 1024
"""A segment larger than this is none of ours."""
GENESIS = "0" * 64
SUFFIX = ".jsonl"
TORN_SUFFIX = ".torn"
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
    """Reads a log from its start and, on later polls, what was added since.

    A segment that cannot be read is an error; `lenient` (for verification) makes it a damage.
    """

    def __init__(self, directory: Path, *, lenient: bool = False) -> None:
        self.directory = directory
        self._lenient = lenient
        self._sources: dict[str, tuple[os.stat_result, int]] = {}
        self.sequence = Sequence()
        self._segment = ""
        self._offset = 0
        self._rest = b""
        self._unread = False

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
                self._segment, self._offset, self._unread = path.name, 0, False
            try:
                yield from self._read(path)
            except LedgerUnavailable as error:
                if not self._lenient:
                    raise
                self._unread = True
                yield Damage("unreadable-file", error.detail, Place(path.name, self._offset))

    def lost(self) -> bool:
        """Whether a file that entries were read from is gone, another one, or cut short."""
        for name, (known, end) in self._sources.items():
            try:
                found = (self.directory / name).lstat()
            except OSError:
                return True
            if not same_file(found, known) or found.st_size < end:
                return True
        return False

    def tail(self) -> Damage | None:
        """The unfinished last line, if there is one after everything was polled."""
        if not self._segment or self._unread:
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
        if end:
            self._remember(path, end)
        start = 0
        while start < end:
            stop = content.index(b"\n", start)
            yield from self._line(content[start:stop])
            self._offset += stop + 1 - start
            start = stop + 1

    def _remember(self, path: Path, size: int) -> None:
        try:
            self._sources[path.name] = path.lstat(), self._offset + size
        except OSError as error:
            raise LedgerUnavailable(f"{path} cannot be read: {error.strerror}") from error

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
    """All segments in order. Raises `LedgerUnavailable`."""
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if _SEGMENT.fullmatch(entry.name))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:  # a ledger that cannot be listed is not one without entries
        raise LedgerUnavailable(f"{directory} cannot be read: {error.strerror}") from error
    return [directory / name for name in names]


def read_from(path: Path, offset: int, length: int | None = None) -> bytes:
    """Bytes of the segment `path` from `offset` on. Raises `LedgerUnavailable`."""
    try:
        return read_regular(path, most_bytes=MOST_SEGMENT_BYTES, offset=offset, length=length)
    except OSError as error:
        raise LedgerUnavailable(f"{path} cannot be read: {error.strerror}") from error
