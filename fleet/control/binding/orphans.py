"""Leases whose claims do not exist any more (A7): found again by any coordinator, given back."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.control.binding import pledge
from fleet.control.binding.claim_leases import ClaimLeases
from fleet.control.binding.lease_return import UNSEEN, Undoing
from fleet.control.binding.object_cache import Cached
from fleet.control.binding.snapshot import Look
from fleet.core import errors
from fleet.core.messages import NodeView
from fleet.core.model import Lease
from fleet.kube.base import CLAIMS, Object, uid_of
from fleet.kube.claim import read

PAUSE_MAX = 16
"""Longest pause, in looks, before leases that could not be given back are tried again."""

LOG = logging.getLogger(__name__)

Views = Mapping[str, NodeView | errors.FleetError]


@dataclass
class OrphanLeases:
    """Leases of claims that do not exist any more, given back once their node has closed them.

    A lease whose claim exists, but is no case of the coordinator's, is brought to its notice: who
    took it has died before the claim showed it.

    Gone is a claim that two looks in a row have not found in a cache that is complete, and that a
    live list does not show: a watch may be cut off without a word. The node has
    the last word: it refuses while it has a record of the claim, and then tears it down itself.

    Where several coordinators share the nodes only leases on our own are looked at. One of them is
    left over, too, if its claim was given devices of another's nodes since: that one cannot ask
    ours to close it.
    """

    claims: Cached
    leases: ClaimLeases
    look: Look
    _suspects: frozenset[str] = field(default_factory=frozenset)
    _pauses: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By claim: the look at which it has its turn, and the pause that ends then."""
    _looks: int = 0
    _undoing: Undoing = field(init=False)

    def __post_init__(self) -> None:
        self._undoing = Undoing(self.look.around, self.look)

    def step(self, views: Views, now: float) -> None:  # noqa: ARG002 - shape of a follower
        """One look."""
        if not self.claims.synced:
            return
        by_claim = self._concerning()
        gone = {uid for uid in by_claim if self._is_left(self.claims.get(uid))}
        self.look.notice(by_claim.keys() - gone)
        self._looks += 1
        pauses = {uid: self._pauses.get(uid, (0, 0)) for uid in gone & self._suspects}
        due = sorted(uid for uid, (at, _) in pauses.items() if at <= self._looks)
        fits = self._undoing.fitting(by_claim[uid] for uid in due)
        chosen = [uid for uid, fit in zip(due, fits, strict=True) if fit]
        alive = self._keeping() if self._answerable(by_claim, chosen) else set()
        flat = [lease for uid in chosen if uid not in alive for lease in by_claim[uid]]
        for lease, left in zip(flat, self._undoing.undo(flat, now), strict=True):
            uid = lease.holder.name
            if left:
                LOG.info("the lease of claim %s, which is gone, waits: %s", uid, left)
                pause = 1 if left == UNSEEN else min(PAUSE_MAX, 2 * pauses[uid][1] or 1)
                pauses[uid] = (self._looks + pause, pause)
        self._pauses, self._suspects = pauses, frozenset(gone)

    def _answerable(self, by_claim: Mapping[str, Sequence[Lease]], uids: Iterable[str]) -> bool:
        """Whether a node can be asked about any of them: else the server need not be, either."""
        leases = [lease for uid in uids for lease in by_claim[uid]]
        return any(not self.look.is_silent(lease) for lease in leases)

    def _concerning(self) -> Mapping[str, Sequence[Lease]]:
        """The leases of claims, by the claim's UID, that are of our nodes' units."""
        by_claim, charge = self.leases.by_claim(), self.look.around.charge
        if charge.whole:
            return by_claim
        where = self.look.where
        here = {
            uid: [
                one for one in leases if all(charge.has_node(where.get(u, "")) for u in one.units)
            ]
            for uid, leases in by_claim.items()
        }
        return {uid: leases for uid, leases in here.items() if leases}

    def _is_left(self, claim: Object | None) -> bool:
        """Whether nobody else gives leases of the claim on our nodes back."""
        charge, marks = self.look.around.charge, self.look.marks
        if claim is None or charge.whole:
            return claim is None
        try:
            reading = read(claim, marks)
        except errors.FleetError:
            return False
        if charge.has(reading):
            return False
        if charge.places(reading):
            return True
        told = pledge.read(claim, marks)  # anybody's to write: it counts with a lease only
        return told is None or not self.leases.pledges({reading.uid: told.owner})

    def _keeping(self) -> set[str]:
        """UIDs of all claims that keep their leases, as the server has them now. Raises what
        `Cluster.list` raises."""
        found = self.look.around.cluster.list(CLAIMS).items
        for claim in found:
            self.claims.learn(claim)
        return {uid_of(claim) for claim in found if not self._is_left(claim)}
