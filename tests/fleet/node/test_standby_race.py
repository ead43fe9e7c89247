"""Several who want one node at once (DESIGN 5, Ray): one owner at any time, nothing lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from fleet.core import errors
from fleet.core.clock import SystemClock
from fleet.core.messages import ClaimOrder
from fleet.node.service import NodeService
from fleet.node.standby import Standby
from fleet.rpc.client import DoorNode
from fleet.rpc.node_api import HandOver
from fleet.wiring import adapters
from tests.fleet.node.conftest import Lab, wait_for
from tests.fleet.node.standbys import QUICK, TEARDOWN, standby

T = TypeVar("T")
ROUNDS = 10


@dataclass
class Ledger:
    """Who owns the node, as the owners themselves say; two at once are noted."""

    lock: threading.Lock
    owners: set[str]
    overlaps: list[set[str]]
    terms: dict[str, int]

    def enter(self, name: str) -> None:
        with self.lock:
            self.owners.add(name)
            self.terms[name] = self.terms.get(name, 0) + 1
            if len(self.owners) > 1:
                self.overlaps.append(set(self.owners))

    def leave(self, name: str) -> None:
        with self.lock:
            self.owners.discard(name)


@contextmanager
def running(lab: Lab, name: str, ledger: Ledger) -> Iterator[Standby]:
    """A standby stepping on a thread of its own that says when it owns the node."""
    with standby(lab, replace(QUICK, yield_s=0.05)) as standing:
        opened = standing.open

        def noted(hand_over: HandOver) -> NodeService:
            service = opened(hand_over)
            ledger.enter(name)
            closed = service._parts.lock.release

            def released() -> None:
                ledger.leave(name)
                closed()

            service._parts.lock.release = released  # type: ignore[method-assign] # to see the end
            return service

        standing.open = noted
        stop = threading.Event()

        def run() -> None:
            while not stop.wait(0.002):
                standing.step()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield standing
        finally:
            stop.set()
            thread.join(30.0)


def test_standbys_and_newcomers_racing_never_own_the_node_together(away: Lab) -> None:
    """Promise 2, B45: ten rounds of two standbys and an actor: one owner at any time."""
    ledger = Ledger(threading.Lock(), set(), [], {})
    door = adapters.open_door(away.plan)
    order = ClaimOrder(uid="claim-a", node="n1", devices=("gpu-0",), consumers=("pod-1",))
    with running(away, "one", ledger), running(away, "two", ledger):
        first = insist(lambda: door.prepare(order, budget_s=10.0))
        for round_ in range(ROUNDS):
            newcomer = insist(lambda: _ask_and_open(away, door))
            ledger.enter("actor")
            assert newcomer.view().devices
            if round_ % 3 == 0:
                insist(lambda: door.unprepare(TEARDOWN, budget_s=10.0))
                first = insist(lambda: door.prepare(order, budget_s=10.0))
            assert insist(lambda: door.prepare(order, budget_s=10.0)) == first
            ledger.leave("actor")
            newcomer.close()
            assert insist(lambda: door.prepare(order, budget_s=10.0)) == first
        insist(lambda: door.unprepare(TEARDOWN, budget_s=10.0))
        wait_for(lambda: away.coordinator.leases() == [])
    assert ledger.overlaps == []
    assert ledger.terms["actor"] == ROUNDS
    assert ledger.terms.get("one", 0) + ledger.terms.get("two", 0) >= ROUNDS
    assert away.specs == []
    door.close()


def _ask_and_open(lab: Lab, door: DoorNode) -> NodeService:
    """As an actor does: ask whoever owns the node, then try to take it."""
    door.hand_over("actor")
    clock = SystemClock()
    until = clock.monotonic() + 0.5
    while True:
        try:
            return adapters.open_node(lab.plan, owner="actor")
        except errors.NotOwner:
            if clock.monotonic() > until:
                raise


def insist(call: Callable[[], T]) -> T:
    """The answer to a call, repeated as callers repeat what is retryable."""
    found: list[T] = []

    def answered() -> bool:
        try:
            found.append(call())
        except errors.Retryable:
            return False
        return True

    wait_for(answered)
    return found[0]
