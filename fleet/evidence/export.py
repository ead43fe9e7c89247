"""A copy of the evidence for somebody else: one file per certificate, keys, heads, checksums.

The index names every entry of each ledger, also those left out, so that the order and the
countersignatures of a partial export can still be verified.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
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
keys/                 public keys; compare them with keys you got another way. list.json, if it is
                      there, says when each was good, signed by the coordinator
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
    units = {unit for log in logs for unit in _units(log, device)}
    if device and not units:
        raise _nothing(node, device)
    writer = _Export(target, collection.heads)
    try:
        copied = {log.node: writer.copy(log, units if device else None) for log in logs}
        _refuse_nothing(copied, node, device)
        heads = writer.copy(collection.heads, None) if collection.heads else None
        writer.finish(
            {
                "format": FORMAT,
                "complete": collection.complete and not node,
                "nodes": {name: {"entries": one.rows} for name, one in copied.items()},
                "heads": {"entries": heads.rows if heads else []},
                "keys": {
                    "nodes": {name: one.keys for name, one in copied.items()},
                    "coordinator": heads.keys if heads else [],
                },
            },
            key_list=collection.key_list,
        )
    except OSError as error:
        raise LedgerUnavailable(f"cannot write {target}: {error}") from error
    except BaseException:
        writer.undo()
        raise
    total = sum(len(one.rows) for one in copied.values())
    written = writer.counts["certificates"]
    return Exported(target, written, total - written, len(heads.rows) if heads else 0)


def _refuse_nothing(copied: Mapping[str, _Copied], node: str, device: str) -> None:
    if node and not any(one.rows for one in copied.values()):
        raise _nothing(node, device)


def _nothing(node: str, device: str) -> InputInvalid:
    return InputInvalid(
        f"no certificate of node {node or 'any'} and device {device or 'any'}",
        remedy="list what there is with `fleet evidence list`",
    )


def _sound(log: Log) -> Iterator[Entry]:
    for found in log.scan(Sequence()):
        if isinstance(found, Damage):
            raise EvidenceInvalid(
                f"{log.name} is damaged at {found.place}: {found.detail}",
                remedy="see `fleet evidence verify`; keep the files themselves for inquiry",
            )
        yield found


def _units(log: Log, device: str) -> set[UnitId]:
    """Units of the device, over all certificates that name it."""
    found: set[UnitId] = set()
    for entry in _sound(log) if device else ():
        if entry.envelope is not None:
            certificate = parsed.read(entry.envelope)
            if device in (certificate.device, certificate.device_name):
                found |= certificate.chain.keys()
    return found


def _touches(envelope: bytes, units: set[UnitId] | None) -> bool:
    return units is None or bool(units.intersection(parsed.read(envelope).chain))


@dataclass(slots=True)
class _Copied:
    """One log as it was written: its rows for the index, and the ids of its keys."""

    rows: list[list[str | None]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


class _Export:
    """Writes files below one directory and remembers their checksums."""

    def __init__(self, directory: Path, heads: Log | None) -> None:
        self.directory = directory
        self._heads = heads
        self.counts = {"certificates": 0, "heads": 0}
        self._sums: dict[str, str] = {}

    def copy(self, log: Log, units: set[UnitId] | None) -> _Copied:
        """Write the entries that touch `units` (None: all) and the keys that signed the log."""
        folder = f"certificates/{log.node}" if log is not self._heads else "heads"
        done, signers = _Copied(), set()
        for entry in _sound(log):
            file = None
            if entry.envelope is not None:
                signers.add(dsse.open_envelope(entry.envelope).key_id)
                if _touches(entry.envelope, units):
                    short = entry.digest.removeprefix("sha256:")[:SHORT_ID]
                    file = f"{folder}/{entry.number:08d}-{short}.json"
                    self.file(file, entry.envelope)
                    self.counts[folder.partition("/")[0]] += 1
            done.rows.append([entry.digest, file])
        keys = COORDINATOR_KEYS if log is self._heads else str(node_keys(Path(), log.node))
        for key in log.keys.only(sorted(signers)):
            self.file(f"{keys}/{key.key_id[:SHORT_ID]}.pub", key.pem())
            done.keys.append(key.key_id)
        return done

    def file(self, name: str, content: bytes) -> None:
        """Write one file."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self._sums[name] = hashlib.sha256(content).hexdigest()

    def undo(self) -> None:
        """Take back what was written: a part of a copy must not be taken for one."""
        for name in self._sums:
            (self.directory / name).unlink(missing_ok=True)
        for folder, _, _ in os.walk(self.directory, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()

    def finish(self, index: dict[str, Any], *, key_list: bytes) -> None:
        """Write index and checksums, last: an export without them is not finished."""
        if key_list:
            self.file(copies.KEY_LIST, key_list)
        self.file(README, _WORDS.encode())
        index |= {"counts": copies.counts(index), "files": dict(self._sums)}
        self.file(INDEX, dsse.canonical(index))
        lines = [f"{self._sums[name]}  {name}\n" for name in sorted(self._sums)]
        replace(self.directory / SUMS, "".join(lines).encode())
