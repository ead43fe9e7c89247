"""What a node owes to others and has promised in its journal: leases to give back (D6).

A row is written in the transaction that buries a claim and goes once its act was carried out. All
acts are harmless when repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet import errors, leases, lifecycle
from fleet.leases import Closure
from fleet.model import ClaimUid, Holder, Lease, Token
from fleet.node.ports import Leases
from fleet.node.registry import Registry
from fleet.stores.base import Release

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
            if 0 < row.next_at - now <= BACKOFF_MAX_S:
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

    def _release(self, body: Mapping[str, str]) -> None:
        holder = Holder.parse(body["holder"])
        if body["token"]:
            self._give_back(holder, Token.parse(body["token"]))
            return
        for lease in self.store.leases():
            if lease.holder == holder and self._close(lease):
                self._give_back(holder, lease.token)

    def _close(self, lease: Lease) -> bool:
        """A lease the record never learned of, for a crash came between: refused from now on.

        False when its claim has a record of these units again: its own teardown gives the lease
        back. A record of other devices never would. False too for a lease of another node's units:
        a named claim may be served there by now.
        """
        mine = lease.units & self.registry.journal.units.keys()
        with self.registry.commit() as commit:
            claim = commit.claim(ClaimUid(lease.holder.name))
            if not mine or (claim is not None and mine.intersection(claim.units)):
                return False
            for unit_id in mine:
                commit.put_unit(lifecycle.close_floor(commit.unit(unit_id), lease.token))
        return True

    def _give_back(self, holder: Holder, token: Token) -> None:
        closure = Closure(holder, token, self.registry.place.node, leases.ClosedBy.TEARDOWN)
        (released,) = self.store.release([Release(holder, token, closure)])
        if isinstance(released, errors.FleetError):
            raise released
