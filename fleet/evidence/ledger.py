"""A node's certificates, append-only. What `append` returned is on disk.

Decisions:

1. `append` refuses a certificate that does not continue the chain of each of its units: a fork
   cannot be written, whatever a caller believed the heads to be.
2. The index is built on first use and follows the file; opening costs nothing.
3. Damaged entries are left where they are, out of the index; `fleet evidence verify` tells.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fleet.core.errors import EvidenceInvalid, EvidenceRefused, InputInvalid, LedgerUnavailable
from fleet.core.model import Digest, UnitId
from fleet.evidence import parsed
from fleet.evidence.dsse import digest_of
from fleet.evidence.segments import (
    GENESIS,
    SEGMENT_BYTES,
    Damage,
    Entry,
    Place,
    Reader,
    read_from,
    spell_line,
)
from fleet.evidence.writer import Writer


@dataclass(frozen=True, slots=True)
class LedgerHead:
    """The end of a ledger: entries, chain value over all of them, newest certificate per unit."""

    count: int = 0
    chain: str = GENESIS
    units: Mapping[UnitId, Digest] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """JSON-safe form; `from_json` reads it back."""
        return {"count": self.count, "chain": self.chain, "units": dict(self.units)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Rebuild from `as_json`. Raises KeyError, TypeError or ValueError on anything else."""
        count, chain, units = found["count"], found["chain"], found["units"]
        if isinstance(count, bool) or not isinstance(count, int) or not isinstance(chain, str):
            raise TypeError(f"not the end of a ledger: {count!r}, {chain!r}")
        return cls(count, chain, {UnitId(str(u)): Digest(str(d)) for u, d in units.items()})


@dataclass(frozen=True, slots=True)
class _Where:
    place: Place
    length: int


class Ledger:
    """The ledger in `directory`. Safe to use from several threads; one process writes at a time."""

    def __init__(self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.directory = directory
        self._segment_bytes = segment_bytes
        self._guard = threading.RLock()
        self._writer: Writer | None = None
        self._reader = Reader(directory)
        self._where: dict[Digest, _Where] = {}
        self._heads: dict[UnitId, Digest] = {}
        self._sequences: dict[UnitId, int] = {}

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

    def append(self, envelope: bytes) -> Digest:
        """Store a certificate; durable on return. The same one again is stored once.

        Raises, with nothing stored: `EvidenceInvalid` (not a certificate), `EvidenceRefused` (does
        not continue its units' chains), `NotOwner` (another process writes), `LedgerUnavailable`.
        """
        certificate = parsed.read(envelope)
        with self._guard:
            if self._writer is None:
                self._writer = Writer(self.directory, segment_bytes=self._segment_bytes)
            self._follow()
            if certificate.digest in self._where:
                return certificate.digest
            self._refuse_fork(certificate)
            try:
                self._writer.append(envelope)
            except LedgerUnavailable:
                self.close()
                raise
            self._follow()
            if certificate.digest not in self._where:
                self.close()
                raise LedgerUnavailable(f"{certificate.digest} went from {self.directory} again")
            return certificate.digest

    @property
    def count(self) -> int:
        """Number of entries, damaged ones included."""
        with self._guard:
            self._follow()
            return self._reader.sequence.expected - 1

    def heads(self) -> dict[UnitId, Digest]:
        """Newest certificate of each unit: what the next one names as its predecessor."""
        with self._guard:
            self._follow()
            return dict(self._heads)

    def sequences(self) -> dict[UnitId, int]:
        """Sequence number of each unit's newest certificate."""
        with self._guard:
            self._follow()
            return dict(self._sequences)

    def head(self) -> LedgerHead:
        """The end of the ledger, for the coordinator to countersign."""
        with self._guard:
            self._follow()
            sequence = self._reader.sequence
            return LedgerHead(sequence.expected - 1, sequence.chain, dict(self._heads))

    def __contains__(self, digest: object) -> bool:
        with self._guard:
            self._follow()
            return digest in self._where

    def get(self, digest: Digest) -> bytes:
        """The stored envelope. Raises `InputInvalid` (none) or `EvidenceInvalid` (changed)."""
        with self._guard:
            self._follow()
            where = self._where.get(digest)
        if where is None:
            raise InputInvalid(
                f"no certificate {digest} in {self.directory}",
                remedy="list the certificates with `fleet evidence list`",
            )
        line = read_from(self.directory / where.place.file, where.place.offset, where.length)
        start = line.find(b'"entry":') + len(b'"entry":')
        envelope = line[start : line.rfind(b',"number":')]
        if digest_of(envelope) != digest:
            raise EvidenceInvalid(f"certificate {digest} was changed on disk at {where.place}")
        return envelope

    def certificate(self, digest: Digest) -> parsed.Certificate:
        """The certificate, read. Raises as `get` does."""
        return parsed.read(self.get(digest))

    def entries(self) -> Iterator[Entry]:
        """All entries that can be read, oldest first, straight from disk."""
        for found in Reader(self.directory).poll():
            if isinstance(found, Entry) and found.sound:
                yield found

    def _refuse_fork(self, certificate: parsed.Certificate) -> None:
        for unit, link in certificate.chain.items():
            head, sequence = self._heads.get(unit), self._sequences.get(unit, 0)
            if link.previous != head or link.sequence != sequence + 1:
                raise EvidenceRefused(
                    f"certificate {certificate.digest} of unit {unit} continues {link.previous} as"
                    f" number {link.sequence}; the ledger ends with {head}, number {sequence}",
                    remedy="issue it again from `Ledger.heads`; nothing was stored",
                )

    def _follow(self) -> None:
        """Bring the index up to what is on disk; nothing is answered for a file that is gone."""
        if self._reader.lost():
            self._reader = Reader(self.directory)
            self._where, self._heads, self._sequences = {}, {}, {}
        for found in self._reader.poll():
            if isinstance(found, Damage) or not found.sound or found.envelope is None:
                continue
            try:
                chain = parsed.chain_of(found.envelope)
            except EvidenceInvalid:
                continue
            line = spell_line(found.envelope, number=found.number, chain=found.chain)
            self._where[found.digest] = _Where(found.place, len(line))
            for unit, link in chain.items():
                self._heads[unit] = found.digest
                self._sequences[unit] = link.sequence
