"""A copy of the evidence for somebody else: one file per certificate, keys, heads, checksums.

The index names every entry of each ledger, also those left out, so that the order and the
countersignatures of a partial export can still be verified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.errors import EvidenceInvalid, InputInvalid, LedgerUnavailable
from fleet.evidence import copies, dsse, parsed
from fleet.evidence.copies import COORDINATOR_KEYS, FORMAT, INDEX, SUMS, node_keys
from fleet.evidence.disk import replace
from fleet.evidence.keys import SHORT_ID
from fleet.evidence.segments import Damage, Entry, Sequence
from fleet.evidence.sources import Collection, Log
from fleet.model import UnitId

README = "README.txt"
_WORDS = """Wipe certificates of fleetscrub.

certificates/<node>/  DSSE envelopes (in-toto statements, Ed25519), one file each, oldest first
heads/                countersignatures of the coordinator over the ends of the nodes' ledgers
keys/                 public keys; compare them with keys you got another way
index.json            all entries of each ledger in order, with digests (null: left out here), whose
                      each key is, counts and checksums of all files; it is not signed

Verify:  fleet evidence verify --directory . --key <public key you trust>
Without fleetscrub:  sha256sum -c SHA256SUMS
"""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    directory: Path
    certificates: int
    omitted: int
    countersignatures: int


def export(collection: Collection, target: Path, *, node: str = "", device: str = "") -> Exported:
    """Write `target`, which must not exist or be empty. `node` and `device` choose; "" is all.

    `device` is a UUID or name; everything that touched one of its units comes along. Raises
    `EvidenceInvalid` when the source is damaged: a copy must not launder it.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputInvalid(f"{target} exists already", remedy="name a new or an empty directory")
    logs = [log for log in collection.ledgers if not node or log.node == node]
    found = {log.node: _sound(log) for log in logs}
    heads = _sound(collection.heads) if collection.heads else []
    writer = _Export(target)
    units = {unit for rows in found.values() for unit in _units(rows, device)}
    if (node and not any(found.values())) or (device and not units):
        raise InputInvalid(
            f"no certificate of node {node or 'any'} and device {device or 'any'}",
            remedy="list what there is with `fleet evidence list`",
        )
    try:
        index: dict[str, Any] = {
            "format": FORMAT,
            "complete": collection.complete and not node,
            "nodes": {
                log.node: {
                    "entries": writer.entries(
                        found[log.node],
                        f"certificates/{log.node}",
                        lambda entry: not device or bool(units & _chain_units(entry)),
                    )
                }
                for log in logs
            },
            "heads": {"entries": writer.entries(heads, "heads", lambda _: True)},
        }
        index["keys"] = {
            "nodes": {
                log.node: writer.keys(log, found[log.node], str(node_keys(Path(), log.node)))
                for log in logs
            },
            "coordinator": (
                writer.keys(collection.heads, heads, COORDINATOR_KEYS) if collection.heads else []
            ),
        }
        writer.finish(index)
    except OSError as error:
        raise LedgerUnavailable(f"cannot write {target}: {error}") from error
    total = sum(len(rows) for rows in found.values())
    written = writer.counts["certificates"]
    return Exported(target, written, total - written, len(heads))


def _sound(log: Log) -> list[Entry]:
    entries = []
    for found in log.scan(Sequence()):
        if isinstance(found, Damage):
            raise EvidenceInvalid(
                f"{log.name} is damaged at {found.place}: {found.detail}",
                remedy="see `fleet evidence verify`; keep the files themselves for inquiry",
            )
        entries.append(found)
    return entries


def _units(entries: list[Entry], device: str) -> set[UnitId]:
    """Units of the device, over all certificates that name it."""
    found: set[UnitId] = set()
    for entry in entries:
        if device and entry.envelope is not None:
            certificate = parsed.read(entry.envelope)
            if device in (certificate.device, certificate.device_name):
                found |= certificate.chain.keys()
    return found


def _chain_units(entry: Entry) -> set[UnitId]:
    return set(parsed.read(entry.envelope).chain) if entry.envelope is not None else set()


class _Export:
    """Writes files below one directory and remembers their checksums."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.counts = {"certificates": 0, "heads": 0}
        self._sums: dict[str, str] = {}

    def entries(
        self, entries: list[Entry], folder: str, wanted: Callable[[Entry], bool]
    ) -> list[list[str | None]]:
        """Write the entries wanted; rows of all of them for the index."""
        rows: list[list[str | None]] = []
        for entry in entries:
            file = None
            if entry.envelope is not None and wanted(entry):
                short = entry.digest.removeprefix("sha256:")[:SHORT_ID]
                file = f"{folder}/{entry.number:08d}-{short}.json"
                self.file(file, entry.envelope)
                self.counts[folder.partition("/")[0]] += 1
            rows.append([entry.digest, file])
        return rows

    def keys(self, log: Log, entries: list[Entry], folder: str) -> list[str]:
        """Write the keys that signed `entries`; their ids for the index."""
        signers = {dsse.open_envelope(entry.envelope).key_id for entry in entries if entry.envelope}
        ring = log.keys.only(sorted(signers))
        for key in ring:
            self.file(f"{folder}/{key.key_id[:SHORT_ID]}.pub", key.pem())
        return [key.key_id for key in ring]

    def file(self, name: str, content: bytes) -> None:
        """Write one file."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self._sums[name] = hashlib.sha256(content).hexdigest()

    def finish(self, index: dict[str, Any]) -> None:
        """Write index and checksums, last: an export without them is not finished."""
        self.file(README, _WORDS.encode())
        index |= {"counts": copies.counts(index), "files": dict(self._sums)}
        self.file(INDEX, dsse.canonical(index))
        lines = [f"{self._sums[name]}  {name}\n" for name in sorted(self._sums)]
        replace(self.directory / SUMS, "".join(lines).encode())
