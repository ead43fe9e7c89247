"""All nodes of the fleet, always asked in batches, each node answering for itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from fleet.core import errors
from fleet.core.clock import Clock, SystemClock
from fleet.core.leases import Closure
from fleet.core.messages import Acceptance, NodeView, ScrubOrder
from fleet.rpc.calls import Verb, verbs
from fleet.rpc.client import DoorNode
from fleet.rpc.node_api import NodeApi

PARALLEL_MAX = 16
"""Doors asked at one time; a host has one node, a simulated fleet some."""

SLOW_S = 5.0
"""Time, s, after which a call that fails counts as one that hung."""
HUNG_S = 15.0
"""Time, s, in which what hung is not asked again: each time would keep all others waiting."""
VIEW = "view"


@dataclass(frozen=True, slots=True)
class Abandonment:
    """Ask a node to close `token` for a claim that it has no record of."""

    node: str
    uid: str
    token: str
    devices: tuple[str, ...]
    """UUIDs of devices or ids of units: the latter are known to a node that has lost the device."""


class Nodes(Protocol):
    """All nodes of the fleet. A node that does not answer is an error in its place."""

    def names(self) -> Collection[str]:
        """Nodes that exist now, by the name of their Node object."""
        ...

    def views(
        self, asked: Mapping[str, Sequence[str]]
    ) -> Mapping[str, NodeView | errors.FleetError]:
        """The nodes named, each with the results of the operations asked for."""
        ...

    def scrub(
        self, orders: Mapping[str, Sequence[ScrubOrder]]
    ) -> Mapping[str, Sequence[Acceptance] | errors.FleetError]:
        """Hand orders in; they are idempotent by operation id."""
        ...

    def abandon(self, asked: Sequence[Abandonment]) -> Sequence[Closure | errors.FleetError]:
        """Close tokens, one answer for each, in order."""
        ...

    def node(self, name: str) -> NodeApi:
        """One of them, whether or not it is known: its verbs raise why it is not reached."""
        ...


@dataclass(frozen=True, slots=True)
class NodeCall:
    """One call of a batch. `given`: arguments as JSON values."""

    node: str
    verb: Verb
    given: Mapping[str, Any]


class CalledNodes:
    """`Nodes` over `each`, which takes any calls to their nodes, all at one time."""

    api: type[NodeApi] = NodeApi

    def each(self, calls: Mapping[str, NodeCall]) -> Mapping[str, Any | errors.FleetError]:
        """An answer (a JSON value) or an error for each call, in order."""
        raise NotImplementedError

    def views(
        self, asked: Mapping[str, Sequence[str]]
    ) -> Mapping[str, NodeView | errors.FleetError]:
        """As `Nodes.views`."""
        return self.every("view", {node: (operations,) for node, operations in asked.items()})

    def scrub(
        self, orders: Mapping[str, Sequence[ScrubOrder]]
    ) -> Mapping[str, Sequence[Acceptance] | errors.FleetError]:
        """As `Nodes.scrub`."""
        return self.every("scrub", {node: (mine,) for node, mine in orders.items()})

    def abandon(self, asked: Sequence[Abandonment]) -> Sequence[Closure | errors.FleetError]:
        """As `Nodes.abandon`."""
        verb = verbs(self.api)["abandon"]
        calls = {
            f"{one.node}, {place}": NodeCall(
                one.node, verb, verb.pack(one.uid, one.token, one.devices)
            )
            for place, one in enumerate(asked)
        }
        return list(self._answers(calls).values())

    def node(self, name: str) -> NodeApi:
        """As `Nodes.node`."""
        return _One(self, name)

    def every(
        self, name: str, asked: Mapping[str, tuple[Any, ...]]
    ) -> dict[str, Any | errors.FleetError]:
        """The answers of nodes to the verb `name`, each with its own arguments."""
        verb = verbs(self.api)[name]
        return self._answers(
            {node: NodeCall(node, verb, verb.pack(*mine)) for node, mine in asked.items()}
        )

    def _answers(self, calls: Mapping[str, NodeCall]) -> dict[str, Any | errors.FleetError]:
        found = self.each(calls)
        return {key: _loaded(call.verb, found[key]) for key, call in calls.items()}


class _One(NodeApi):
    def __init__(self, nodes: CalledNodes, name: str) -> None:
        self._nodes = nodes
        self._name = name

    def ask(self, verb: Verb, given: Mapping[str, Any], timeout_s: float | None) -> Any:  # noqa: ARG002 - that of the batch
        """As `Interface.ask`, by a batch of one."""
        answer = self._nodes.each({self._name: NodeCall(self._name, verb, given)})[self._name]
        if isinstance(answer, errors.FleetError):
            raise answer
        return answer


def _loaded(verb: Verb, answer: Any | errors.FleetError) -> Any | errors.FleetError:
    if isinstance(answer, errors.FleetError):
        return answer
    try:
        return verb.load(answer)
    except errors.InputInvalid as error:
        return error


class DoorNodes(CalledNodes):
    """The nodes of this host, each behind its door. Bounded by the doors' own time-outs.

    Several doors are asked at one time, each in a thread, so that a node that stays silent costs
    the others nothing. A node that let a batch wait is not asked the same again for some seconds.
    """

    def __init__(
        self,
        doors: Mapping[str, DoorNode],
        *,
        parallel_max: int = PARALLEL_MAX,
        clock: Clock | None = None,
    ) -> None:
        """`doors` by the name of the Node; at most `parallel_max` are asked at one time."""
        self._doors = dict(doors)
        self._clock = clock or SystemClock()
        self._hung: dict[tuple[str, str], float] = {}
        """When a call hung, by node and kind, monotonic time; every change is atomic."""
        self._pool = ThreadPoolExecutor(max_workers=parallel_max, thread_name_prefix="doors")

    def names(self) -> Collection[str]:
        """The nodes of this host."""
        return tuple(self._doors)

    def close(self) -> None:
        """Ask nobody any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for door in self._doors.values():
            door.close()

    def each(self, calls: Mapping[str, NodeCall]) -> Mapping[str, Any | errors.FleetError]:
        """As `CalledNodes.each`; a node is asked for one thing after the other."""
        mine: dict[str, list[str]] = {}
        for key, call in calls.items():
            mine.setdefault(call.node, []).append(key)

        def ask(node: str) -> dict[str, Any | errors.FleetError]:
            return {key: self._answer(calls[key]) for key in mine[node]}

        found: dict[str, Any | errors.FleetError] = {}
        for answers in self._pool.map(ask, mine):
            found |= answers
        return {key: found[key] for key in calls}

    def _answer(self, call: NodeCall) -> Any | errors.FleetError:
        node, verb = call.node, call.verb
        began = self._clock.monotonic()
        for hung in (VIEW, verb.name):
            if began - self._hung.get((node, hung), float("-inf")) < HUNG_S:
                return errors.NotOwner(
                    f"{node} kept an earlier call waiting: it is asked again soon"
                )
        try:
            return self._door(node).ask(verb, call.given, verb.wait_s(call.given))
        except errors.FleetError as error:
            failed = error
        except OSError as error:  # such as no descriptor left: this node's trouble alone
            failed = errors.NotOwner(f"the door of the node cannot be used: {error}")
        ended = self._clock.monotonic()
        if ended - began >= SLOW_S:
            self._hung[node, verb.name] = ended
        return failed

    def _door(self, node: str) -> DoorNode:
        if node not in self._doors:
            raise errors.NotOwner(
                f"there is no node {node!r} on this host",
                remedy="a coordinator without Ray reaches the nodes of its host only",
            )
        return self._doors[node]
