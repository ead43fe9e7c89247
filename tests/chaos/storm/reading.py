"""What a node's disk says while everything runs: its journal, specs and newest certificates."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from fleet.core import errors, sqlite
from fleet.core.claim_states import Claim
from fleet.core.model import ClaimUid, Digest, Unit, UnitId
from fleet.evidence import layout
from fleet.evidence.keys import KeyRing
from fleet.evidence.ledger import Ledger
from fleet.evidence.parsed import Certificate, contradictions
from fleet.node.journal import schema
from fleet.node.journal.journal import Journal
from tests.chaos.storm.site import Place

PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Records:
    """A journal as of one moment."""

    units: Mapping[UnitId, Unit]
    claims: Mapping[ClaimUid, Claim]
    epoch: int


@dataclass
class NodeDisk:
    """The disk of one node, read beside whoever owns it. Safe for threads."""

    place: Place

    def __post_init__(self) -> None:
        self._ledger = Ledger(layout.ledger_directory(self.place.state, self.place.node))
        self._lock = threading.Lock()

    def records(self, *, wait_s: float = 0.0) -> Records | None:
        """The journal now; None where it cannot be read within `wait_s`: locked, or not there."""
        deadline = time.monotonic() + wait_s
        while True:
            with suppress(errors.FleetError, OSError, LookupError):
                return self._records()
            if time.monotonic() >= deadline:
                return None
            threading.Event().wait(PAUSE_S)

    def _records(self) -> Records:
        path = self.place.directory / "journal.db"
        database = sqlite.open_database(path, schema=schema.SCHEMA, timeout_s=1.0, read_only=True)
        with closing(database):
            database.execute("BEGIN")  # all tables as of one commit
            journal = Journal(database)
            return Records(dict(journal.units), dict(journal.claims), journal.epoch)

    def certificate(self, digest: Digest) -> Certificate:
        """From the ledger. Raises `InputInvalid` or `EvidenceInvalid`."""
        with self._lock:
            return self._ledger.certificate(digest)

    def count(self) -> int:
        """How many entries the ledger has."""
        with self._lock:
            return self._ledger.count

    def against(self, certificate: Certificate) -> list[str]:
        """What speaks against a certificate: its signature, what it says itself."""
        directory = layout.node_keys_directory(self.place.state, self.place.node)
        key = KeyRing.owned(directory, layout.NODE_STEM).get(certificate.envelope.key_id)
        if key is None:
            return [f"it is signed with {certificate.envelope.key_id}, no key of the node"]
        signed = [] if certificate.envelope.signed_by(key) else ["its signature is wrong"]
        return [*signed, *contradictions(certificate)]

    def specs(self) -> dict[str, tuple[str, ...]]:
        """Host paths of memory by name of the CDI spec file that names them."""
        found = {}
        for path in (self.place.disk.directory / "cdi").glob("*.json"):
            with suppress(OSError, ValueError, KeyError, TypeError):
                found[path.name] = tuple(sorted(_memories(path)))
        return found


def _memories(path: Path) -> set[str]:
    spec = json.loads(path.read_text())
    edits = [spec.get("containerEdits") or {}]
    edits += [device["containerEdits"] for device in spec["devices"]]
    return {mount["hostPath"] for one in edits for mount in one.get("mounts") or ()}
