"""A node that was declared lost (`fleet node forget`, or its Node object gone for long) comes back.

Meanwhile the leases of its claims were given back without its word, so its journal is not the
holder of record any more. Whether it was restarted or only cut off, it begins as with a lost
journal (DESIGN 4): every unit HELD, every token issued so far closed, no certificate in force, no
spec of a claim trusted. This is no transition of the tables: it is a journal that begins anew, in
place, and keeps what a new one would adopt (records of claims, reasons, the chain's ends).

The mark is a lease on a unit of its own, held by the operator who decided; the node ends it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from fleet.core import errors
from fleet.core.claim_states import Claim, ClaimState
from fleet.core.model import Lease, Token, Unit, UnitId
from fleet.core.unit_states import close_floor, fresh
from fleet.node.flights import Flights
from fleet.node.ports import Leases, Specs
from fleet.node.registry import Registry
from fleet.stores.base import Release

LOG = logging.getLogger(__name__)

LOST = "lost"
MARK_TTL_S = 10 * 365 * 86400.0
"""How long, s, a lost node is remembered: longer than any hardware waits on a shelf."""
LOOK_PERIOD_S = 60.0
"""Period, s, of looking for the mark while the node runs."""


def lost_unit(node: str) -> UnitId:
    """The unit whose lease says that a node was declared lost."""
    return UnitId(f"{LOST}/{node}")


@dataclass
class Lost:
    """Looks whether the node was declared lost, and begins anew then."""

    registry: Registry
    specs: Specs
    store: Leases
    flights: Flights
    told: str = ""
    """By whom this node was declared lost and has begun anew since it started; "" never."""
    _looked_at: float = float("-inf")

    def step(self, now: float) -> None:
        """Look when it is time. Raises `NodeDegraded` while work has to end first, and whatever
        keeps the node from beginning anew; a store that does not answer says nothing."""
        if 0 <= now - self._looked_at < LOOK_PERIOD_S:
            return
        try:
            mark, newest = self._mark(), self.store.newest()
        except errors.FleetError:
            return  # looked for again by the next call; nothing is exposed without the store
        if mark is not None:
            self._begin_anew(mark, newest, now)
        self._looked_at = now

    def _mark(self) -> Lease | None:
        return self.store.holder(lost_unit(self.registry.place.node))

    def _begin_anew(self, mark: Lease, newest: Token, now: float) -> None:
        who = mark.holder.name
        works, flying = self.registry.works(), self.flights.flying()
        for work in works:
            work.cancel.set()
        for flight in flying:
            flight.stop()
        if works or flying:
            raise errors.NodeDegraded(
                f"this node was declared lost by {who}: what is in work ends first",
                remedy="repeat in a moment; the node begins anew then",
            )
        for uid in tuple(self.registry.journal.claims):
            self.specs.remove(uid)
        with self.registry.commit() as commit:
            for unit in list(self.registry.journal.units.values()):
                commit.put_unit(_anew(unit, newest, now))
            for claim in list(self.registry.journal.claims.values()):
                commit.put_claim(_doubted(claim, who))
            commit.record_act(
                "declared lost",
                self.registry.place.node,
                operator=who,
                detail=f"everything up to {newest} is closed",
                now=now,
            )
        (answer,) = self.store.release([Release(mark.holder, mark.token)])
        if isinstance(answer, errors.FleetError):
            raise answer
        self.told = f"declared lost by {who}; begun anew, all devices HELD"
        LOG.warning("this node was %s", self.told)


def _anew(unit: Unit, newest: Token, now: float) -> Unit:
    """As a new journal starts it, with what that would adopt: holder, reasons, chain's end."""
    kept = replace(fresh(unit), claim=unit.claim, floor=unit.floor, closed=unit.closed, since=now)
    return close_floor(kept, newest)


def _doubted(claim: Claim, who: str) -> Claim:
    """Its teardown, with all proofs, is what frees the units."""
    state = claim.state if claim.state is ClaimState.UNPREPARING else ClaimState.PREPARING
    return replace(claim, state=state, error=f"this node was declared lost by {who}")
