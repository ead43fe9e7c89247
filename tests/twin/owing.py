"""What a node of the twin owes: leases to give back, then claims to be let go at the API."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fleet import errors, lifecycle
from fleet.clock import Clock
from fleet.leases import ClosedBy, Closure
from fleet.messages import Owed
from fleet.model import ClaimUid, Holder, NodeName
from fleet.stores.base import LeaseStore, Release
from tests.twin.journal import Journal, Row
from tests.twin.wiping import Wiping


@dataclass
class Owing:
    """The outbox of one node."""

    node: str
    clock: Clock
    journal: Journal
    wiping: Wiping
    store: LeaseStore

    def shown(self) -> tuple[int, tuple[Owed, ...]]:
        """Leases to be given back, and claims to be let go whose lease has been."""
        left = [row for row in self.journal.outbox if not row.released]
        leased = {row.holder for row in left}
        owed = {
            row.owed.uid: row.owed
            for row in self.journal.outbox
            if row.owed is not None
            and row.holder not in leased
            and ClaimUid(row.owed.uid) not in self.journal.claims
        }
        return len(left), tuple(owed.values())

    def paid(self, uids: Collection[str]) -> None:
        """These were let go."""
        for row in self.journal.outbox:
            if row.owed is not None and row.owed.uid in uids:
                row.owed = None
        self._sweep()

    def _sweep(self) -> None:
        self.journal.outbox = [r for r in self.journal.outbox if not r.released or r.owed]
        self.wiping.changed()

    def drain(self) -> bool:
        """Give leases back; whether something is left."""
        now = self.clock.now()
        for row in self.journal.outbox:
            if not row.released and now >= row.next_at:
                try:
                    self._release(row)
                except errors.FleetError:
                    row.attempts += 1
                    row.next_at = now + min(60.0, 2.0**row.attempts)
        self._sweep()
        return any(not row.released for row in self.journal.outbox)

    def _release(self, row: Row) -> None:
        holder = Holder.parse(row.holder)
        mine = [
            lease
            for lease in self.store.leases(holder)
            if (not row.token and lease.units & self.journal.units.keys())
            or str(lease.token) == row.token
        ]
        for lease in mine:
            claim = self.journal.claims.get(ClaimUid(holder.name))
            if not row.token and claim is not None and lease.units & set(claim.units):
                continue
            for unit_id in lease.units & self.journal.units.keys():
                unit = self.journal.units[unit_id]
                self.journal.units[unit_id] = lifecycle.close_floor(unit, lease.token)
            closure = Closure(holder, lease.token, NodeName(self.node), ClosedBy.TEARDOWN)
            (released,) = self.store.release([Release(holder, lease.token, closure)])
            if isinstance(released, errors.FleetError):
                raise released
        row.released = True
        self.wiping.changed()
