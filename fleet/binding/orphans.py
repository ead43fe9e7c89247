"""Leases whose claims do not exist any more (A7): found again by any coordinator, given back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet import errors
from fleet.binding.leasing import ClaimLeases
from fleet.binding.looking import Look
from fleet.binding.watching import Cached
from fleet.messages import NodeView

LOG = logging.getLogger(__name__)

Views = Mapping[str, NodeView | errors.FleetError]


@dataclass
class OrphanLeases:
    """Leases of claims that do not exist any more, given back once their node has closed them.

    Gone is a claim that two looks in a row have not found in a cache that is complete. The node has
    the last word: it refuses while it has a record of the claim, and then tears it down itself.
    """

    claims: Cached
    leases: ClaimLeases
    look: Look
    _suspects: frozenset[str] = field(default_factory=frozenset)

    def step(self, views: Views, now: float) -> None:  # noqa: ARG002 - shape of a follower
        """One look."""
        if not self.claims.synced:
            return
        by_claim = self.leases.by_claim()
        gone = {uid for uid in by_claim if self.claims.get(uid) is None}
        for uid in sorted(gone & self._suspects):
            left = self.leases.undo(by_claim[uid], self.look.where, self.look.views)
            if left:
                LOG.info("the lease of claim %s, which is gone, waits: %s", uid, left)
        self._suspects = frozenset(gone)
