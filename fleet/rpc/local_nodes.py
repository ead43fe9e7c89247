"""The nodes of this host, each behind its door, as the coordinator asks for them: in batches.

Several doors are asked at one time, each in a thread, so that a node that stays silent costs the
others nothing. What a node refuses, or that nobody answers for it, stands in the place of its
answer. A node that let a batch wait is not asked the same again for some seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fleet.core import errors
from fleet.core.clock import Clock, SystemClock
from fleet.core.leases import Closure
from fleet.core.messages import Acceptance, NodeView, ScrubOrder
from fleet.rpc.client import DoorNode
from fleet.rpc.nodes import Abandonment

PARALLEL_MAX = 16
"""Doors asked at one time; a host has one node, a simulated fleet some."""

SLOW_S = 5.0
"""Time, s, after which a call that fails counts as one that hung."""
HUNG_S = 15.0
"""Time, s, in which what hung is not asked again: each time would keep all others waiting."""
_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


class DoorNodes:
    """`fleet.rpc.nodes.Nodes` over doors. Bounded by the doors' own time-outs."""

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

        def close(node: str) -> list[Closure | errors.FleetError]:
            return [self._answer(node, asked[place], _abandon) for place in places[node]]

        found = dict(zip(places, self._pool.map(close, places), strict=True))
        answers: dict[int, Closure | errors.FleetError] = {}
        for node, mine in places.items():
            answers.update(zip(mine, found[node], strict=True))
        return [answers[place] for place in range(len(asked))]

    def quarantine_add(
        self, node: str, device: str, *, detail: str, operator: str, codes: Sequence[str] = ()
    ) -> None:
        """Take a device out of service. Raises the node's own errors."""

        def add(door: DoorNode, asked: str) -> None:
            door.quarantine_add(asked, detail=detail, operator=operator, codes=codes)

        answer = self._answer(node, device, add)
        if answer is not None:
            raise answer

    def close(self) -> None:
        """Ask nobody any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for door in self._doors.values():
            door.close()

    def _each(
        self, asked: Mapping[str, _Asked], call: Callable[[DoorNode, _Asked], _Answer]
    ) -> dict[str, _Answer | errors.FleetError]:
        def ask(node: str) -> _Answer | errors.FleetError:
            return self._answer(node, asked[node], call)

        return dict(zip(asked, self._pool.map(ask, asked), strict=True))

    def _answer(
        self, node: str, asked: _Asked, call: Callable[[DoorNode, _Asked], _Answer]
    ) -> _Answer | errors.FleetError:
        began, kind = self._clock.monotonic(), call.__name__
        for hung in (DoorNode.view.__name__, kind):
            if began - self._hung.get((node, hung), float("-inf")) < HUNG_S:
                return errors.NotOwner(
                    f"{node} kept an earlier call waiting: it is asked again soon"
                )
        try:
            return call(self._door(node), asked)
        except errors.FleetError as error:
            failed = error
        except OSError as error:  # such as no descriptor left: this node's trouble alone
            failed = errors.NotOwner(f"the door of the node cannot be used: {error}")
        ended = self._clock.monotonic()
        if ended - began >= SLOW_S:
            self._hung[node, kind] = ended
        return failed

    def _door(self, node: str) -> DoorNode:
        if node not in self._doors:
            raise errors.NotOwner(
                f"there is no node {node!r} on this host",
                remedy="a coordinator without Ray reaches the nodes of its host only",
            )
        return self._doors[node]


def _abandon(door: DoorNode, asked: Abandonment) -> Closure:
    return door.abandon(asked.uid, asked.token, asked.devices)
