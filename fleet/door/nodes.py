"""The nodes of this host, each behind its door, as the coordinator asks for them: in batches.

Several doors are asked at one time, each in a thread, so that a node that stays silent costs the
others nothing. What a node refuses, or that nobody answers for it, stands in the place of its
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fleet import errors
from fleet.binding.ports import Abandonment
from fleet.door.calling import DoorNode
from fleet.leases import Closure
from fleet.messages import Acceptance, NodeView, ScrubOrder

PARALLEL_MAX = 16
"""Doors asked at one time; a host has one node, a simulated fleet some."""

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


class DoorNodes:
    """`fleet.binding.ports.Nodes` over doors. Bounded by the doors' own time-outs."""

    def __init__(self, doors: Mapping[str, DoorNode], *, parallel_max: int = PARALLEL_MAX) -> None:
        """`doors` by the name of the Node; at most `parallel_max` are asked at one time."""
        self._doors = dict(doors)
        self._pool = ThreadPoolExecutor(max_workers=parallel_max, thread_name_prefix="doors")

    def names(self) -> Collection[str]:
        """The nodes of this host."""
        return tuple(self._doors)

    def views(
        self, asked: Mapping[str, Sequence[str]]
    ) -> Mapping[str, NodeView | errors.FleetError]:
        """The nodes named, each with the results of the operations asked for."""
        return self._each(asked, DoorNode.view)

    def scrub(
        self, orders: Mapping[str, Sequence[ScrubOrder]]
    ) -> Mapping[str, Sequence[Acceptance] | errors.FleetError]:
        """Hand orders in; they are idempotent by operation id."""
        return self._each(orders, DoorNode.scrub)

    def abandon(self, asked: Sequence[Abandonment]) -> Sequence[Closure | errors.FleetError]:
        """Close tokens, one answer for each, in order; a node is asked for one after the other."""
        places: dict[str, list[int]] = {}
        for place, one in enumerate(asked):
            places.setdefault(one.node, []).append(place)

        def close(door: DoorNode, mine: list[int]) -> list[Closure | errors.FleetError]:
            return [self._answer(door, asked[place], _abandon) for place in mine]

        found = self._each(places, close)
        answers: dict[int, Closure | errors.FleetError] = {}
        for node, mine in places.items():
            answer = found[node]
            each = [answer] * len(mine) if isinstance(answer, errors.FleetError) else answer
            answers.update(zip(mine, each, strict=True))
        return [answers[place] for place in range(len(asked))]

    def quarantine_add(
        self, node: str, device: str, *, detail: str, operator: str, codes: Sequence[str] = ()
    ) -> None:
        """Take a device out of service. Raises the node's own errors."""
        self._door(node).quarantine_add(device, detail=detail, operator=operator, codes=codes)

    def close(self) -> None:
        """Ask nobody any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for door in self._doors.values():
            door.close()

    def _each(
        self, asked: Mapping[str, _Asked], call: Callable[[DoorNode, _Asked], _Answer]
    ) -> dict[str, _Answer | errors.FleetError]:
        def ask(node: str) -> _Answer | errors.FleetError:
            try:
                return self._answer(self._door(node), asked[node], call)
            except errors.FleetError as error:
                return error

        return dict(zip(asked, self._pool.map(ask, asked), strict=True))

    def _answer(
        self, door: DoorNode, asked: _Asked, call: Callable[[DoorNode, _Asked], _Answer]
    ) -> _Answer | errors.FleetError:
        try:
            return call(door, asked)
        except errors.FleetError as error:
            return error
        except OSError as error:  # such as no descriptor left: this node's trouble alone
            return errors.NotOwner(f"the door of the node cannot be used: {error}")

    def _door(self, node: str) -> DoorNode:
        if node not in self._doors:
            raise errors.NotOwner(
                f"there is no node {node!r} on this host",
                remedy="a coordinator without Ray reaches the nodes of its host only",
            )
        return self._doors[node]


def _abandon(door: DoorNode, asked: Abandonment) -> Closure:
    return door.abandon(asked.uid, asked.token, asked.devices)
