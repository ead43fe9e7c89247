"""Leases whose claims do not exist any more (A7): found again by any coordinator, given back."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet import errors
from fleet.binding import pledge
from fleet.binding.claim import read
from fleet.binding.deciding import OUT
from fleet.binding.leasing import ClaimLeases
from fleet.binding.looking import Look
from fleet.binding.undoing import UNSEEN, Undoing
from fleet.binding.watching import Cached
from fleet.kube.base import CLAIMS, Object, uid_of
from fleet.messages import NodeView
from fleet.model import Lease, UnitId

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

    A card that was moved stays known to the node it was taken out of, whose word is none about the
    node that has it now: a lease goes only where no other node can have its memory.
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

    def step(self, views: Views, now: float) -> None:
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
        going = {uid: by_claim[uid] for uid in chosen if uid not in alive}
        moved = self._moved(going, views)
        flat = [lease for uid in going if uid not in moved for lease in going[uid]]
        told = zip(flat, self._undoing.undo(flat, now), strict=True)
        for uid, left in (*moved.items(), *((lease.holder.name, left) for lease, left in told)):
            if left:
                LOG.info("the lease of claim %s, which is gone, waits: %s", uid, left)
                pause = 1 if left == UNSEEN else min(PAUSE_MAX, 2 * pauses[uid][1] or 1)
                pauses[uid] = (self._looks + pause, pause)
        self._pauses, self._suspects = pauses, frozenset(gone)

    def _answerable(self, by_claim: Mapping[str, Sequence[Lease]], uids: Iterable[str]) -> bool:
        """Whether a node can be asked about any of them: else the server need not be, either."""
        leases = [lease for uid in uids for lease in by_claim[uid]]
        return any(not self.look.is_silent(lease) for lease in leases)

    def _moved(self, going: Mapping[str, Sequence[Lease]], views: Views) -> Mapping[str, str]:
        """Claims whose leases may be for memory that another node has by now, and why."""
        asked = {uid: self._elsewhere(uid, leases) for uid, leases in going.items()}
        missing = {node for nodes in asked.values() for node in nodes} - views.keys()
        more = self.look.around.nodes.views(dict.fromkeys(sorted(missing), ())) if missing else {}
        known, found = {**views, **more}, {}
        for uid, nodes in asked.items():
            units = {unit for lease in going[uid] for unit in lease.units}
            for node in sorted(nodes):
                view = known.get(node)
                if not isinstance(view, NodeView):
                    found[uid] = f"node {node} may have the card, and does not answer"
                elif units.intersection(unit for one in view.devices for unit in one.units):
                    found[uid] = f"node {node} has the card"
        return found

    def _elsewhere(self, uid: str, leases: Sequence[Lease]) -> Collection[str]:
        """Nodes, besides its own, that may have memory of a lease: those of its claim where its
        own does not show it in service, all where its own does not show it at all."""
        where, around = self.look.where, self.look.around
        units = {unit for lease in leases for unit in lease.units if unit in where}
        views = [self.look.views.get(node) for node in {where[unit] for unit in units}]
        if None in views:
            return ()  # it is waited for anyway
        shown = {UnitId(u): one for v in views if v for one in v.devices for u in one.units}
        claim = self.claims.get(uid)
        nodes: set[str] = set()
        if claim is not None and any(u not in shown or shown[u].state in OUT for u in units):
            nodes.update(around.charge.places(read(claim, self.look.marks)))
        if units - shown.keys():
            nodes.update(around.nodes.names())
        return nodes - {where[unit] for unit in units}

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
