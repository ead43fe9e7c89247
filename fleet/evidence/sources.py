"""Where evidence to verify comes from: a state directory, a ledger, a heads log or an export.

All of them are read into the same stream of entries and damages, so that verification has one set
of rules. Keys are bound to nodes where that is known: a node's keys verify nobody else's ledger.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fleet.core.disk import read_regular, shown
from fleet.core.errors import EvidenceInvalid, InputInvalid
from fleet.core.model import Digest
from fleet.evidence import copies, dsse, key_list, layout, losses, parsed
from fleet.evidence.key_list import Chosen, Kept, KeyList
from fleet.evidence.keys import SHORT_ID, KeyRing
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

OWN_KEYS = (
    "the keys come from the place that is verified: this shows that it is consistent, not"
    " who signed; name the public keys you trust with --key"
)
OWN_COORDINATOR = (
    "the coordinator's keys come from the place that is verified: whoever cut a ledger can have"
    " countersigned what is left; name the coordinator's public key with --coordinator-key"
)


@dataclass(slots=True)
class Log:
    """One stream of envelopes: a node's ledger, or the coordinator's heads (`node` "")."""

    directory: Path
    keys: KeyRing
    node: str = ""
    rows: list[Any] | None = None
    """Rows of the export's index; None for a log of segments."""
    notes: list[str] = field(default_factory=list)
    owners: Mapping[str, str] = field(default_factory=dict)
    """Whose each key is, of those bound to a node; key id -> node."""
    listed: KeyList | None = None
    """The coordinator's signed list of keys: when each was good."""
    part: str = ""
    """Which of the node's ledgers, where it has several: one that lost its disk began another."""

    @property
    def name(self) -> str:
        """Whose it is, and which one where there are several."""
        if not self.node:
            return "coordinator"
        return f"{self.node} (ledger {self.part})" if self.part else self.node

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return str(self.directory)

    def scan(self, sequence: Sequence) -> Iterator[Entry | Damage]:
        """Everything in order, damages where they are; `sequence` is filled on the way."""
        if self.rows is not None:
            yield from _scan_rows(self, self.rows, sequence)
            return
        reader = Reader(self.directory, lenient=True)
        reader.sequence = sequence
        for found in reader.poll():
            yield self._placed(found)
        if (damage := reader.tail()) is not None:
            yield self._placed(damage)
        yield from self._torn()

    def _torn(self) -> Iterator[Damage]:
        for torn in sorted(self.directory.glob(f"*{TORN_SUFFIX}")):
            try:
                found = torn.lstat()
            except OSError as error:
                yield Damage("unreadable-file", f"cannot be read: {error}", Place(shown(torn)))
                continue
            if not stat.S_ISREG(found.st_mode):
                yield Damage("unreadable-file", "is not a regular file", Place(shown(torn)))
                continue
            self.notes.append(
                f"{shown(torn)}: {found.st_size} bytes of an unfinished entry were set aside after"
                " a crash; they are no evidence"
            )

    def _placed(self, found: Entry | Damage) -> Entry | Damage:
        place = replace(found.place, file=str(self.directory / found.place.file))
        return replace(found, place=place)


@dataclass(frozen=True, slots=True)
class Losses:
    """A node's data-loss records, wherever they are kept."""

    log: Log
    """Whose they are: its keys sign them."""
    contents: Callable[[], Iterator[tuple[Place, bytes] | Damage]]


@dataclass(slots=True)
class Collection:
    """All that is verified together."""

    ledgers: list[Log]
    heads: Log | None = None
    complete: bool = True
    """Whether every ledger the heads name must be here."""
    damages: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    witness: str = ""
    """Where a coordinator shows: countersignatures must be here then. "": none is known."""
    unsigned_index: bool = False
    """An export: its list of files and entries is nobody's signed word."""
    key_list: bytes = b""
    """The coordinator's newest list of keys, as it is; empty: there is none."""
    listed: Chosen | None = None
    """The same, if the coordinator signed it."""
    lists: str = ""
    """Where that list must be; "": it need not be here."""
    losses: list[Losses] = field(default_factory=list)
    rest: Callable[[], Iterator[Damage | str]] | None = None
    """What can be told only once all ledgers were read: damages, and notes as text."""

    def logs(self) -> list[Log]:
        """Ledgers and heads."""
        return self.ledgers if self.heads is None else [*self.ledgers, self.heads]


@dataclass(frozen=True, slots=True)
class Trust:
    """Public keys the caller trusts for certificates."""

    anyone: KeyRing = field(default_factory=KeyRing)
    """For every node's."""
    nodes: Mapping[str, KeyRing] = field(default_factory=dict)
    """For one node's only."""

    def ring(self, node: str) -> KeyRing:
        """All keys that may sign for `node`."""
        return KeyRing([*self.anyone, *self.nodes.get(node, ())])


def collect(
    directory: Path,
    keys: KeyRing | Trust | None = None,
    *,
    coordinator_keys: KeyRing | None = None,
) -> Collection:
    """What `directory` holds: a state directory, an export or one ledger.

    `keys` (of nodes) and `coordinator_keys`, when given, replace those found in `directory`. Raises
    `InputInvalid` if it holds no evidence at all.
    """
    trust = Trust(keys) if isinstance(keys, KeyRing) else keys
    if copies.is_export(directory):
        found = _export(directory, trust, coordinator_keys)
    elif layout.nodes_directory(directory).is_dir():
        found = _state(directory, trust, coordinator_keys)
    elif segment_paths(directory):
        found = _single(directory, trust)
    else:
        raise InputInvalid(
            f"{directory} holds no evidence",
            remedy="name a state directory, a ledger, or an export of `fleet evidence export`",
        )
    trusting(found, trust, coordinator_keys)
    return found


def trusting(found: Collection, trust: Trust | None, coordinator_keys: KeyRing | None) -> None:
    """Say whose word the keys are; a coordinator whose key is named must have countersigned."""
    if trust is None:
        found.notes.append(OWN_KEYS)
    if coordinator_keys is not None:
        found.witness = found.witness or (found.ledgers[0].place if found.ledgers else "")
    elif found.heads is not None or found.key_list:
        found.notes.append(OWN_COORDINATOR)


def _state(state: Path, trust: Trust | None, coordinator_keys: KeyRing | None) -> Collection:
    names = [str(node) for node in layout.nodes(state)]
    rings = {
        n: KeyRing.owned(layout.node_keys_directory(state, n), layout.NODE_STEM) for n in names
    }
    found = Collection([])
    bound = bind(rings, trust, found)
    for node in names:
        directory = layout.ledger_directory(state, node)
        if directory.is_dir():
            found.ledgers.append(Log(directory, bound.rings[node], node, owners=bound.owners))
        _take_losses(found, layout.losses_directory(state, node), bound, node)
    if layout.coordinator_directory(state).is_dir():
        found.witness = str(layout.heads_directory(state))
    given = coordinator_keys
    if given is None:
        owned = KeyRing.owned(layout.coordinator_keys_directory(state), layout.COORDINATOR_STEM)
        given = _noted(owned, found.notes)
    if segment_paths(layout.heads_directory(state)):
        found.heads = Log(layout.heads_directory(state), given)
    found.lists = str(layout.key_list(state))
    take_list(found, layout.key_list(state), given)
    return found


def _take_losses(found: Collection, directory: Path, bound: Bound, node: str) -> None:
    if directory.is_dir():
        log = Log(directory, bound.rings[node], node, owners=bound.owners)
        found.losses.append(Losses(log, partial(losses.contents, directory)))


def take_list(found: Collection, path: Path, ring: KeyRing) -> None:
    """Take the list of keys at `path`, if there is one."""
    if os.path.lexists(path):
        take_lists(found, [Kept(_content(path), Place(str(path)))], ring)


def take_lists(found: Collection, lists: list[Kept], ring: KeyRing) -> None:
    """Have all ledgers judged by the newest list of keys; one that is not good is a damage."""
    found.listed = chosen = key_list.newest(lists, ring, found.damages)
    found.key_list = chosen.content if chosen is not None else lists[-1].content
    listed: KeyList | None = chosen.listed if chosen is not None else None
    for log in found.ledgers:
        log.listed = listed


def _content(path: Path) -> bytes:
    try:
        return read_regular(path, most_bytes=key_list.MOST_BYTES)
    except OSError:
        return b""  # told as a list that cannot be read


def _single(directory: Path, trust: Trust | None) -> Collection:
    """One ledger; in its place its node's keys are found beside it, elsewhere those with it."""
    node, found = _first_node(directory), Collection([], complete=False)
    if trust is not None:
        ring, owners = trust.ring(node), _owners(trust.nodes)
    else:
        ring, owners = KeyRing.owned(directory.parent / "keys", layout.NODE_STEM), {}
        if len(ring) or ring.unreadable:
            _noted(ring, found.notes)
        else:
            ring = KeyRing.load(directory)
    found.ledgers.append(Log(directory, ring, node, owners=owners))
    return found


def heads_log(directory: Path, keys: KeyRing | None = None) -> Log:
    """Countersignatures in `directory`; without `keys` those beside it are used."""
    if not segment_paths(directory):
        raise _no_heads(directory)
    beside = directory.parent / "keys"
    return Log(directory, keys or KeyRing.owned(beside, layout.COORDINATOR_STEM))


def _no_heads(directory: Path) -> InputInvalid:
    return InputInvalid(
        f"{directory} holds no countersignatures",
        remedy="name an export, a state directory, or its directory `coordinator/heads`",
    )


def take_heads(found: Collection, directory: Path, keys: KeyRing | None) -> None:
    """Verify against the countersignatures in `directory`, and the list of keys beside them.

    `directory` holds them (``coordinator/heads``), or is a state directory or an export: what one
    copy countersigns must be in every later one.
    """
    if copies.is_export(directory):
        other = _export(directory, None, keys)
        found.damages += other.damages
        if other.heads is None:
            raise _no_heads(directory)
        found.heads, lists = other.heads, directory / copies.KEY_LIST
    else:
        if layout.nodes_directory(directory).is_dir():
            directory = layout.heads_directory(directory)
        found.heads = heads_log(directory, keys)
        lists = layout.key_list(directory.parent.parent)
    if not found.key_list and (copies.is_export(directory) or lists.parent == directory.parent):
        take_list(found, lists, found.heads.keys)
    if keys is None and OWN_COORDINATOR not in found.notes:
        found.notes.append(OWN_COORDINATOR)


def _first_node(directory: Path) -> str:
    """Node the first readable certificate names."""
    for found in Reader(directory, lenient=True).poll():
        if isinstance(found, Entry) and found.envelope is not None:
            try:
                return parsed.read(found.envelope).node
            except EvidenceInvalid:
                continue
    return ""


# --- whose a key is -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bound:
    """Keys by node, and whose each key is."""

    rings: Mapping[str, KeyRing]
    owners: Mapping[str, str]


def bind(rings: Mapping[str, KeyRing], trust: Trust | None, found: Collection) -> Bound:
    """Each node's keys. A key that several nodes have is the one's whose present key it is."""
    if trust is not None:
        return Bound({node: trust.ring(node) for node in rings}, _owners(trust.nodes))
    claims: dict[str, list[str]] = {}
    for node, ring in sorted(rings.items()):
        _noted(ring, found.notes)
        for key in ring:
            claims.setdefault(key.key_id, []).append(node)
    owners = {}
    for key_id, nodes in claims.items():
        present = [node for node in nodes if rings[node].current == key_id]
        if len(nodes) == 1 or len(present) == 1:
            owners[key_id] = (present or nodes)[0]
        else:
            owners[key_id] = f"{' and '.join(nodes)} alike"
            detail = f"key {key_id[:SHORT_ID]} is kept by {', '.join(nodes)}: it proves no node"
            found.damages.append(Damage("shared-key", detail, Place("keys")))
    mine = {
        node: ring.only(key.key_id for key in ring if owners[key.key_id] == node)
        for node, ring in rings.items()
    }
    return Bound(mine, owners)


def _owners(rings: Mapping[str, KeyRing]) -> dict[str, str]:
    return {key.key_id: node for node, ring in sorted(rings.items()) for key in ring}


def _noted(ring: KeyRing, notes: list[str]) -> KeyRing:
    notes += [
        f"{shown(path)}: is none of the keys kept there; it was not used" for path in ring.strays
    ]
    return ring


# --- exports --------------------------------------------------------------------------------------


def _export(directory: Path, trust: Trust | None, coordinator_keys: KeyRing | None) -> Collection:
    found = Collection([], unsigned_index=True)
    index = copies.read(directory, found.damages)
    if index is None:
        return found
    found.complete = index["complete"]
    listed = index["keys"]
    rings = {
        node: _listed(copies.node_keys(directory, node), listed["nodes"].get(node, []), found)
        for node in sorted({rows["node"] for rows in index["nodes"].values()} | {*listed["nodes"]})
    }
    bound = bind(rings, trust, found)
    for _, rows in sorted(index["nodes"].items()):
        node = rows["node"]
        log = Log(directory, bound.rings[node], node, rows["entries"], owners=bound.owners)
        log.part = rows["ledger"]
        found.ledgers.append(log)
    for node in rings:
        _take_losses(found, copies.losses(directory, node), bound, node)
    ring = _listed(directory / copies.COORDINATOR_KEYS, listed["coordinator"], found)
    given = ring if coordinator_keys is None else coordinator_keys
    if index["heads"]["entries"]:
        found.heads = Log(directory, given, rows=index["heads"]["entries"])
    found.lists = str(directory / copies.KEY_LIST)
    if copies.KEY_LIST in index["files"]:
        take_list(found, directory / copies.KEY_LIST, given)
    if listed["coordinator"] or index["counts"]["countersignatures"]:
        found.witness = str(directory / "heads")
    return found


def _listed(directory: Path, key_ids: list[str], found: Collection) -> KeyRing:
    """Keys in `directory` that the index names as its owner's."""
    ring = KeyRing.load(directory)
    for key in ring:
        if key.key_id not in key_ids:
            short = key.key_id[:SHORT_ID]
            found.notes.append(f"{directory}: the index does not name key {short}; it was not used")
    return ring.only(key_ids)


def _scan_rows(log: Log, rows: list[Any], sequence: Sequence) -> Iterator[Entry | Damage]:
    chain = sequence.chain
    for number, (digest, file) in enumerate(rows, start=1):
        chain = next_chain(chain, Digest(digest))
        place = Place(str(log.directory / (file or copies.INDEX)), entry=number)
        envelope = None
        if file is not None:
            try:
                envelope = read_regular(log.directory / file, most_bytes=copies.MOST_ENVELOPE_BYTES)
            except OSError as error:
                yield Damage("missing-file", f"cannot be read: {error.strerror}", place)
            if envelope is not None and dsse.digest_of(envelope) != digest:
                yield Damage("altered-entry", "its bytes do not match the index", place)
        yield from sequence.judge(Entry(number, Digest(digest), chain, envelope, place))
