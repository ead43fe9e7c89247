"""A log of envelopes as it is copied to an archive, and how far that is, by a file beside it.

The file names the last entry copied and its digest. A log that does not have that entry is another
one, and so is an archive of another name, or another archive of the same name: a bucket that was
deleted and made again, or another service behind the endpoint. Then everything is offered again,
which changes nothing in an archive.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.core import errors
from fleet.core.disk import read_regular, replace
from fleet.core.model import Digest
from fleet.evidence import dsse
from fleet.evidence.archive import Archive
from fleet.evidence.segments import (
    Entry,
    Reader,
    read_from,
    segment_name,
    segment_paths,
    spell_line,
)

MOST_CURSOR_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Waiting:
    """An entry that may not be in the archive, and where it is read."""

    number: int
    digest: Digest
    chain: str
    file: str = ""
    offset: int = 0
    length: int = 0

    @property
    def name(self) -> str:
        return f"entry {self.number}"


@dataclass(frozen=True, slots=True)
class Whole:
    """Something besides the log that is copied whole, such as a public key."""

    name: str
    key: str
    """Name in the archive."""
    content: bytes


class LogFeed(ABC):
    """What of one log is still to be copied; see `fleet.evidence.replication.Feed`."""

    def __init__(self, directory: Path, cursor: Path, *, place: str, required: bool = True) -> None:
        """`cursor` is the file, `place` the archive's; nothing is read yet.

        `required`: whether a node may only go once all is copied, for those that read the file
        without the settings.
        """
        self.directory = directory
        self.place = place
        self.required = required
        self._identity = ""
        self._begun = False
        self._cursor = cursor
        self._guard = threading.RLock()
        self._reader: Reader | None = None
        self._through = 0
        self._digest = ""
        self._aside: dict[int, tuple[Waiting, str]] = {}
        self._offered: set[int] = set()
        """Numbers set aside before this process began and not offered again yet."""
        self._queue: deque[Waiting] = deque()
        self._wholes: dict[str, Whole] = {}
        self._unplaced: dict[str, str] = {}
        """Why the archive would not take some of those, by their names there."""

    @abstractmethod
    def begin(self) -> None:
        """Offer what everything else needs: an archive was opened, or is another one."""

    @abstractmethod
    def send(self, archive: Archive, item: Any) -> None:
        """Copy one entry."""

    @abstractmethod
    def issued_at(self, envelope: bytes) -> float:
        """When an entry was made. Raises `EvidenceInvalid`."""

    def opened(self, archive: Archive) -> None:
        """See `fleet.evidence.replication.Feed`."""
        identity = archive.identity()
        with self._guard:
            self._follow()
            if identity != self._identity:
                self.forget()
                self._identity, self._begun = identity, False
                self._rewind()
            if not self._begun:
                self.begin()
                self._begun = True

    def forget(self) -> None:
        """Nothing of this is in the archive, as far as is known: offer everything again."""
        self._through, self._digest, self._aside, self._offered = 0, "", {}, set()

    def offer(self, wholes: Iterable[Whole]) -> None:
        """Copy these too, before the entries; what was offered so before is forgotten."""
        with self._guard:
            self._follow()
            self._wholes = {one.key: one for one in wholes}
            self._unplaced = {}

    def next(self) -> Any:
        """The next key or entry; None: all are copied or set aside."""
        with self._guard:
            self._follow()
            wholes = (one for key, one in self._wholes.items() if key not in self._unplaced)
            return next(wholes, None) or (self._queue[0] if self._queue else None)

    def envelope(self, item: Waiting) -> bytes:
        """The entry as it is on disk. Raises `EvidenceInvalid` when it changed meanwhile."""
        path = self.directory / item.file
        line = read_from(path, item.offset, item.length) if item.file else b""
        start = line.find(b'"entry":') + len(b'"entry":')
        found = line[start : line.rfind(b',"number":')]
        if dsse.digest_of(found) != item.digest:
            raise errors.EvidenceInvalid(f"{item.name} of {self.directory} was changed on disk")
        return found

    def done(self, item: Any, refused: str = "") -> None:
        """It is copied, or the archive has something else in its place."""
        with self._guard:
            if isinstance(item, Whole):
                self._settle(item, refused)
                return
            self._aside.pop(item.number, None)
            self._offered.discard(item.number)
            if refused:
                self._aside[item.number] = (item, refused)
            self._pass(item)

    def _settle(self, item: Whole, refused: str) -> None:
        if refused:
            self._unplaced[item.key] = refused
        else:
            self._wholes.pop(item.key, None)
            self._unplaced.pop(item.key, None)

    def again(self) -> None:
        """Offer what was set aside once more, before the rest."""
        with self._guard:
            for key in self._wholes.keys() & self._unplaced.keys():
                del self._unplaced[key]
            queued = {item.number for item in self._queue}
            back = [item for number, (item, _) in self._aside.items() if number not in queued]
            self._queue.extendleft(sorted(back, key=lambda item: -item.number))

    def waiting(self) -> tuple[int, float]:
        """What is not copied, keys included, and when the oldest entry of it was made."""
        with self._guard:
            self._follow()
            left = list({*self._queue, *(item for item, _ in self._aside.values())})
            wholes = len(self._wholes.keys() | self._unplaced.keys())
        if not left:
            return wholes, 0.0
        try:
            oldest_at = self.issued_at(self.envelope(min(left, key=lambda item: item.number)))
        except errors.FleetError:
            oldest_at = 0.0
        return len(left) + wholes, oldest_at

    def aside(self) -> Sequence[str]:
        """Why each was set aside."""
        with self._guard:
            return [*(why for _, why in self._aside.values()), *self._unplaced.values()]

    def save(self) -> None:
        """Write the file, whole or not at all."""
        with self._guard:
            self._follow()
            content = dsse.canonical(self.as_json())
        try:
            replace(self._cursor, content, mode=0o640)
        except OSError as error:
            raise errors.LedgerUnavailable(f"{self._cursor} cannot be written: {error}") from error

    def as_json(self) -> dict[str, Any]:
        """What the file says: nothing up to `through` is missing from it that was not copied."""
        aside = {str(number): "to be offered again" for number in self._offered}
        return {
            "place": self.place,
            "identity": self._identity,
            "required": self.required,
            "through": self._through,
            "digest": self._digest,
            "aside": aside | {str(number): why for number, (_, why) in self._aside.items()},
            "unplaced": dict(self._unplaced),
        }

    def load(self) -> dict[str, Any]:
        """Read the file; what cannot be read says nothing, and everything is offered again.

        What was set aside is offered again.
        """
        found = read_cursor(self._cursor, self.place)
        self._aside = {}
        try:
            self._offered = {int(number) for number in found.get("aside", {})}
            self._through, self._digest = int(found["through"]), str(found["digest"])
            self._identity = str(found["identity"])
            self._unplaced = {str(key): str(why) for key, why in found["unplaced"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            self._through, self._digest, self._offered = 0, "", set()
            self._identity, self._unplaced = "", {}
        return found

    def _pass(self, item: Waiting) -> None:
        if self._queue and self._queue[0] == item:
            self._queue.popleft()
        if item.number > self._through:
            self._through, self._digest = item.number, item.digest

    def _follow(self) -> None:
        """Bring the queue up to what is on disk."""
        if self._reader is None or self._reader.lost():
            self.load()
            self._rewind()
        if not self._read():  # the log is not the one that was copied
            self.forget()
            self._rewind()
            self._read()

    def _rewind(self) -> None:
        self._queue.clear()
        self._reader = Reader(self.directory)
        first = segment_name(max(1, min({self._through, *self._offered})))
        before = [path for path in segment_paths(self.directory) if path.name <= first]
        if before:
            self._reader.start_at(before[-1])

    def _read(self) -> bool:
        """Queue what was added; False when the last entry copied is another one, or gone."""
        assert self._reader is not None  # noqa: S101 - _follow made it
        same = True
        for found in self._reader.poll():  # to its end: a reader left halfway loses its place
            if isinstance(found, Entry) and found.sound and found.envelope is not None:
                if found.number == self._through and self._digest not in ("", found.digest):
                    same = False
                if found.number > self._through or found.number in self._offered:
                    self._queue.append(_waiting(found, found.envelope))
        return same and self._reader.sequence.expected > self._through


def _waiting(entry: Entry, envelope: bytes) -> Waiting:
    length = len(spell_line(envelope, number=entry.number, chain=entry.chain))
    place = entry.place
    return Waiting(entry.number, entry.digest, entry.chain, place.file, place.offset, length)


def read_cursor(path: Path, place: str) -> dict[str, Any]:
    """What the file at `path` says of this archive; nothing when it is another's or unreadable."""
    found = _read_file(path)
    return found if found.get("place") == place else {}


def is_required(path: Path) -> bool:
    """Whether who copied last by the file at `path` wanted all copied before the node goes."""
    return _read_file(path).get("required") is not False


def place_named(path: Path) -> str:
    """The archive that the file at `path` is about; "" where nothing was ever to be copied."""
    return str(_read_file(path).get("place", ""))


def _read_file(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_regular(path, most_bytes=MOST_CURSOR_BYTES))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
