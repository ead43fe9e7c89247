"""Claims this node still serves though the API gave them up: found by UID, torn down as ever (B23).

Orphaned is a claim that is not allocated here any more, or reserved for nobody but ourselves
(DESIGN 4). Only a live answer about exactly that claim says so, twice in a row: an error, a
time-out or kubelet's silence never does. What follows is the normal teardown, with all proofs.

The same look shows whether our hold is still on a claim that was exposed under it; taken off by
somebody, it is put back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from fleet.core import errors
from fleet.core.messages import ClaimAnswer, Owed, TeardownOrder
from fleet.kube.base import CLAIMS, Cluster, Name, Object, uid_of
from fleet.kube.marks import Marks
from fleet.plugin.agent_device import Agents
from fleet.plugin.claims import Seat, claim_uid
from fleet.plugin.holds import Marking
from fleet.plugin.requests import AskedClaim
from fleet.plugin.resource_claim import Reading, read
from fleet.rpc.node_api import NodeApi

T = TypeVar("T")

LOG = logging.getLogger(__name__)

BUDGET_S = 1.0
"""Time, s, one step waits for a teardown it began; the node goes on by itself."""
SERVED = frozenset({"PREPARING", "PREPARED"})


@dataclass
class Orphans:
    """Looks for orphaned claims; `step` once in a while."""

    seat: Seat
    node: NodeApi
    cluster: Cluster
    agents: Agents | None = None
    marking: Marking | None = None
    """Puts a hold back that was lost; None: nobody does."""
    _suspects: frozenset[str] = field(default_factory=frozenset)

    def step(self) -> tuple[str, ...]:
        """The claims whose teardown was begun now.

        Raises what the node raises when it does not tell its claims, once the agent's are judged.
        Nothing else: trouble with one claim is logged, and the others go on.
        """
        away: errors.FleetError | None = None
        served: Sequence[ClaimAnswer] = ()
        try:
            served = [claim for claim in self.node.claims() if claim.state in SERVED]
        except errors.FleetError as error:
            away = error
        orphaned = {one.uid for one in served if _contained(one.uid, self._is_orphan, one)}
        orphaned |= self._agents_orphaned()
        confirmed = sorted(orphaned & self._suspects)
        self._suspects = frozenset(orphaned)
        begun = tuple(uid for uid in confirmed if _contained(uid, self._tear_down, uid))
        if away is not None:
            raise away
        return begun

    def _tear_down(self, uid: str) -> bool:
        """Begin the teardown; whether it has begun."""
        if self.agents is not None and self.agents.knows(uid):
            return self.agents.unprepare(uid)
        named = next((one for one in self.node.claims() if one.uid == uid and one.name), None)
        if named is not None and self.marking is not None:
            owed = Owed(uid=uid, namespace=named.namespace, name=named.name)
            with suppress(errors.InputInvalid):  # an owner of an earlier version
                self.node.owe(owed)  # shown once the record is buried
        with suppress(errors.DeviceBusy):  # begun; it goes on once its tenant is proven gone
            order = TeardownOrder(uid=uid, unheld=self._unheld(uid, named))
            self.node.unprepare(order, budget_s=BUDGET_S)
        return True

    def _unheld(self, uid: str, named: ClaimAnswer | None) -> bool:
        """Whether nothing at the API keeps others off its devices any more; not known is no."""
        if named is None:
            return False
        name = Name(named.name, named.namespace)
        try:
            found = self.cluster.get(CLAIMS, name)
        except errors.ApiNotFound:
            return True
        except errors.FleetError:
            return False
        told = claim_uid(found, name)
        return bool(told) and (told != uid or not (found.get("status") or {}).get("allocation"))

    def _agents_orphaned(self) -> set[str]:
        records = self.agents.records() if self.agents is not None else ()
        return {one.uid for one in records if _contained(one.uid, self._agent_gone, one)}

    def _agent_gone(self, record: AskedClaim) -> bool:
        return self._gone(record.uid, Name(record.name, record.namespace))

    def _is_orphan(self, claim: ClaimAnswer) -> bool:
        if not claim.name:
            return self._unlisted(claim.uid)
        return self._gone(claim.uid, Name(claim.name, claim.namespace))

    def _gone(self, uid: str, name: Name) -> bool:
        try:
            found = self.cluster.get(CLAIMS, name)
        except errors.ApiNotFound:
            return True
        except errors.FleetError:
            return False  # no answer is no proof
        told = claim_uid(found, name)
        if not told:
            return False  # an answer about something else is none
        if told != uid or not self._wanted(found, uid):
            return True
        if self.marking is not None and _unheld(found, Marks(self.seat.driver)):
            _contained(uid, self._hold_again, found)
        return False

    def _hold_again(self, found: Object) -> bool:
        """Put our hold back on a claim that the node exposes under it; whether it is on now.

        While it is said to be in use nobody lets go of it; once it is buried, it is not held.
        """
        if self.marking is None:
            return False
        uid = uid_of(found)
        with self.marking.using(uid):
            briefs = self.node.view().claims
            if not any(c.uid == uid and c.held and c.state in SERVED for c in briefs):
                return False
            return self.marking.hold(found)

    def _wanted(self, found: Object, uid: str) -> bool:
        """Whether the claim is allocated here and somebody but us is to use it."""
        try:
            reading = read(found, uid=uid, driver=self.seat.driver, pool=self.seat.pool)
        except errors.ClaimUnready:
            # No allocation is an answer; an allocation that cannot be understood is none.
            return bool((found.get("status") or {}).get("allocation"))
        except errors.FleetError:
            return True
        return bool(reading.results) and not _only_held(found, reading, Marks(self.seat.driver))

    def _unlisted(self, uid: str) -> bool:
        """For a claim whose name was lost with the journal: nothing in the whole list is it."""
        try:
            listing = self.cluster.list(CLAIMS)
        except errors.FleetError:
            return False
        found = next((one for one in listing.items if uid_of(one) == uid), None)
        if found is None:
            # A list without a version is none: something other than the API server answered.
            return not listing.skipped and bool(listing.resource_version)
        return not self._wanted(found, uid)


def _contained(uid: str, act: Callable[[T], bool], item: T) -> bool:
    """What `act` says of one item; trouble with it is logged and is a no."""
    try:
        return act(item)
    except errors.FleetError as error:
        LOG.warning("orphans: claim %s is left for the next look: %s", uid, error)
    except Exception:
        # The others go on; the log names the fault.
        LOG.exception("orphans: claim %s cannot be judged", uid)
    return False


def _unheld(found: Mapping[str, object], marks: Marks) -> bool:
    """Whether the claim is reserved for others and not for us."""
    status = found.get("status")
    entries = status.get("reservedFor") if isinstance(status, Mapping) else None
    if not isinstance(entries, Sequence) or not entries:
        return False
    return not any(isinstance(entry, Mapping) and marks.is_hold(entry) for entry in entries)


def _only_held(found: Mapping[str, object], reading: Reading, marks: Marks) -> bool:
    """Whether every reservation is our own; one of a kind that we do not know keeps a claim."""
    status = found.get("status")
    entries = status.get("reservedFor") if isinstance(status, Mapping) else None
    if not isinstance(entries, Sequence) or not entries or reading.consumers:
        return False
    return all(isinstance(entry, Mapping) and marks.is_hold(entry) for entry in entries)
