"""A copy of the evidence for somebody else: one file per certificate, keys, heads, checksums.

The index names every entry of each ledger, also those left out, so that the order and the
countersignatures of a partial export can still be verified.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.core.disk import replace
from fleet.core.errors import EvidenceInvalid, InputInvalid, LedgerUnavailable
from fleet.core.model import UnitId
from fleet.evidence import copies, dsse, losses, parsed
from fleet.evidence import heads as heads_module
from fleet.evidence import key_list as key_lists
from fleet.evidence.copies import COORDINATOR_KEYS, FORMAT, INDEX, SUMS, node_keys
from fleet.evidence.key_list import Named
from fleet.evidence.keys import SHORT_ID
from fleet.evidence.segments import Damage, Entry, Sequence
from fleet.evidence.sources import Collection, Log, Losses

README = "README.txt"
_INQUIRY = "see `fleet evidence verify`; keep the files themselves for inquiry"
_WORDS = """Wipe certificates of fleetscrub.

certificates/<node>/  DSSE envelopes (in-toto statements, Ed25519), one file each, oldest first
                      (<node>.<ledger> where a node that lost its disk has several ledgers)
heads/                countersignatures of the coordinator over the ends of the nodes' ledgers
losses/<node>/        signed records of claims that ended with a device out of service, and of
                      claims that looked into devices with adminAccess
keys/                 public keys; compare them with keys you got another way. list.json, if it is
                      there, says when each was good, signed by the coordinator
index.json            all entries of each ledger in order, with digests (null: left out here), whose
                      each key is, counts and checksums of all files; it is not signed

Verify:  fleet evidence verify --directory . --key <public key you trust>
                               --coordinator-key <public key of the coordinator you trust>
         Both from elsewhere: with the keys in this copy whoever made it vouches for himself. Its
         notes say what is left out, and until when nothing can have been cut off unseen.
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
        copied = {_folder(log): writer.copy(log, units if device else None) for log in logs}
        _refuse_nothing(copied, node, device)
        heads = writer.copy(collection.heads, None) if collection.heads else None
        if collection.heads is None or heads is None or not heads.rows:
            _refuse_unwitnessed(collection, copied)
        else:
            _refuse_old_list(collection, writer.named)
            heads.keys += writer.list_signer(collection.heads, collection.key_list, heads.keys)
        signers = _keys_of(logs, copied)
        for found in collection.losses:
            if not node or found.log.node == node:
                key_ids = writer.losses(found, units if device else None)
                signers.setdefault(found.log.node, []).extend(key_ids)
        writer.finish(
            {
                "format": FORMAT,
                "complete": collection.complete and not node,
                "nodes": {
                    _folder(log): {
                        "node": log.node,
                        "ledger": log.part,
                        "entries": copied[_folder(log)].rows,
                    }
                    for log in logs
                },
                "heads": {"entries": heads.rows if heads else []},
                "keys": {
                    "nodes": {name: sorted({*keys}) for name, keys in signers.items()},
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


def _folder(log: Log) -> str:
    return copies.ledger_name(log.node, log.part)


def _keys_of(logs: Iterable[Log], copied: Mapping[str, _Copied]) -> dict[str, list[str]]:
    """Ids of the keys that signed, by node: a node's ledgers have its keys in common."""
    found: dict[str, set[str]] = {}
    for log in logs:
        found.setdefault(log.node, set()).update(copied[_folder(log)].keys)
    return {node: sorted(keys) for node, keys in found.items()}


def _refuse_nothing(copied: Mapping[str, _Copied], node: str, device: str) -> None:
    if node and not any(one.rows for one in copied.values()):
        raise _nothing(node, device)


def _refuse_unwitnessed(collection: Collection, copied: Mapping[str, _Copied]) -> None:
    """The copy of a place whose countersignatures were taken away would be whole."""
    if collection.witness and any(one.rows for one in copied.values()):
        raise EvidenceInvalid(
            f"a coordinator works here, and its countersignatures are not at {collection.witness}",
            remedy=_INQUIRY,
        )


def _refuse_old_list(collection: Collection, named: Named | None) -> None:
    """Nor must a copy be made of a list of keys that is not the newest."""
    if why := key_lists.behind(collection.listed, named):
        raise EvidenceInvalid(f"{collection.lists or 'list of keys'}: {why}", remedy=_INQUIRY)


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
                remedy=_INQUIRY,
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
        self.named: Named | None = None
        """The newest list of keys that a countersignature copied names."""
        self._sums: dict[str, str] = {}

    def copy(self, log: Log, units: set[UnitId] | None) -> _Copied:
        """Write the entries that touch `units` (None: all) and the keys that signed the log."""
        folder = f"certificates/{_folder(log)}" if log is not self._heads else "heads"
        done, signers = _Copied(), set()
        for entry in _sound(log):
            file = None
            if entry.envelope is not None:
                signers.add(dsse.open_envelope(entry.envelope).key_id)
                self._names(log, entry.envelope)
                if _touches(entry.envelope, units):
                    short = entry.digest.removeprefix("sha256:")[:SHORT_ID]
                    file = f"{folder}/{entry.number:08d}-{short}.json"
                    self.file(file, entry.envelope)
                    self.counts[folder.partition("/")[0]] += 1
            done.rows.append([entry.digest, file])
        done.keys = self._keys(log, signers)
        return done

    def losses(self, found: Losses, units: set[UnitId] | None) -> list[str]:
        """Write the data-loss records that touch `units` (None: all); ids of their keys."""
        folder, signers = str(copies.losses(Path(), found.log.node)), set()
        for one in found.contents():
            if isinstance(one, Damage):
                raise EvidenceInvalid(f"{one.place}: {one.detail}", remedy=_INQUIRY)
            record = losses.read(one[1])
            if units is None or units.intersection(record.units):
                signers.add(record.envelope.key_id)
                self.file(f"{folder}/{losses.file_name(record.number)}", one[1])
        return self._keys(found.log, signers)

    def list_signer(self, heads: Log, content: bytes, written: list[str]) -> list[str]:
        """Write the key that signed the list of keys, unless it was `written` already."""
        try:
            signer = dsse.open_envelope(content).key_id if content else ""
        except EvidenceInvalid:
            return []  # the copy tells that it cannot be read
        return self._keys(heads, {signer}.difference(written))

    def _keys(self, log: Log, key_ids: Iterable[str]) -> list[str]:
        folder = COORDINATOR_KEYS if log is self._heads else str(node_keys(Path(), log.node))
        found = list(log.keys.only(sorted(key_ids)))
        for key in found:
            self.file(f"{folder}/{key.key_id[:SHORT_ID]}.pub", key.pem())
        return [key.key_id for key in found]

    def _names(self, log: Log, envelope: bytes) -> None:
        """Remember the list of keys that a countersignature of the coordinator's names."""
        if log is not self._heads:
            return
        try:
            found = heads_module.read(envelope)
        except EvidenceInvalid:
            return  # the copy tells that it cannot be read
        key = log.keys.get(found.envelope.key_id)
        number = 0 if self.named is None else self.named.number
        if found.listed is None or found.listed.number <= number or key is None:
            return
        if found.envelope.signed_by(key):
            self.named = found.listed

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
