"""The bridge: a child process of the node plugin that attaches to Ray and creates what is missing.

    python -m actors.bridge PLAN ADDRESS

PLAN is a file with the `NodePlan`, ADDRESS the Ray to attach to. The bridge may die at any time:
nothing of a claim's life goes through it (see `fleet.door`). It ends by itself when its standard
input is closed, which is how it learns that the plugin is gone, and with an error when Ray cannot
be reached; whoever started it tries again.
"""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

from actors import cluster, handles
from actors.handles import RemoteNode
from actors.muster import create
from fleet import errors
from fleet.bootstrap import CoordinatorPlan, FleetPlan, NodePlan

PERIOD_S = 5.0
"""Time, s, between two looks at the node's actor."""
SILENT_MAX = 3
"""Looks in a row without an answer after which this bridge is no use and ends."""
LOG = logging.getLogger("actors.bridge")


class Bridge:
    """Sees to it that the node's actor and the coordinator exist in one Ray."""

    def __init__(self, plan: NodePlan) -> None:
        self._fleet = FleetPlan(
            nodes=(plan,), coordinator=CoordinatorPlan(state=plan.state, settings=plan.settings)
        )
        self._silent = 0
        self._shown = ""

    def step(self) -> None:
        """Create what is missing and look at it. Raises `RayUnavailable` once Ray stays silent."""
        try:
            nodes: list[RemoteNode] = []
            create(self._fleet, nodes, host=handles.own_host())
            pulse = nodes[0].ping()
        except errors.FleetError as error:
            self._silent += 1
            LOG.warning("look %d without an answer: %s", self._silent, error)
            if self._silent >= SILENT_MAX:
                raise
            return
        self._silent = 0
        shown = f"the node actor stands by: {pulse.standby}" if pulse.standby else "it serves"
        if shown != self._shown:
            self._shown = shown
            LOG.warning("node actor of %s (pid %d): %s", pulse.node, pulse.pid, shown)


def main(arguments: list[str]) -> int:
    """Run until standard input ends; the exit code: 0 asked to end, 2 Ray is away."""
    logging.basicConfig(level=logging.WARNING, format="bridge: %(message)s")
    plan = NodePlan.model_validate_json(Path(arguments[0]).read_text())
    orphaned = threading.Event()
    threading.Thread(target=_watch_parent, args=(orphaned,), daemon=True).start()
    try:
        attached = cluster.attach(arguments[1])
    except errors.FleetError as error:
        LOG.warning("%s", error)
        return 2
    try:
        bridge = Bridge(plan)
        while True:
            bridge.step()
            if orphaned.wait(PERIOD_S):
                return 0
    except errors.FleetError as error:
        LOG.warning("%s", error)
        return 2
    finally:
        attached.close()


def _watch_parent(orphaned: threading.Event) -> None:
    sys.stdin.buffer.read()
    orphaned.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
