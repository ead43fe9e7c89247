"""One question to all nodes at once: the nodes of a campaign over Ray.

Calls go out together and are waited for together under one deadline: a node that hangs delays an
answer by the deadline, never by its own time, and never hides another node's answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from actors import methods
from actors.handles import CALL_TIMEOUT_S, RemoteNode, gather
from actors.node_api import ActorApi
from fleet.control.campaign.ports import Requests
from fleet.core.errors import FleetError, RayUnavailable
from fleet.core.messages import NodeView
from fleet.evidence.ledger import LedgerHead
from fleet.rpc.nodes import CalledNodes, NodeCall

VIEW_TIMEOUT_S = 5.0
"""Time, s, a node has to show itself; the campaign asks again at its next step."""
_QUICK = frozenset({"view", "cancel"})


class RayNodes(CalledNodes):
    """`fleet.control.campaign.ports.Nodes` over node actors."""

    api = ActorApi

    def __init__(
        self,
        nodes: Sequence[RemoteNode],
        absent: Sequence[str] = (),
        *,
        view_timeout_s: float = VIEW_TIMEOUT_S,
        call_timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """`absent`: nodes there should be that have no actor; they answer `RayUnavailable`."""
        self._call_timeout_s = call_timeout_s
        self._view_timeout_s = view_timeout_s
        self._nodes = {node.name: node for node in nodes}
        self._absent = tuple(absent)

    def names(self) -> Sequence[str]:
        """All nodes, reachable or not."""
        return sorted({*self._nodes, *self._absent})

    def views(self, asked: Requests) -> Mapping[str, NodeView | FleetError]:
        """Every node's view, with the results of the operations named."""
        return super().views({name: asked.get(name, ()) for name in self.names()})

    scrub_all = CalledNodes.scrub

    def cancel(self, requests: Requests) -> Mapping[str, FleetError | None]:
        """Cancel operations."""
        return self.every("cancel", {name: (some,) for name, some in requests.items()})

    def heads(self) -> Mapping[str, LedgerHead | FleetError]:
        """The end of each node's ledger."""
        return self.every("head", dict.fromkeys(self.names(), ()))

    def each(self, calls: Mapping[str, NodeCall]) -> Mapping[str, Any | FleetError]:
        """As `CalledNodes.each`."""
        found: dict[str, Any | FleetError] = {}
        refs = {}
        for name, call in calls.items():
            try:
                refs[name] = self._node(name).start(call.verb, call.given)
            except FleetError as error:
                found[name] = error
        what = next((call.verb for call in calls.values()), None)
        quick = what is not None and what.name in _QUICK
        timeout_s = self._view_timeout_s if quick else self._call_timeout_s
        answers = gather(refs, call=what.name if what else "", timeout_s=timeout_s)
        return found | {
            name: methods.node_answer(calls[name].verb, one) for name, one in answers.items()
        }

    def _node(self, name: str) -> RemoteNode:
        if name in self._nodes:
            return self._nodes[name]
        raise RayUnavailable(f"{name}: no node actor runs", remedy="start the node, then run again")
