"""An archive as evidence to verify: the same entries and damages that a ledger on disk gives.

Names are listed with all their versions and read a page at a time; contents are read ahead by some
threads. What stays in memory is a few words for each certificate.

What an archive can suffer that a disk cannot is told besides: a newer version laid over an object,
a deletion that hides it, an object that nothing names, a row that should find a certificate and is
missing, an object larger than anything of its kind. A certificate without a row of a ledger is an
upload that was not finished: its node may have been lost in the middle of it, and it is still
proof. In a bucket that was copied or restored the versions that rows name are gone: the oldest with
the same bytes is as good, and a note says so.

A node that lost its disk has several ledgers here, and a coordinator that moved to another host
several logs of countersignatures. Each is verified for itself.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path

from fleet.core import errors
from fleet.core.model import Digest
from fleet.evidence import archive_names, heads, layout, parsed
from fleet.evidence.archive import Archive, Stored
from fleet.evidence.key_list import Kept
from fleet.evidence.keys import KeyRing, PublicKey
from fleet.evidence.segments import Damage, Entry, Place, Sequence, next_chain
from fleet.evidence.sources import Collection, Log, Losses, Trust, bind, take_lists, trusting

# Objects of an archive with all their versions: what was laid over one, and what it first held.


def grouped(archive: Archive, prefix: str) -> Iterator[tuple[str, list[Stored]]]:
    """Each name below `prefix`, with its versions, the newest first."""
    for key, versions in groupby(archive.stored(prefix), key=lambda one: one.key):
        yield key, list(versions)


def laid_over(versions: list[Stored], place: Place) -> Iterator[Damage]:
    """What happened to an object after it was put, at `place`."""
    contents = [one for one in versions if not one.marker]
    if len(contents) > 1:
        detail = f"{len(contents) - 1} newer versions were laid over it: {contents[0].version}"
        yield Damage("overwritten-object", detail, place)
    if len(contents) < len(versions):
        yield Damage("hidden-object", "a deletion was laid over it", place)
    for one in contents:
        if one.size > (most := archive_names.most_bytes(one.key)):
            detail = f"has {one.size} bytes, where {most} are the most: not read"
            yield Damage("oversized-object", detail, place)


def oldest(archive: Archive, key: str, versions: list[Stored]) -> bytes | None:
    """The oldest content that is what the name says."""
    for one in reversed([one for one in versions if not one.marker]):
        if one.size > archive_names.most_bytes(key):
            continue
        try:
            return archive.read(key, one.version)
        except errors.InputInvalid:
            continue
    return None


AHEAD = 32
"""Contents read ahead of the one that is judged."""
THREADS = 16


@dataclass(slots=True)
class _Seen:
    """What the rows of ledgers named, to be compared with what else there is."""

    digests: set[bytes] = field(default_factory=set)
    lookups: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    """Rows that must find certificates, by hash of their names: where its ledger is, and number."""


@dataclass(slots=True)
class ArchiveLog(Log):
    """A node's ledger or the coordinator's countersignatures in an archive."""

    archive: Archive | None = None
    seen: _Seen = field(default_factory=_Seen)
    ledger: str = ""
    """Which of the node's ledgers; see `archive_names.ledger_id`."""

    @property
    def place(self) -> str:
        """Where it is, for people."""
        assert self.archive is not None  # noqa: S101 - made with one
        return f"{self.archive.place}/{self._prefix}".rstrip("/")

    @property
    def _prefix(self) -> str:
        return (
            f"{archive_names.ledgers_of(self.node)}{self.ledger}/"
            if self.node
            else archive_names.HEADS
        )

    def scan(self, sequence: Sequence) -> Iterator[Entry | Damage]:
        """Every entry in order, damages where they are."""
        assert self.archive is not None  # noqa: S101 - made with one
        elsewhere, logs = 0, _Logs(sequence)
        for found, future in _ahead(self.archive, self._rows(self.archive)):
            if isinstance(found, Damage):
                yield found
                continue
            content, moved, damage = _settled(future, found)
            mine = sequence if self.node else logs.of(found, content)
            entry = found if self.node else self._chained(found, mine)
            elsewhere += moved
            if damage is not None:
                yield damage
            if self.node:
                self._note(entry, content)
            yield from mine.judge(
                Entry(entry.number, entry.digest, entry.chain, content, entry.place)
            )
        self._tell(elsewhere)

    def _tell(self, elsewhere: int) -> None:
        note = (
            f"{self.place}: {elsewhere} certificates were read from another version than their rows"
            " name, with the same bytes: the archive was copied or restored"
        )
        if elsewhere and note not in self.notes:
            self.notes.append(note)

    def _chained(self, row: _Row, sequence: Sequence) -> _Row:
        chain = next_chain(sequence.chain, row.digest)
        return _Row(row.number, row.digest, chain, row.key, row.version, row.place)

    def _rows(self, archive: Archive) -> Iterator[_Row | Damage]:
        for key, versions in grouped(archive, self._prefix):
            place = Place(f"{archive.place}/{key}")
            try:
                row = self._row(key, versions, place)
            except errors.EvidenceInvalid as error:
                yield Damage("extra-object", error.detail, place)
                continue
            yield from laid_over(versions, row.place)
            if self.node and row.number == 1 and archive_names.ledger_id(row.digest) != self.ledger:
                detail = "the ledger it is filed under begins with another certificate"
                yield Damage("extra-object", detail, row.place)
            if self.node and any(one.size for one in versions):
                yield Damage("altered-entry", "a row of a ledger is not empty", row.place)
            yield row

    def _row(self, key: str, versions: list[Stored], place: Place) -> _Row:
        if self.node:
            found = archive_names.read_row(key)
            where = Place(place.file, entry=found.number)
            content = archive_names.certificate(found.digest)
            return _Row(found.number, found.digest, found.chain, content, found.version, where)
        number, digest = archive_names.number_of(key), archive_names.digest_named(key)
        assert digest is not None  # noqa: S101 - what has a number has a digest
        first = [one.version for one in versions if not one.marker]
        where = Place(place.file, entry=number)
        return _Row(number, digest, "", key, first[-1] if first else "", where)

    def _note(self, row: _Row, content: bytes | None) -> None:
        self.seen.digests.add(bytes.fromhex(archive_names.hex_of(row.digest)))
        if content is None:
            return
        try:
            for key in archive_names.lookups(parsed.read(content), row.number):
                self.seen.lookups[_short(key)] = (self._prefix, row.number)
        except (errors.FleetError, KeyError, TypeError):
            return  # the certificate is judged by `verify`


class _Logs:
    """Which log of countersignatures an entry is of: it names its predecessor in it."""

    def __init__(self, first: Sequence) -> None:
        self._last = first
        self._ends: dict[Digest, Sequence] = {}

    def of(self, row: _Row, content: bytes | None) -> Sequence:
        """The sequence that `row` goes on with; of one that fits nowhere, the last one's."""
        try:
            found = heads.read(content or b"")
        except errors.EvidenceInvalid:
            found = None
        if found is not None and found.begins and row.number == 1:
            self._last = Sequence() if self._ends else self._last
        elif found is not None and found.previous in self._ends:
            self._last = self._ends.pop(found.previous)
        self._ends[row.digest] = self._last
        return self._last


@dataclass(frozen=True, slots=True)
class _Row:
    number: int
    digest: Digest
    chain: str
    key: str
    """Of the content."""
    version: str
    place: Place


def collect(
    archive: Archive, keys: Trust | None = None, *, coordinator_keys: KeyRing | None = None
) -> Collection:
    """All that an archive holds. Raises `InputInvalid` where there is nothing, else as it does."""
    found = Collection([])
    folders = set(archive.below(""))
    if not folders.intersection(archive_names.KNOWN):
        raise errors.InputInvalid(
            f"{archive.place} holds no evidence",
            remedy="name bucket and prefix as the setting evidence.archive does",
        )
    for name in sorted(folders.difference(archive_names.KNOWN)):
        place = Place(f"{archive.place}/{name}")
        found.damages.append(Damage("extra-object", "is none of the names kept here", place))
    rings, coordinator = _keys(archive, found)
    nodes = list(_named(archive, archive_names.LEDGERS, found))
    ledgers = {node: list(_ledgers(archive, node, found)) for node in nodes}
    losing = list(_named(archive, archive_names.LOSSES, found))
    bound = bind({n: rings.get(n, KeyRing()) for n in sorted({*nodes, *losing})}, keys, found)
    seen = _Seen()
    for node, several in sorted(ledgers.items()):
        for ledger in several:
            log = ArchiveLog(Path(node), bound.rings[node], node, owners=bound.owners)
            log.archive, log.seen = archive, seen
            log.ledger, log.part = ledger, ledger if len(several) > 1 else ""
            found.ledgers.append(log)
    for node in losing:
        owner = Log(Path(node), bound.rings[node], node, owners=bound.owners)
        found.losses.append(Losses(owner, partial(_losses, archive, node)))
    ring = coordinator if coordinator_keys is None else coordinator_keys
    if len(coordinator) or coordinator_keys is not None:
        found.witness = f"{archive.place}/{archive_names.HEADS}".rstrip("/")
    if archive_names.HEADS in folders:
        found.heads = ArchiveLog(Path(archive_names.HEADS), ring, archive=archive)
    found.lists = f"{archive.place}/{archive_names.KEY_LISTS}".rstrip("/")
    if lists := [*_lists(archive, found)]:
        take_lists(found, lists, ring)
    trusting(found, keys, coordinator_keys)
    found.rest = lambda: _rest(archive, seen, bound.rings)
    return found


def _keys(archive: Archive, found: Collection) -> tuple[dict[str, KeyRing], KeyRing]:
    """Public keys by node, and the coordinator's; what is wrong with one is a damage."""
    keys: dict[str, list[PublicKey]] = {}
    for prefix in (archive_names.NODE_KEYS, archive_names.COORDINATOR_KEYS):
        for key, versions in grouped(archive, prefix):
            place = Place(f"{archive.place}/{key}")
            found.damages += laid_over(versions, place)
            content = oldest(archive, key, versions) or b""
            try:
                node = archive_names.key_owner(key)
                one = PublicKey.parse(content, place.file)
                named = archive_names.public_key(one.key_id, node)
            except (errors.KeyUnusable, errors.EvidenceInvalid, errors.InputInvalid) as error:
                found.damages.append(Damage("key-unusable", error.detail, place))
                continue
            if named != key:
                detail = "holds another key than the one it is named for"
                found.damages.append(Damage("key-unusable", detail, place))
                continue
            keys.setdefault(node, []).append(one)
    rings = {node: KeyRing(some) for node, some in keys.items()}
    return rings, rings.pop("", KeyRing())


def _lists(archive: Archive, found: Collection) -> Iterator[Kept]:
    """All lists of keys; a name is nobody's word for which is the newest."""
    for key, versions in grouped(archive, archive_names.KEY_LISTS):
        place = Place(f"{archive.place}/{key}")
        found.damages += laid_over(versions, place)
        try:
            number = archive_names.number_of(key)
        except errors.EvidenceInvalid as error:
            found.damages.append(Damage("extra-object", error.detail, place))
            continue
        yield Kept(oldest(archive, key, versions) or b"", place, number)


# --- what is told once the ledgers were read ------------------------------------------------------


def _rest(archive: Archive, seen: _Seen, rings: Mapping[str, KeyRing]) -> Iterator[Damage | str]:
    orphans: set[bytes] = set()
    for key, versions in grouped(archive, archive_names.CERTIFICATES):
        place = Place(f"{archive.place}/{key}")
        yield from laid_over(versions, place)
        digest = archive_names.digest_named(key)
        if digest is not None and bytes.fromhex(archive_names.hex_of(digest)) in seen.digests:
            continue
        node = _unfinished(archive, key, versions, rings)
        if node is None or digest is None:
            yield Damage("extra-object", "is in no ledger, and no node's key signed it", place)
            continue
        orphans.add(bytes.fromhex(archive_names.hex_of(digest)))
        yield f"{place.file}: a certificate of {node} whose upload was not finished"
    yield from _lookups(archive, seen, orphans)
    for key, versions in grouped(archive, archive_names.RUNS):
        place = Place(f"{archive.place}/{key}")
        yield from laid_over(versions, place)
        content = oldest(archive, key, versions) if archive_names.digest_named(key) else None
        if content is None or not _is_object(content):
            yield Damage("altered-file", "is not the run that its name says", place)


def _lookups(archive: Archive, seen: _Seen, orphans: set[bytes]) -> Iterator[Damage]:
    for prefix in archive_names.LOOKUPS:
        for key, versions in grouped(archive, prefix):
            place = Place(f"{archive.place}/{key}")
            yield from laid_over(versions, place)
            if any(one.size for one in versions):
                yield Damage("altered-entry", "a row that finds a certificate is not empty", place)
            if seen.lookups.pop(_short(key), None) is None and not _is_orphans(key, orphans):
                yield Damage("extra-object", "finds a certificate that is in no ledger", place)
    for prefix, number in sorted(seen.lookups.values()):
        place = Place(f"{archive.place}/{prefix}{number:012d}", entry=number)
        detail = "a row that finds it by time, device, claim or run is missing"
        yield Damage("missing-object", detail, place)


def _unfinished(
    archive: Archive, key: str, versions: list[Stored], rings: Mapping[str, KeyRing]
) -> str | None:
    """The node whose key signed a certificate that is in no ledger; None: nobody's did."""
    try:
        found = parsed.read(oldest(archive, key, versions) or b"")
    except errors.EvidenceInvalid:
        return None
    public = rings.get(found.node, KeyRing()).get(found.envelope.key_id)
    signed = public is not None and found.envelope.signed_by(public)
    return str(found.node) if signed else None


def _is_orphans(key: str, orphans: set[bytes]) -> bool:
    try:
        return bytes.fromhex(archive_names.hex_of(archive_names.looked_up(key))) in orphans
    except errors.EvidenceInvalid:
        return False


def _is_object(content: bytes) -> bool:
    try:
        return isinstance(json.loads(content), dict)
    except ValueError:
        return False


# --- reading --------------------------------------------------------------------------------------


def _named(archive: Archive, prefix: str, found: Collection) -> Iterator[str]:
    """Nodes that have something below `prefix`."""
    for name in archive.below(prefix):
        node = name.removeprefix(prefix).removesuffix("/")
        if name.endswith("/") and layout.is_name(node):
            yield node
        else:
            place = Place(f"{archive.place}/{name}")
            found.damages.append(Damage("extra-object", "is of no node", place))


def _losses(archive: Archive, node: str) -> Iterator[tuple[Place, bytes] | Damage]:
    for key, versions in grouped(archive, archive_names.losses_of(node)):
        place = Place(f"{archive.place}/{key}")
        try:
            where = Place(place.file, entry=archive_names.loss_number(key))
        except errors.EvidenceInvalid as error:
            yield Damage("extra-object", error.detail, place)
            continue
        yield from laid_over(versions, where)
        yield where, oldest(archive, key, versions) or b""


def _ledgers(archive: Archive, node: str, found: Collection) -> Iterator[str]:
    for name in archive.below(archive_names.ledgers_of(node)):
        ledger = name.removeprefix(archive_names.ledgers_of(node)).removesuffix("/")
        if name.endswith("/") and archive_names.is_ledger_id(ledger):
            yield ledger
        else:
            place = Place(f"{archive.place}/{name}")
            found.damages.append(Damage("extra-object", f"is no ledger of {node}", place))


_Reading = Future[tuple[bytes, bool]]
"""A content, and whether it is of another version than its row names."""


def _ahead(
    archive: Archive, rows: Iterator[_Row | Damage]
) -> Iterator[tuple[_Row | Damage, _Reading | None]]:
    """The rows in order, each with its content on the way."""
    waiting: deque[tuple[_Row | Damage, _Reading | None]] = deque()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="archive") as pool:
        for row in rows:
            reading = None if isinstance(row, Damage) else pool.submit(_read, archive, row)
            waiting.append((row, reading))
            if len(waiting) > AHEAD:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()


def _read(archive: Archive, row: _Row) -> tuple[bytes, bool]:
    try:
        return archive.read(row.key, row.version), False
    except errors.InputInvalid:
        there = [one for one in archive.stored(row.key) if one.key == row.key]
        if any(one.version == row.version for one in there):
            raise
        content = oldest(archive, row.key, there)
        if content is None:
            raise
        return content, True


def _settled(reading: _Reading | None, row: _Row) -> tuple[bytes | None, bool, Damage | None]:
    assert reading is not None  # noqa: S101 - every row is read
    try:
        return *reading.result(), None
    except errors.InputInvalid as error:
        return None, False, Damage("missing-file", f"cannot be read: {error.detail}", row.place)


def _short(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=16).digest()
