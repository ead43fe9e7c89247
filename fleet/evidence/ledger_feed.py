"""A node's certificates and data-loss records as they are copied to an archive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fleet.core.errors import EvidenceInvalid, LedgerUnavailable
from fleet.evidence import archive_names, dsse, layout, losses, parsed
from fleet.evidence.archive import Archive
from fleet.evidence.keys import SHORT_ID, KeyRing
from fleet.evidence.log_feed import LogFeed, Whole
from fleet.evidence.segments import Entry, Reader


class LedgerFeed(LogFeed):
    """What of one node's ledger is still to be copied."""

    def __init__(self, state: Path, node: str, *, place: str, required: bool = True) -> None:
        """`place` is the archive's; nothing is read yet."""
        directory = layout.ledger_directory(state, node)
        cursor = layout.archive_cursor(state, node)
        super().__init__(directory, cursor, place=place, required=required)
        self._node = node
        self._keys = layout.node_keys_directory(state, node)
        self._losses = layout.losses_directory(state, node)
        self._recorded = 0
        """Number of the last data-loss record offered by this process."""
        self._ledger = ""
        self._remembered = ""
        """Which ledger it was when the file was written."""

    def begin(self) -> None:
        """Offer the node's public keys, old and present, and its data-loss records."""
        keys = [
            Whole(
                f"key {key.key_id[:SHORT_ID]}",
                archive_names.public_key(key.key_id, self._node),
                key.pem(),
            )
            for key in KeyRing.owned(self._keys, layout.NODE_STEM)
        ]
        self._recorded = 0
        self.offer([*keys, *self._records()])

    def next(self) -> Any:
        """The next record, key or entry; None: all are copied or set aside."""
        with self._guard:
            self._take()
            return super().next()

    def waiting(self) -> tuple[int, float]:
        """What is not copied, new records included."""
        with self._guard:
            with suppress(LedgerUnavailable):  # told by the drain that fails of it
                self._take()
            return super().waiting()

    def _take(self) -> None:
        for one in self._records():
            self._wholes[one.key] = one

    def _records(self) -> list[Whole]:
        """Data-loss records that were not offered yet. Raises `LedgerUnavailable`.

        What has no readable byte is none: an archive keeps for good what it is given.
        """
        found, last = [], self._recorded
        for place, content in losses.contents(self._losses, after=last, strict=True):
            last = place.entry or last
            if content:
                key = archive_names.loss(self._node, last, dsse.digest_of(content))
                found.append(Whole(f"data-loss record {last}", key, content))
        self._recorded = last
        return found

    def send(self, archive: Archive, item: Any) -> None:
        """Copy a key, a record, or an entry: certificate, rows that find it, ledger's row last."""
        if isinstance(item, Whole):
            archive.keep(item.key, item.content)
            return
        envelope = self.envelope(item)
        certificate = parsed.read(envelope)
        kept = archive.keep(archive_names.certificate(item.digest), envelope)
        for key in archive_names.lookups(certificate, item.number):
            archive.keep(key, b"")
        ledger = self._ledger_id()
        row = archive_names.Row(
            self._node, ledger, item.number, item.digest, item.chain, kept.version
        )
        name = archive_names.row(row)
        if not kept.fresh:  # a copy of a bucket has rows that name the versions of the first
            stem = archive_names.row_stem(row)
            name = next((one.key for one in archive.stored(stem) if not one.marker), name)
        archive.keep(name, b"")

    def _ledger_id(self) -> str:
        """Which ledger this is, by its first entry; by the file where that cannot be read."""
        with self._guard:
            if not self._ledger:
                first = next(_sound(self.directory), None)
                if first is None:
                    raise EvidenceInvalid(f"no entry of {self.directory} can be read")
                if first.number == 1 or not archive_names.is_ledger_id(self._remembered):
                    self._ledger = archive_names.ledger_id(first.digest)
                else:
                    self._ledger = self._remembered
            return self._ledger

    def forget(self) -> None:
        """Offer everything again; it may be another ledger."""
        super().forget()
        self._ledger = ""
        self._remembered = ""

    def as_json(self) -> dict[str, Any]:
        """What the file says."""
        return {**super().as_json(), "ledger": self._ledger or self._remembered}

    def load(self) -> dict[str, Any]:
        """Read the file."""
        found = super().load()
        self._ledger, self._remembered = "", str(found.get("ledger", ""))
        return found

    def issued_at(self, envelope: bytes) -> float:
        """When a certificate was issued. Raises `EvidenceInvalid`."""
        return parsed.read(envelope).issued_at


def _sound(directory: Path) -> Iterator[Entry]:
    for found in Reader(directory).poll():
        if isinstance(found, Entry) and found.sound:
            yield found
