"""The coordinator's countersignatures over the ends of the nodes' ledgers.

A node can cut the tail off its own ledger and nobody could tell from what is left. So the
coordinator signs, numbered and chained, how far each ledger had come: whoever removes or rewrites
what was countersigned contradicts a second key.

A countersignature names the nodes whose ledgers moved; the others stand as last named. It names the
newest list of keys as well: an older one put back, or none, contradicts it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fleet.core.clock import Clock
from fleet.core.errors import EvidenceInvalid, InputInvalid, LedgerUnavailable
from fleet.core.model import Digest, NodeName
from fleet.evidence import dsse
from fleet.evidence.key_list import Named
from fleet.evidence.ledger import LedgerHead
from fleet.evidence.segments import SEGMENT_BYTES, Damage, Reader
from fleet.evidence.writer import Writer

PREDICATE_TYPE = "https://fleetscrub.dev/ledger-heads/v1"


@dataclass(frozen=True, slots=True)
class Countersignature:
    """One countersignature, read. `number` starts at 1."""

    envelope: dsse.Envelope
    number: int
    previous: Digest | None
    heads: Mapping[NodeName, LedgerHead]
    issued_at: float
    listed: Named | None = None
    """The newest list of keys at the time; None: there was none."""

    @property
    def digest(self) -> Digest:
        return self.envelope.digest

    @property
    def begins(self) -> bool:
        """Whether it is the first of its log."""
        return self.number == 1 and self.previous is None


def countersign(
    heads: Mapping[NodeName, LedgerHead],
    previous: Digest | None,
    *,
    number: int,
    key: dsse.Signer,
    now: float,
    listed: Named | None = None,
) -> bytes:
    """Sign `heads` as countersignature `number`, which follows `previous` (None for the first).

    `listed` is the newest list of keys. Raises `InputInvalid` when there is nothing to sign or the
    number contradicts `previous`.
    """
    if not heads and listed is None and number > 1:
        raise InputInvalid("there are no ledgers to countersign")
    if number < 1 or (number == 1) != (previous is None):
        raise InputInvalid(f"countersignature {number} cannot follow {previous}")
    spelled = {node: head.as_json() for node, head in heads.items()}
    digest = hashlib.sha256(dsse.canonical(spelled)).hexdigest()
    predicate: dict[str, Any] = {
        "number": number,
        "previous": previous,
        "issued_at": dsse.moment(now),
        "heads": spelled,
        "key_list": None if listed is None else listed.as_json(),
        "signer": {"service": "fleetscrub coordinator", "key_id": key.key_id},
    }
    subject = [{"name": "ledger heads", "digest": {"sha256": digest}}]
    return dsse.seal(PREDICATE_TYPE, subject, predicate, key=key)


def read(content: bytes) -> Countersignature:
    """Read a stored countersignature. Raises `EvidenceInvalid`; does not judge the signature."""
    envelope = dsse.open_envelope(content)
    if envelope.predicate_type != PREDICATE_TYPE:
        raise EvidenceInvalid(f"is a {envelope.predicate_type}, not a countersignature")
    found = envelope.predicate
    try:
        number, previous = found["number"], found["previous"]
        heads = {NodeName(n): LedgerHead.from_json(head) for n, head in found["heads"].items()}
        issued_at, listed = dsse.seconds_of(found["issued_at"]), Named.from_json(found["key_list"])
        (subject,) = envelope.statement["subject"]
        spelled = hashlib.sha256(dsse.canonical(found["heads"])).hexdigest()
        if subject["digest"] != {"sha256": spelled}:
            raise EvidenceInvalid("its subject is not the heads it names")
        if isinstance(number, bool) or not isinstance(number, int):
            raise EvidenceInvalid(f"its number is {number!r}")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise EvidenceInvalid(f"is not a well-formed countersignature: {error!r}") from error
    return Countersignature(envelope, number, previous, heads, issued_at, listed)


class HeadsLog:
    """All countersignatures of one coordinator, append-only, in `directory`. Thread-safe."""

    def __init__(self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.directory = directory
        self._segment_bytes = segment_bytes
        self._guard = threading.RLock()
        self._writer: Writer | None = None
        self._reader = Reader(directory)
        self._previous: Digest | None = None
        self._latest: dict[NodeName, LedgerHead] = {}
        self._listed: Named | None = None

    def close(self) -> None:
        """Let another process write."""
        with self._guard:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(
        self,
        heads: Mapping[NodeName, LedgerHead],
        *,
        key: dsse.Signer,
        now: float,
        listed: Named | None = None,
    ) -> Digest | None:
        """Countersign what moved since the last time; durable on return. None: nothing moved.

        A ledger that went backwards is countersigned as it is: the earlier countersignature stays
        and convicts it. `listed` is the newest list of keys; one older than that last named is not.
        Raises `NotOwner` and `LedgerUnavailable`.
        """
        with self._guard:
            writer = self._opened()
            moved = {node: head for node, head in heads.items() if self._moved(node, head)}
            before = self._listed.number if self._listed is not None else 0
            if listed is None or listed.number <= before:
                listed = self._listed
            if not moved and listed == self._listed:
                return None
            envelope = self._signed(moved, key=key, now=now, listed=listed)
            return self._append(writer, envelope)

    def begin(self, *, key: dsse.Signer, now: float) -> None:
        """Sign, once, that nothing was certified before: a log that is missing later was removed.

        Raises `NotOwner` and `LedgerUnavailable`.
        """
        with self._guard:
            writer = self._opened()
            if self.count == 0:
                self._append(writer, self._signed({}, key=key, now=now, listed=None))

    def _opened(self) -> Writer:
        if self._writer is None:
            self._writer = Writer(self.directory, segment_bytes=self._segment_bytes)
        self._follow()
        return self._writer

    def _signed(
        self,
        moved: Mapping[NodeName, LedgerHead],
        *,
        key: dsse.Signer,
        now: float,
        listed: Named | None,
    ) -> bytes:
        number = self._reader.sequence.expected
        previous = self._previous
        if number > 1 and previous is None:
            # Everything before is damaged; name that instead of pretending to be the first.
            previous = Digest(f"unreadable:{number - 1}")
        return countersign(moved, previous, number=number, key=key, now=now, listed=listed)

    def _append(self, writer: Writer, envelope: bytes) -> Digest:
        try:
            entry = writer.append(envelope)
        except LedgerUnavailable:
            self.close()
            raise
        self._follow()
        return entry.digest

    def latest(self) -> dict[NodeName, LedgerHead]:
        """The newest countersigned end of every ledger."""
        with self._guard:
            self._follow()
            return dict(self._latest)

    def listed(self) -> Named | None:
        """The newest list of keys that was countersigned."""
        with self._guard:
            self._follow()
            return self._listed

    @property
    def count(self) -> int:
        """Number of countersignatures, damaged ones included."""
        with self._guard:
            self._follow()
            return self._reader.sequence.expected - 1

    def entries(self) -> Iterator[Countersignature]:
        """All countersignatures that can be read, oldest first, straight from disk."""
        yield from _readable(Reader(self.directory))

    def _moved(self, node: NodeName, head: LedgerHead) -> bool:
        last = self._latest.get(node)
        return head.count > 0 if last is None else head != last

    def _follow(self) -> None:
        if self._reader.lost():
            self._reader, self._previous, self._latest = Reader(self.directory), None, {}
            self._listed = None
        for found in _readable(self._reader):
            self._previous = found.digest
            self._latest.update(found.heads)
            self._listed = found.listed or self._listed


@dataclass(frozen=True, slots=True)
class Countersigner:
    """What a coordinator signs ledger ends with: log, key and clock."""

    log: HeadsLog
    key: dsse.Signer
    clock: Clock
    listed: Callable[[], Named | None] = lambda: None
    """The newest list of keys; see `fleet.evidence.kept_list.named`."""

    def begin(self) -> None:
        """Sign the beginning of the log, once. Raises `NotOwner` and `LedgerUnavailable`."""
        try:
            self.log.begin(key=self.key, now=self.clock.now())
        finally:
            self.log.close()

    def sign(self, heads: Mapping[NodeName, LedgerHead]) -> None:
        """Countersign what moved; durable on return. Raises `NotOwner` and `LedgerUnavailable`."""
        try:
            self.log.record(heads, key=self.key, now=self.clock.now(), listed=self.listed())
        finally:
            # Held only while writing: a hanging coordinator must not lock out its successor.
            self.log.close()


def _readable(reader: Reader) -> Iterator[Countersignature]:
    for found in reader.poll():
        if isinstance(found, Damage) or not found.sound or found.envelope is None:
            continue
        try:
            yield read(found.envelope)
        except EvidenceInvalid:
            continue
