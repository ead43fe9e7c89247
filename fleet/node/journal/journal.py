"""The node's durable truth: units, claims, workers, operations, outbox; one transaction a commit.

Reads are served from memory, which changes only after a commit has returned. `Journal.commit`
is the only way to write; what it yields collects the changes of one transaction.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.core import errors, sqlite
from fleet.core.claim_states import Claim
from fleet.core.model import COUNT_MAX, ClaimUid, OperationId, Token, Unit, UnitId, Uuid
from fleet.node.journal import records, schema


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker that may write to memory: enough to find it after a restart."""

    worker_id: str
    accelerator: Uuid
    units: tuple[UnitId, ...]
    identity: Mapping[str, Any]
    at: float


@dataclass(frozen=True, slots=True)
class OperationRow:
    """An order and, once finished, its recorded answer (case B43)."""

    id: OperationId
    kind: str
    target: str
    request: Mapping[str, Any]
    result: Mapping[str, Any] | None
    created_at: float


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A remote act still to be done: token-conditional or append-only, so safe to repeat."""

    sequence: int
    kind: str
    body: Mapping[str, Any]
    attempts: int
    next_at: float


@dataclass(frozen=True, slots=True)
class Damage:
    """A row that is not as it was written. It says nothing any more, and its neighbours all."""

    table: str
    key: sqlite.Value
    """What the row has as its key, which may be damaged too."""
    why: str
    name: str = ""
    """What the row was for, as far as that can be told."""


class Commit:
    """The changes of one transaction. Valid only inside `Journal.commit`."""

    def __init__(self, database: sqlite.Database, journal: Journal) -> None:
        self._database = database
        self._journal = journal
        self.units: dict[UnitId, Unit] = {}
        self.claims: dict[ClaimUid, Claim | None] = {}
        self.meta: dict[str, str] = {}

    def unit(self, unit_id: UnitId) -> Unit:
        """The unit as this transaction sees it. Raises KeyError."""
        return self.units.get(unit_id) or self._journal.units[unit_id]

    def claim(self, uid: ClaimUid) -> Claim | None:
        """The claim as this transaction sees it."""
        return self.claims[uid] if uid in self.claims else self._journal.claims.get(uid)

    def kept(self, key: str) -> str | None:
        """A word kept under `set_meta`, as this transaction sees it."""
        return self.meta.get(key, self._journal.meta.get(key))

    def put_unit(self, unit: Unit) -> None:
        """Store a unit."""
        self._put("units", "id", unit.id, records.unit_fields(unit))
        self.units[unit.id] = unit

    def put_claim(self, claim: Claim) -> None:
        """Store a claim record."""
        self._put("claims", "uid", claim.uid, records.claim_fields(claim))
        self.claims[claim.uid] = claim

    def _put(self, table: str, key: str, name: str, fields: Mapping[str, Any]) -> None:
        rows = self._database.query(f"SELECT body, digest FROM {table} WHERE {key} = ?", (name,))  # noqa: S608 - names are literals of this class
        known = [row["body"] for row in rows if records.is_whole(row["body"], row["digest"])]
        text = records.merged(fields, known[0] if known else None)
        self._database.execute(
            f"INSERT OR REPLACE INTO {table} ({key}, body, digest) VALUES (?, ?, ?)",  # noqa: S608 - names are literals of this class
            (name, text, records.digest(text)),
        )

    def drop(self, damage: Damage) -> None:
        """Take a damaged row out of its table."""
        key = schema.KEYS[damage.table]
        self._database.execute(f"DELETE FROM {damage.table} WHERE {key} = ?", (damage.key,))  # noqa: S608 - our own names

    def bury_claim(self, uid: ClaimUid, token: Token, now: float) -> None:
        """Turn a claim record into a tombstone; the oldest beyond the bound go."""
        self._database.execute("DELETE FROM claims WHERE uid = ?", (uid,))
        self._database.execute(
            "INSERT OR REPLACE INTO tombstones (uid, token, at) VALUES (?, ?, ?)",
            (uid, str(token), now),
        )
        self._database.execute(
            "DELETE FROM tombstones WHERE uid NOT IN"
            " (SELECT uid FROM tombstones ORDER BY at DESC LIMIT ?)",
            (schema.TOMBSTONES_MAX,),
        )
        self.claims[uid] = None

    def put_worker(self, row: WorkerRow) -> None:
        """Record a worker before it may write."""
        self._database.execute(
            "INSERT OR REPLACE INTO workers VALUES (?, ?, ?, ?, ?)",
            (
                row.worker_id,
                row.accelerator,
                json.dumps(list(row.units)),
                json.dumps(dict(row.identity)),
                row.at,
            ),
        )

    def drop_worker(self, worker_id: str) -> None:
        """Forget a worker that is proven gone."""
        self._database.execute("DELETE FROM workers WHERE worker_id = ?", (worker_id,))

    def put_operation(self, row: OperationRow) -> None:
        """Record an order. An operation already known is left as it is."""
        self._database.execute(
            "INSERT OR IGNORE INTO operations (id, kind, target, request, created_at)"
            " VALUES (?, ?, ?, ?, ?)",
            (row.id, row.kind, row.target, json.dumps(dict(row.request)), row.created_at),
        )

    def finish_operation(self, op: OperationId, result: Mapping[str, Any], now: float) -> None:
        """Record the answer of an operation, once; the oldest answers beyond the bound go."""
        self._database.execute(
            "UPDATE operations SET result = ?, finished_at = ? WHERE id = ? AND result IS NULL",
            (json.dumps(dict(result)), now, op),
        )
        self._database.execute(
            "DELETE FROM operations WHERE finished_at IS NOT NULL AND id NOT IN"
            " (SELECT id FROM operations WHERE finished_at IS NOT NULL"
            "  ORDER BY finished_at DESC LIMIT ?)",
            (schema.OPERATIONS_MAX,),
        )

    def enqueue(self, kind: str, body: Mapping[str, Any], now: float) -> None:
        """Queue a remote act."""
        self._database.execute(
            "INSERT INTO outbox (kind, body, created_at) VALUES (?, ?, ?)",
            (kind, json.dumps(dict(body)), now),
        )

    def sent(self, sequence: int) -> None:
        """A remote act is done."""
        self._database.execute("DELETE FROM outbox WHERE sequence = ?", (sequence,))

    def postpone(self, sequence: int, next_at: float) -> None:
        """A remote act failed; try again at `next_at`."""
        self._database.execute(
            "UPDATE outbox SET attempts = attempts + 1, next_at = ? WHERE sequence = ?",
            (next_at, sequence),
        )

    def record_act(self, act: str, target: str, *, operator: str, detail: str, now: float) -> None:
        """Record what a person decided."""
        self._database.execute(
            "INSERT INTO acts (at, operator, act, target, detail) VALUES (?, ?, ?, ?, ?)",
            (now, operator, act, target, detail),
        )

    def set_meta(self, key: str, value: str) -> None:
        """Store one value of the journal itself."""
        self._database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
        self.meta[key] = value


class Journal:
    """An open journal. `units`, `claims` and `meta` mirror the last commit; do not change them."""

    def __init__(self, database: sqlite.Database) -> None:
        self._database = database
        self._mutex = threading.RLock()
        self.path: Path = database.path
        self.meta: dict[str, str] = {}
        self.units: dict[UnitId, Unit] = {}
        self.claims: dict[ClaimUid, Claim] = {}
        self.damage: tuple[Damage, ...] = ()
        """Rows that say nothing any more, as found at the opening; `fleet.node.journal.repair`."""
        try:
            self._load()
            self._read_rest()
        except errors.MALFORMED as error:
            raise sqlite.Corrupt(f"a record of {self.path} cannot be read: {error!r}") from error
        except sqlite.StatementFailed as error:
            raise sqlite.Corrupt(f"a table is not as we made it: {error.detail}") from error

    def _load(self) -> None:
        for row in self._database.query("SELECT * FROM meta"):
            self.meta[_text(row["key"])] = _text(row["value"])
        for row in self._database.query("SELECT * FROM units"):
            with self._each("units", row["id"]):
                found = records.checked(row["body"], row["digest"], where=f"unit {row['id']!r}")
                unit = records.unit_from(found)
                self._require_key(row["id"], unit.id)
                self.units[unit.id] = unit
        for row in self._database.query("SELECT * FROM claims"):
            with self._each("claims", row["uid"]):
                found = records.checked(row["body"], row["digest"], where=f"claim {row['uid']!r}")
                claim = records.claim_from(found)
                self._require_key(row["uid"], claim.uid)
                self.claims[claim.uid] = claim

    @contextmanager
    def _each(self, table: str, key: sqlite.Value) -> Iterator[None]:
        """One row: what is wrong with it is said of it alone."""
        try:
            yield
        except sqlite.Corrupt as error:
            named = str(error.fields.get("name", key if isinstance(key, str) else ""))
            self.damage += (Damage(table, key, error.detail, named),)
        except errors.MALFORMED as error:
            why = f"the row {key!r} of {table} cannot be read: {error!r}"
            self.damage += (Damage(table, key, why, key if isinstance(key, str) else ""),)

    def _require_key(self, key: object, name: str) -> None:
        """A record under another name than its own would be lost under that."""
        if key != name:
            raise sqlite.Corrupt(f"{self.path} has the record of {name} under {key!r}", name=name)

    def _read_rest(self) -> None:
        """Everything else once, so that what cannot be read is found now and not in mid-work."""
        for table, columns in schema.COLUMNS.items():
            self._database.query(f"SELECT {columns} FROM {table} LIMIT 0")  # noqa: S608 - our own names
        for number in (self.sequence, self.epoch):
            if not 0 <= number <= COUNT_MAX:
                raise ValueError(f"{number} is no count")
        self.workers()  # without one of these it is not known who may write to memory
        self.acts()
        # An order that is given again, a release that a reconcile finds: each is lost by itself.
        for row in self._database.query("SELECT * FROM outbox"):
            with self._each("outbox", row["sequence"]):
                _outbox(row)
        for row in self._database.query("SELECT * FROM operations"):
            with self._each("operations", row["id"]):
                _operation(row)
        for row in self._database.query("SELECT uid, token FROM tombstones"):
            with self._each("tombstones", row["uid"]):
                Token.parse(row["token"])

    @contextmanager
    def commit(self) -> Iterator[Commit]:
        """One transaction. An exception inside undoes it; memory follows only a commit."""
        with self._mutex:
            with self._database.transaction():
                changes = Commit(self._database, self)
                yield changes
                changes.set_meta("sequence", str(self.sequence + 1))
            self.units.update(changes.units)
            self.meta.update(changes.meta)
            # A new mapping each time: who is reading goes through the old one undisturbed.
            merged = {**self.claims, **changes.claims}
            self.claims = {uid: claim for uid, claim in merged.items() if claim is not None}

    @property
    def sequence(self) -> int:
        """Number of the last commit."""
        return int(self.meta.get("sequence", "0"))

    @property
    def id(self) -> str:
        """Identity of this journal; a new file has a new one."""
        return str(self.meta.get("journal_id", ""))

    @property
    def epoch(self) -> int:
        """Epoch of the store this node follows; 0 before it has adopted one."""
        return int(self.meta.get("epoch", "0"))

    def workers(self) -> list[WorkerRow]:
        """Workers not yet proven gone."""
        return [
            WorkerRow(
                _text(row["worker_id"]),
                Uuid(_text(row["accelerator"])),
                tuple(UnitId(str(unit)) for unit in _listed(row["units"])),
                _object(row["identity"]),
                _number(row["at"]),
            )
            for row in self._database.query("SELECT * FROM workers ORDER BY at")
        ]

    def operation(self, op: OperationId) -> OperationRow | None:
        """An operation by id."""
        rows = self._database.query("SELECT * FROM operations WHERE id = ?", (op,))
        return _operation(rows[0]) if rows else None

    def unfinished(self) -> list[OperationRow]:
        """Operations without an answer."""
        rows = self._database.query("SELECT * FROM operations WHERE result IS NULL")
        return [_operation(row) for row in rows]

    def outbox(self) -> list[OutboxRow]:
        """Remote acts still to be done, oldest first."""
        return [
            _outbox(row) for row in self._database.query("SELECT * FROM outbox ORDER BY sequence")
        ]

    def tombstone(self, uid: ClaimUid) -> Token | None:
        """The token a claim ended with, if it is remembered."""
        rows = self._database.query("SELECT token FROM tombstones WHERE uid = ?", (uid,))
        return Token.parse(rows[0]["token"]) if rows else None

    def acts(self) -> Sequence[Mapping[str, Any]]:
        """What people decided, oldest first."""
        rows = self._database.query("SELECT * FROM acts ORDER BY sequence")
        return [dict(zip(row.keys(), tuple(row), strict=True)) for row in rows]

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def _outbox(row: sqlite.Row) -> OutboxRow:
    return OutboxRow(
        _whole(row["sequence"]),
        _text(row["kind"]),
        _object(row["body"]),
        _whole(row["attempts"]),
        _number(row["next_at"]),
    )


def _operation(row: sqlite.Row) -> OperationRow:
    return OperationRow(
        OperationId(_text(row["id"])),
        _text(row["kind"]),
        _text(row["target"]),
        _object(row["request"]),
        None if row["result"] is None else _object(row["result"]),
        _number(row["created_at"]),
    )


def _object(text: str) -> dict[str, Any]:
    found = json.loads(_text(text))
    if not isinstance(found, dict):
        raise TypeError(f"{text[:60]!r} is no object")
    return found


def _listed(text: str) -> list[Any]:
    found = json.loads(_text(text))
    if not isinstance(found, list):
        raise TypeError(f"{text[:60]!r} is no list")
    return found


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is no text")
    return value


def _number(value: object) -> float:
    if not isinstance(value, int | float) or not abs(value) < records.TIME_MAX_S:
        raise TypeError(f"{value!r:.60} is no number")
    return float(value)


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r:.60} is no count")
    return value
