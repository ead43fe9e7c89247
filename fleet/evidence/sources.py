"""Where evidence to verify comes from: a state directory, a ledger, a heads log or an export.

All of them are read into the same stream of entries and damages, so that verification has one set
of rules. An export's files are checked against its SHA256SUMS first.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleet.errors import EvidenceInvalid, InputInvalid
from fleet.evidence import dsse, layout, parsed
from fleet.evidence.keys import KeyRing
from fleet.evidence.segments import (
    TORN_SUFFIX,
    Damage,
    Entry,
    Place,
    Reader,
    Sequence,
    next_chain,
    segment_paths,
)
from fleet.model import Digest

SUMS = "SHA256SUMS"
INDEX = "index.json"
COORDINATOR_KEYS = "keys/coordinator"
FORMAT = "https://fleetscrub.dev/export/v1"
_SUM_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._/-]*)")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(slots=True)
class Log:
    """One stream of envelopes: a node's ledger, or the coordinator's heads (`node` "")."""

    directory: Path
    keys: KeyRing
    node: str = ""
    rows: list[Any] | None = None
    """Rows of the export's index; None for a log of segments."""
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.node or "coordinator"

    def scan(self, sequence: Sequence) -> Iterator[Entry | Damage]:
        """Everything in order, damages where they are; `sequence` is filled on the way."""
        if self.rows is not None:
            yield from _scan_rows(self, self.rows, sequence)
            return
        reader = Reader(self.directory)
        reader.sequence = sequence
        for found in reader.poll():
            yield self._placed(found)
        if (damage := reader.tail()) is not None:
            yield self._placed(damage)
        for torn in sorted(self.directory.glob(f"*{TORN_SUFFIX}")):
            self.notes.append(
                f"{torn}: {torn.stat().st_size} bytes of an unfinished entry were set aside after"
                " a crash; they are no evidence"
            )

    def _placed(self, found: Entry | Damage) -> Entry | Damage:
        place = replace(found.place, file=str(self.directory / found.place.file))
        return replace(found, place=place)


@dataclass(slots=True)
class Collection:
    """All that is verified together."""

    ledgers: list[Log]
    heads: Log | None = None
    complete: bool = True
    """Whether every ledger the heads name must be here."""
    damages: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def logs(self) -> list[Log]:
        """Ledgers and heads."""
        return self.ledgers if self.heads is None else [*self.ledgers, self.heads]


def collect(
    directory: Path, keys: KeyRing | None = None, *, coordinator_keys: KeyRing | None = None
) -> Collection:
    """What `directory` holds: a state directory, an export or one ledger.

    `keys` (of nodes) and `coordinator_keys`, when given, replace those found in `directory`. Raises
    `InputInvalid` if it holds no evidence at all.
    """
    if (directory / SUMS).exists() or (directory / INDEX).exists():
        found = _export(directory, keys, coordinator_keys)
    elif layout.nodes_directory(directory).is_dir():
        found = _state(directory, keys, coordinator_keys)
    elif segment_paths(directory):
        ring = keys or KeyRing.load(directory, directory.parent / "keys")
        found = Collection([Log(directory, ring, _first_node(directory))], complete=False)
    else:
        raise InputInvalid(
            f"{directory} holds no evidence",
            remedy="name a state directory, a ledger, or an export of `fleet evidence export`",
        )
    if keys is None:
        found.notes.append(
            "the keys come from the place that is verified: this shows that it is consistent, not"
            " who signed; name the public keys you trust with --key"
        )
    return found


def _state(state: Path, keys: KeyRing | None, coordinator_keys: KeyRing | None) -> Collection:
    ledgers = [
        Log(
            layout.ledger_directory(state, node),
            keys or KeyRing.load(layout.node_keys_directory(state, node)),
            node,
        )
        for node in layout.nodes(state)
        if layout.ledger_directory(state, node).is_dir()
    ]
    found = Collection(ledgers)
    if segment_paths(layout.heads_directory(state)):
        ring = coordinator_keys or KeyRing.load(layout.coordinator_keys_directory(state))
        found.heads = Log(layout.heads_directory(state), ring)
    return found


def heads_log(directory: Path, keys: KeyRing | None = None) -> Log:
    """Countersignatures in `directory`; without `keys` those beside it are used."""
    if not segment_paths(directory):
        raise InputInvalid(
            f"{directory} holds no countersignatures",
            remedy="name the directory `coordinator/heads` of a state directory",
        )
    return Log(directory, keys or KeyRing.load(directory, directory.parent / "keys"))


def _first_node(directory: Path) -> str:
    """Node the first readable certificate names."""
    for found in Reader(directory).poll():
        if isinstance(found, Entry) and found.envelope is not None:
            try:
                return parsed.read(found.envelope).node
            except EvidenceInvalid:
                continue
    return ""


# --- exports --------------------------------------------------------------------------------------


def _export(directory: Path, keys: KeyRing | None, coordinator_keys: KeyRing | None) -> Collection:
    damages = list(check_sums(directory))
    try:
        index = _read_index(directory / INDEX)
    except EvidenceInvalid as error:
        place = Place(str(directory / INDEX))
        return Collection([], damages=[*damages, Damage("unreadable-index", error.detail, place)])
    found = Collection([], complete=index["complete"], damages=damages)
    for node, rows in sorted(index["nodes"].items()):
        ring = keys or KeyRing.load(node_keys(directory, node))
        found.ledgers.append(Log(directory, ring, node, rows["entries"]))
    if index["heads"]["entries"]:
        ring = coordinator_keys or KeyRing.load(directory / COORDINATOR_KEYS)
        found.heads = Log(directory, ring, rows=index["heads"]["entries"])
    return found


def node_keys(directory: Path, node: str) -> Path:
    """Where an export keeps a node's public keys."""
    return directory / "keys" / "nodes" / layout.checked_name(node)


def check_sums(directory: Path) -> Iterator[Damage]:
    """Compare every file of an export with its SHA256SUMS."""
    path = directory / SUMS
    place = Place(str(path))
    try:
        text = path.read_text("ascii")
    except (OSError, ValueError) as error:
        yield Damage("missing-file", f"the list of checksums cannot be read: {error}", place)
        return
    listed: dict[str, str] = {}
    offset = 0
    for line in text.splitlines(keepends=True):
        match = _SUM_LINE.fullmatch(line.removesuffix("\n")) if line.endswith("\n") else None
        if match is None or ".." in match[2].split("/"):
            yield Damage("unreadable-entry", "not a checksum line", replace(place, offset=offset))
        else:
            listed[match[2]] = match[1]
        offset += len(line)
    if list(listed) != sorted(listed):
        yield Damage("out-of-order", "the checksums are not sorted", place)
    present = {
        str(file.relative_to(directory)): file for file in directory.rglob("*") if file.is_file()
    }
    for name in sorted(present.keys() - listed.keys() - {SUMS}):
        yield Damage("extra-file", "is not part of the export", Place(str(directory / name)))
    for name, expected in listed.items():
        where = Place(str(directory / name))
        if name not in present:
            yield Damage("missing-file", "is listed and not there", where)
        elif hashlib.sha256(present[name].read_bytes()).hexdigest() != expected:
            yield Damage("altered-file", "does not match its checksum", where)


def _read_index(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise EvidenceInvalid(f"cannot be read: {error.strerror}") from error
    found = dsse.parse(content)
    try:
        if found["format"] != FORMAT or not isinstance(found["complete"], bool):
            raise EvidenceInvalid(f"is not of format {FORMAT}")
        for rows in (*found["nodes"].values(), found["heads"]):
            for digest, file in rows["entries"]:
                if not _DIGEST.fullmatch(digest) or not (file is None or _inside(file)):
                    raise EvidenceInvalid(f"has a malformed row {[digest, file]}")
        for node in found["nodes"]:
            layout.checked_name(node)
    except (KeyError, TypeError, ValueError, AttributeError, InputInvalid) as error:
        raise EvidenceInvalid(f"is not an index: {error!r}") from error
    return dict(found)


def _inside(file: str) -> bool:
    """Whether an index may name this file: it must not lead out of the export."""
    path = Path(file)
    return not path.is_absolute() and ".." not in path.parts


def _scan_rows(log: Log, rows: list[Any], sequence: Sequence) -> Iterator[Entry | Damage]:
    chain = sequence.chain
    for number, (digest, file) in enumerate(rows, start=1):
        chain = next_chain(chain, Digest(digest))
        place = Place(str(log.directory / (file or INDEX)), entry=number)
        envelope = None
        if file is not None:
            try:
                envelope = (log.directory / file).read_bytes()
            except OSError as error:
                yield Damage("missing-file", f"cannot be read: {error.strerror}", place)
            if envelope is not None and dsse.digest_of(envelope) != digest:
                yield Damage("altered-entry", "its bytes do not match the index", place)
        yield from sequence.judge(Entry(number, Digest(digest), chain, envelope, place))
