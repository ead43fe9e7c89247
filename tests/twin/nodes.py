"""The coordinator's view of all twin nodes, with lost answers and silence by a fault plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fleet.core import errors
from fleet.core.leases import Closure
from fleet.core.messages import Acceptance, DeviceView, NodeView, ScrubOrder
from fleet.rpc.node_api import NodeApi
from fleet.rpc.nodes import Abandonment
from tests.twin.clock import Timeline
from tests.twin.faults import Dice, carried_out
from tests.twin.node import TwinNode

T = TypeVar("T")


@dataclass
class TwinNodes:
    """`fleet.rpc.nodes.Nodes` over nodes in this process."""

    nodes: Mapping[str, TwinNode]
    exist: Callable[[], Collection[str]]
    dice: Dice | None = None
    timeline: Timeline | None = None
    calls: int = 0

    def names(self) -> Collection[str]:
        """Nodes whose Node object exists."""
        return self.exist()

    def views(
        self, asked: Mapping[str, Sequence[str]]
    ) -> Mapping[str, NodeView | errors.FleetError]:
        """The nodes named."""
        return {
            name: self._asked(
                name,
                lambda node, ops=ops: node.view(ops),  # type: ignore[misc]
                changes=False,
            )
            for name, ops in asked.items()
        }

    def scrub(
        self, orders: Mapping[str, Sequence[ScrubOrder]]
    ) -> Mapping[str, Sequence[Acceptance] | errors.FleetError]:
        """Hand orders in."""
        return {
            name: self._asked(name, lambda node, given=given: node.scrub(given))  # type: ignore[misc]
            for name, given in orders.items()
        }

    def abandon(self, asked: Sequence[Abandonment]) -> Sequence[Closure | errors.FleetError]:
        """Close tokens."""
        return [
            self._asked(
                one.node,
                lambda node, one=one: node.abandon(one.uid, one.token, one.devices),  # type: ignore[misc]
            )
            for one in asked
        ]

    def node(self, name: str) -> NodeApi:
        """One of them."""
        return _One(self, name)

    def _asked(
        self, name: str, act: Callable[[TwinNode], T], *, changes: bool = True
    ) -> T | errors.FleetError:
        self.calls += 1
        node, dice = self.nodes.get(name), self.dice
        if node is None or node.silent or node.frozen or not node.alive:
            return errors.RayUnavailable(f"node {name} does not answer")
        if dice is not None and dice.strikes("call-lost", name):
            return errors.RayUnavailable(f"node {name} was not reached")
        if changes and dice is not None and self.timeline is not None:
            if dice.strikes("call-late", name):
                wait_s = dice.chance().uniform(0.3, 20.0)
                self.timeline.after(wait_s, lambda: carried_out(lambda: act(node)), "late call")
                return errors.RayUnavailable(f"the call to {name} timed out, and arrives later")
            if dice.strikes("call-doubled", name):
                carried_out(lambda: act(node))
        try:
            answer = act(node)
        except errors.NotOwner:
            return errors.RayUnavailable(f"node {name} does not answer any more")
        except errors.FleetError as error:
            return error
        if dice is not None and dice.strikes("answer-lost", name):
            return errors.RayUnavailable(f"the answer of node {name} was lost")
        return answer


@dataclass
class _One(NodeApi):
    nodes: TwinNodes
    name: str

    def quarantine_add(
        self, device: str, *, detail: str, operator: str, codes: Sequence[str] = ()
    ) -> DeviceView:
        found = self.nodes._asked(
            self.name,
            lambda one: one.quarantine_add(device, detail=detail, operator=operator, codes=codes),
        )
        if isinstance(found, errors.FleetError):
            raise found
        return found
