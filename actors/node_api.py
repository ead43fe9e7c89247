"""What may be asked of a node's actor."""

from __future__ import annotations

from fleet.evidence.ledger import LedgerHead
from fleet.rpc.calls import verb
from fleet.rpc.node_api import NodeApi


class ActorApi(NodeApi):
    """A node behind Ray."""

    @verb(looks=True)
    def head(self) -> LedgerHead:
        """The end of the node's ledger, for the coordinator's countersignature."""
