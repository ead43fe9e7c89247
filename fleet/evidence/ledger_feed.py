"""A node's certificates as they are copied to an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fleet.evidence import filing, layout, parsed
from fleet.evidence.archive import Archive
from fleet.evidence.keys import KeyRing
from fleet.evidence.log_feed import LogFeed


class LedgerFeed(LogFeed):
    """What of one node's ledger is still to be copied."""

    def __init__(self, state: Path, node: str, *, place: str) -> None:
        """`place` is the archive's; nothing is read yet."""
        directory = layout.ledger_directory(state, node)
        super().__init__(directory, layout.archive_cursor(state, node), place=place)
        self._node = node
        self._keys = layout.node_keys_directory(state, node)

    def opened(self, archive: Archive) -> None:
        """Copy the node's public keys, old and present."""
        for key in KeyRing.owned(self._keys, layout.NODE_STEM):
            archive.keep(filing.public_key(key.key_id, self._node), key.pem())

    def send(self, archive: Archive, item: Any) -> None:
        """Copy an entry: the certificate, the rows that find it, and its row of the ledger last."""
        envelope = self.envelope(item)
        certificate = parsed.read(envelope)
        kept = archive.keep(filing.certificate(item.digest), envelope)
        for key in filing.lookups(certificate, item.number):
            archive.keep(key, b"")
        row = filing.Row(self._node, item.number, item.digest, item.chain, kept.version)
        archive.keep(filing.row(row), b"")

    def issued_at(self, envelope: bytes) -> float:
        """When a certificate was issued. Raises `EvidenceInvalid`."""
        return parsed.read(envelope).issued_at
