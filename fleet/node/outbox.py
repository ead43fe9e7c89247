"""What a node owes to others and has promised in its journal: leases to give back (D6).

A row is written in the transaction that buries a claim and goes once its act was carried out. All
acts are harmless when repeated. Our marks on a claim at the API are taken off by whoever may write
there, after the lease has been given back: those rows are shown and wait to be paid.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fleet.core import errors, leases, unit_states
from fleet.core.leases import Closure
from fleet.core.messages import Owed
from fleet.core.model import ClaimUid, Holder, Lease, Token
from fleet.node.journal.journal import OutboxRow
from fleet.node.ports import Leases
from fleet.node.registry import Registry
from fleet.stores.base import Release

RELEASE = "release"
"""Kind of a row: the lease of a claim is to be given back."""
LET_GO = "let-go"
"""Kind of a row: hold and finalizer are to be taken off a claim at the API."""
BACKOFF_MAX_S = 60.0
"""Longest pause between two tries of a remote act."""


@dataclass
class Outbox:
    """Carries out what is queued in the journal; safe for threads."""

    registry: Registry
    store: Leases
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def drain(self, now: float) -> None:
        """Do what is due at `now` (seconds since the epoch); what fails is tried again later."""
        if not self._turn.acquire(blocking=False):
            return  # somebody is at it
        try:
            self._drain(now)
        finally:
            self._turn.release()

    def _drain(self, now: float) -> None:
        for row in self.registry.journal.outbox():
            if row.kind != RELEASE or 0 < row.next_at - now <= BACKOFF_MAX_S:
                continue
            try:
                self._release(row.body)
            except errors.FleetError as error:
                later = now + min(BACKOFF_MAX_S, 2.0 ** min(row.attempts, 10))
                with self.registry.commit() as commit:
                    commit.postpone(row.sequence, later)
                if isinstance(error, errors.StoreUnavailable):
                    return  # waiting for it once per step is enough
                continue
            with self.registry.commit() as commit:
                commit.sent(row.sequence)

    def owe(self, owed: Owed) -> None:
        """Marks are to be taken off a claim whose burial, if there is one, does not owe them: it
        was held before its prepare was refused, or the answer to the hold was lost.

        Durable once this returns. Nothing where it is owed already.
        """
        if not any(row.body["uid"] == owed.uid for row in self._let_go()):
            with self.registry.commit() as commit:
                commit.enqueue(LET_GO, owed.model_dump(mode="json"), self.registry.clock.now())

    def paid(self, uids: Collection[str]) -> None:
        """These claims were let go at the API; what is not owed is left alone, and so is a claim
        that has a record again: its marks are those of another use.
        """
        claims = self.registry.journal.claims
        rows = [row for row in self._let_go() if row.body["uid"] in uids]
        mine = [row.sequence for row in rows if ClaimUid(row.body["uid"]) not in claims]
        if mine:
            with self.registry.commit() as commit:
                for sequence in mine:
                    commit.sent(sequence)

    def _let_go(self) -> list[OutboxRow]:
        return [row for row in self.registry.journal.outbox() if row.kind == LET_GO]

    def _release(self, body: Mapping[str, str]) -> None:
        holder = Holder.parse(body["holder"])
        if body["token"]:
            self._give_back(holder, Token.parse(body["token"]))
            return
        for lease in self.store.held_by([holder]):
            if self._close(lease):
                self._give_back(holder, lease.token)

    def _close(self, lease: Lease) -> bool:
        """A lease the record never learned of, for a crash came between: refused from now on.

        False when its claim has a record of these units again: its own teardown gives the lease
        back. A record of other devices never would. False too for a lease of another node's units:
        a named claim may be served there by now. Raises `EpochForeign` for a token of a store that
        this node does not follow yet: it waits.
        """
        mine = lease.units & self.registry.journal.units.keys()
        with self.registry.commit() as commit:
            claim = commit.claim(ClaimUid(lease.holder.name))
            if not mine or (claim is not None and mine.intersection(claim.units)):
                return False
            behind = leases.is_behind(lease.token, self.registry.journal.epoch)
            for unit_id in () if behind else mine:
                commit.put_unit(unit_states.close_floor(commit.unit(unit_id), lease.token))
        return True

    def _give_back(self, holder: Holder, token: Token) -> None:
        closure = Closure(holder, token, self.registry.place.node, leases.ClosedBy.TEARDOWN)
        (released,) = self.store.release([Release(holder, token, closure)])
        if isinstance(released, errors.FleetError):
            raise released


def shown(registry: Registry) -> tuple[int, tuple[Owed, ...]]:
    """Leases still to be given back, and the claims to be let go whose lease has been.

    A claim that has a record again is in use under the same marks: its next burial owes them.
    """
    rows = registry.journal.outbox()
    releases = [row for row in rows if row.kind == RELEASE]
    leased = {row.body["holder"] for row in releases}
    owed = {
        row.body["uid"]: _owed(row)
        for row in rows
        if row.kind == LET_GO
        and f"claim:{row.body['uid']}" not in leased
        and ClaimUid(row.body["uid"]) not in registry.journal.claims
    }
    return len(releases), tuple(owed.values())


def _owed(row: OutboxRow) -> Owed:
    body = row.body
    return Owed(
        uid=body["uid"],
        namespace=body["namespace"],
        name=body["name"],
        devices=tuple(body.get("devices", ())),
    )
