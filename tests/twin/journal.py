"""A node's journal in memory, with the face of `fleet.node.journal`: it dies and fills at any
commit.

Transactions are those of the product's code, which works on this journal as on the one in SQLite.
What is not modelled: a torn page. SQLite's own promise, that a commit is whole or not at all, is
tested on real files by `tests.chaos`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.core import sqlite
from fleet.core.claim_states import Claim
from fleet.core.model import ClaimUid, OperationId, Reason, Token, Unit, UnitId
from fleet.node.journal import witness
from fleet.node.journal.journal import OperationRow, OutboxRow, WorkerRow

BEFORE, AFTER, FULL = "kill-before-commit", "kill-after-commit", "disk-full"


class Died(BaseException):
    """kill -9 of the service, in the middle of what it did. Nobody inside it can catch this."""


class Commit:
    """The changes of one transaction."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.units: dict[UnitId, Unit] = {}
        self.claims: dict[ClaimUid, Claim | None] = {}
        self.meta: dict[str, str] = {}
        self.later: list[Callable[[], object]] = []
        """Changes of everything else, made once the transaction is through."""

    def unit(self, unit_id: UnitId) -> Unit:
        """The unit as this transaction sees it."""
        return self.units.get(unit_id) or self._journal.units[unit_id]

    def claim(self, uid: ClaimUid) -> Claim | None:
        """The claim as this transaction sees it."""
        return self.claims[uid] if uid in self.claims else self._journal.claims.get(uid)

    def kept(self, key: str) -> str | None:
        """A word kept under `set_meta`."""
        return self.meta.get(key, self._journal.meta.get(key))

    def put_unit(self, unit: Unit) -> None:
        """Store a unit."""
        self.units[unit.id] = unit

    def put_claim(self, claim: Claim) -> None:
        """Store a claim record."""
        self.claims[claim.uid] = claim

    def bury_claim(self, uid: ClaimUid, token: Token, now: float) -> None:  # noqa: ARG002 - none is forgotten here
        """Record to tombstone."""
        self.claims[uid] = None
        self.later.append(lambda: self._journal.tombstones.__setitem__(uid, token))

    def put_worker(self, row: WorkerRow) -> None:
        """Record a worker before it may write."""
        self.later.append(lambda: self._journal.rows.__setitem__(row.worker_id, row))

    def drop_worker(self, worker_id: str) -> None:
        """Forget a worker that is proven gone."""
        self.later.append(lambda: self._journal.rows.pop(worker_id, None))

    def put_operation(self, row: OperationRow) -> None:
        """Record an order; one already known is left as it is."""
        self.later.append(lambda: self._journal.operations.setdefault(row.id, row))

    def finish_operation(self, op: OperationId, result: Mapping[str, Any], now: float) -> None:  # noqa: ARG002 - none is forgotten here
        """Record the answer of an operation, once."""
        known = self._journal.operations.get(op)
        if known is not None and known.result is None:
            done = replace(known, result=result)
            self.later.append(lambda: self._journal.operations.__setitem__(op, done))

    def enqueue(self, kind: str, body: Mapping[str, Any], now: float) -> None:  # noqa: ARG002 - undated
        """Queue a remote act."""
        self.later.append(lambda: self._journal.queue(kind, body))

    def sent(self, sequence: int) -> None:
        """A remote act is done."""
        self.later.append(lambda: self._journal.queued.pop(sequence, None))

    def postpone(self, sequence: int, next_at: float) -> None:
        """A remote act failed."""
        row = self._journal.queued[sequence]
        tried = replace(row, attempts=row.attempts + 1, next_at=next_at)
        self.later.append(lambda: self._journal.queued.__setitem__(sequence, tried))

    def record_act(self, *args: str, **facts: object) -> None:
        """What a person decided; nobody reads it here."""

    def set_meta(self, key: str, value: str) -> None:
        """Store one value of the journal itself."""
        self.meta[key] = value


def _well() -> str:
    return ""


@dataclass
class Journal:
    """`strike`: asked at each commit; names what befalls it, or "" for nothing."""

    id: str
    units: dict[UnitId, Unit] = field(default_factory=dict)
    claims: dict[ClaimUid, Claim] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)
    tombstones: dict[ClaimUid, Token] = field(default_factory=dict)
    operations: dict[OperationId, OperationRow] = field(default_factory=dict)
    queued: dict[int, OutboxRow] = field(default_factory=dict)
    rows: dict[str, WorkerRow] = field(default_factory=dict)
    sequence: int = 0
    strike: Callable[[], str] = _well
    _numbers: int = 0

    @contextmanager
    def commit(self) -> Iterator[Commit]:
        """One transaction. An exception inside undoes it."""
        changes = Commit(self)
        yield changes
        befalls = self.strike()
        if befalls == FULL:
            raise sqlite.Full("no space left on device", path=self.id)
        if befalls == BEFORE:
            raise Died
        self.sequence += 1
        self.units.update(changes.units)
        self.meta.update(changes.meta)
        merged = {**self.claims, **changes.claims}
        self.claims = {uid: claim for uid, claim in merged.items() if claim is not None}
        for change in changes.later:
            change()
        if befalls == AFTER:
            raise Died

    def queue(self, kind: str, body: Mapping[str, Any]) -> None:
        """One more remote act."""
        self._numbers += 1
        self.queued[self._numbers] = OutboxRow(self._numbers, kind, body, 0, 0.0)

    @property
    def epoch(self) -> int:
        """Epoch of the store this node follows; 0 before it has adopted one."""
        return int(self.meta.get("epoch", "0"))

    def workers(self) -> list[WorkerRow]:
        """Workers not yet proven gone."""
        return list(self.rows.values())

    def operation(self, op: OperationId) -> OperationRow | None:
        """An operation by id."""
        return self.operations.get(op)

    def unfinished(self) -> list[OperationRow]:
        """Operations without an answer."""
        return [row for row in self.operations.values() if row.result is None]

    def outbox(self) -> list[OutboxRow]:
        """Remote acts still to be done, oldest first."""
        return list(self.queued.values())

    def tombstone(self, uid: ClaimUid) -> Token | None:
        """The token a claim ended with."""
        return self.tombstones.get(uid)

    def copy(self) -> Journal:
        """As a backup has it: units and claims are never changed in place."""
        return replace(
            self,
            units=dict(self.units),
            claims=dict(self.claims),
            meta=dict(self.meta),
            tombstones=dict(self.tombstones),
            operations=dict(self.operations),
            queued=dict(self.queued),
            rows=dict(self.rows),
            strike=_well,
        )


@dataclass
class Kept:
    """What of a service outlives it: the journal's file, the copy of reasons, the witness."""

    node: str
    journal: Journal | None = None
    """None: lost, or so damaged that it is set aside."""
    reasons: dict[UnitId, frozenset[Reason]] = field(default_factory=dict)
    witness: witness.Witness | None = None
    backup: Journal | None = None
    made: int = 0

    def open(self) -> Journal:
        """The journal as `fleet.node.journal.startup` would have it: a contradicted one is set
        aside.
        """
        found, seen = self.journal, self.witness
        if found is not None and seen is not None:
            why = witness.contradicts(
                seen, journal_id=found.id, sequence=found.sequence, machine_id=self.node
            )
            found = None if why else found
        if found is None:
            self.made += 1
            found = Journal(f"journal-{self.node}-{self.made}")
            found.meta["journal_id"] = found.id
        self.journal = found
        return found
