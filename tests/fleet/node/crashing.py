"""A node service that is killed on purpose: ``python -m tests.fleet.node.crashing MODE PLAN ...``.

prepare PLAN ORDER K   prepare a claim; SIGKILL right after the K-th commit of it
unprepare PLAN UID K   the same for a teardown
scrub PLAN ORDER       scrub; SIGKILL once the device is WIPING
cut PLAN ORDER POINT   prepare; SIGKILL before or after the lease or the spec (POINTS)
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fleet.core.messages import ClaimOrder, ScrubOrder
from fleet.core.model import State
from fleet.node.journal.journal import Commit
from fleet.node.service import NodeService
from fleet.wiring import adapters
from fleet.wiring.adapters import NodePlan

POINTS = ("lease-before", "lease-after", "spec-before", "spec-after")


@dataclass(frozen=True)
class Cut:
    """Something of a node, that kills this process before or after one of its methods."""

    inner: object
    method: str
    after: bool

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return self._deadly(found) if name == self.method else found

    def _deadly(self, found: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> None:
            if self.after:
                found(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        return call


def cut(node: NodeService, point: str) -> None:
    """Let the next prepare die at `point`."""
    holding = node._parts.holding
    what, when = point.split("-")
    if what == "lease":
        store = Cut(holding.securing.store, "acquire", when == "after")
        holding.securing = replace(holding.securing, store=store)
    else:
        holding.teardown.specs = Cut(holding.teardown.specs, "write", when == "after")


def die_after(node: NodeService, commits: int) -> None:
    """Kill this process once `commits` more transactions are on disk."""
    registry = node._registry
    left = threading.Semaphore(commits - 1)
    commit_before = registry.commit

    @contextmanager
    def commit() -> Iterator[Commit]:
        with commit_before() as changes:
            yield changes
        if not left.acquire(blocking=False):
            os.kill(os.getpid(), signal.SIGKILL)

    registry.commit = commit  # type: ignore[method-assign] # this process exists to be killed


def main(mode: str, plan: str, *rest: str) -> None:
    """Do what is asked for until killed; a return means that it was not."""
    node = adapters.open_node(NodePlan.model_validate_json(plan))
    if mode == "prepare":
        die_after(node, int(rest[1]))
        node.prepare(ClaimOrder.model_validate_json(rest[0]))
    elif mode == "unprepare":
        die_after(node, int(rest[1]))
        node.unprepare(rest[0])
    elif mode == "cut":
        cut(node, rest[1])
        node.prepare(ClaimOrder.model_validate_json(rest[0]))
    else:
        order = ScrubOrder.model_validate_json(rest[0])
        node.scrub([order])
        pause = threading.Event()
        while all(device.state != State.WIPING for device in node.view().devices):
            pause.wait(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    node.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
