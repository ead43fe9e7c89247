"""What Ray adds for each node, and the law that says so: ``python -m tests.scale.actors``.

Real node actors over simulated devices of 1 MiB. For each number of nodes: what an actor costs to
start (wall, processor, memory it shares with nobody), what it costs a campaign's driver to ask all
of them (the round that every step of a campaign makes), and how many devices a second one driver
leases meanwhile. The round costs ``a + b * nodes``, in wall and in the driver's processor time; the
line through all numbers but the last is held against what was measured at the last. The same views
read in this process without Ray tell how much of it is Ray's own: what has to be added to a
campaign measured without Ray (`tests.scale.campaign`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from actors import cluster, handles
from actors.handles import RemoteCoordinator, RemoteNode
from fleet.core.errors import FleetError
from fleet.core.messages import NodeView
from fleet.core.settings import MIB
from fleet.wiring import adapters
from fleet.wiring.adapters import FleetPlan
from jobs.fanout import RayNodes
from tests.scale import grounds, leases

DEVICES = 8
ROUNDS = 15
"""Rounds of which the median counts."""
START_S = 600.0


@dataclass(frozen=True, slots=True)
class Point:
    """One number of nodes. Times in milliseconds; memory in MiB."""

    nodes: int
    start_s_per_actor: float
    """Wall, from the first call to the last one that serves, by the actors that were new."""
    start_cpu_s_per_actor: float
    actor_mib: float
    round_ms: float
    """Wall of asking every node for its view, read and validated."""
    round_cpu_ms: float
    """Of the driver."""
    reading_cpu_ms: float
    """Of reading the same answers, without Ray."""
    actor_cpu_ms_per_call: float
    leased_devices_per_s: float


@dataclass(frozen=True, slots=True)
class Line:
    """``a + b * nodes``."""

    a: float
    b: float

    def at(self, nodes: int) -> float:
        """What it says of so many nodes."""
        return self.a + self.b * nodes

    def __str__(self) -> str:
        return f"{self.a:.2f} + {self.b:.3f} n ms"


def through(points: Sequence[tuple[float, float]]) -> Line:
    """The line with the least squares through (nodes, cost) points, two or more."""
    fit = statistics.linear_regression(*zip(*points, strict=True))
    return Line(fit.intercept, fit.slope)


def measure(counts: Sequence[int], *, seconds: float) -> list[Point]:
    """A point for each number of nodes, ascending, on one Ray."""
    with tempfile.TemporaryDirectory(prefix="fleet-scale-") as folder:
        plan = adapters.plan_fleet(
            Path(folder), simulate=f"{max(counts)}x{DEVICES}", memory_bytes=MIB
        )
        plan = _quiet(plan)
        ray = cluster.local(Path(folder))
        nodes: list[RemoteNode] = []
        try:
            coordinator = handles.create_coordinator(
                plan.coordinator.model_dump_json(), host=cluster.LOCAL_HOST
            )
            coordinator.ping(timeout_s=60.0)
            return [_point(plan, nodes, count, coordinator, seconds) for count in counts]
        finally:
            ray.close()


def _quiet(plan: FleetPlan) -> FleetPlan:
    """No node wipes by itself: what is measured is Ray, not the workers."""
    members = []
    for one in plan.nodes:
        node = one.settings.node.model_copy(update={"idle_delay_s": 86_400.0})
        settings = one.settings.model_copy(update={"node": node})
        members.append(one.model_copy(update={"settings": settings}))
    return plan.model_copy(update={"nodes": tuple(members)})


def _point(
    plan: FleetPlan,
    nodes: list[RemoteNode],
    count: int,
    coordinator: RemoteCoordinator,
    seconds: float,
) -> Point:
    began, new = time.perf_counter(), plan.nodes[len(nodes) : count]
    for one in new:
        assignment = handles.assign(one.node, one.model_dump_json(), host=cluster.LOCAL_HOST)
        nodes.append(handles.create_node(assignment))
    handles.await_serving(nodes, timeout_s=START_S)
    start_s = time.perf_counter() - began
    pids = [node.ping(timeout_s=60.0).pid for node in nodes]
    started = pids[-len(new) :]
    start_cpu_s = sum(map(grounds.cpu_s, started))
    fan = RayNodes(nodes, view_timeout_s=60.0)
    before = sum(map(grounds.cpu_s, pids))
    wall_ms, cpu_ms = _timed(lambda: _asked(fan))
    calls_s = sum(map(grounds.cpu_s, pids)) - before
    texts = [view.model_dump_json() for view in _asked(fan)]
    _, reading_ms = _timed(lambda: [NodeView.model_validate_json(text) for text in texts])
    driven = leases.drive(coordinator, f"with{count}", batch=DEVICES, seconds=seconds)
    return Point(
        nodes=count,
        start_s_per_actor=start_s / len(new),
        start_cpu_s_per_actor=start_cpu_s / len(new),
        actor_mib=statistics.median(map(grounds.resident_bytes, pids)) / MIB,
        round_ms=wall_ms,
        round_cpu_ms=cpu_ms,
        reading_cpu_ms=reading_ms,
        actor_cpu_ms_per_call=1000 * calls_s / (ROUNDS * count),
        leased_devices_per_s=driven.devices / driven.elapsed_s,
    )


def _asked(fan: RayNodes) -> list[NodeView]:
    found = []
    for name, view in fan.views({}).items():
        if isinstance(view, FleetError):
            raise view
        assert view.node == name
        found.append(view)
    return found


def _timed(act: Callable[[], object]) -> tuple[float, float]:
    """Medians of wall and of this process's processor time, milliseconds."""
    wall, cpu = [], []
    for _ in range(ROUNDS):
        began, spent = time.perf_counter(), time.process_time()
        act()
        wall.append(1000 * (time.perf_counter() - began))
        cpu.append(1000 * (time.process_time() - spent))
    return statistics.median(wall), statistics.median(cpu)


def render(points: Sequence[Point]) -> str:
    """A line for each point, then the law held against the last one."""
    lines = [
        f"{one.nodes:4} actors: start {one.start_s_per_actor:5.2f} s wall,"
        f" {one.start_cpu_s_per_actor:5.2f} s CPU, {one.actor_mib:5.1f} MiB each;"
        f" a round {one.round_ms:7.1f} ms wall, {one.round_cpu_ms:7.1f} ms CPU of the driver"
        f" ({one.reading_cpu_ms:.1f} of it reading), {one.actor_cpu_ms_per_call:.2f} ms CPU of each"
        f" actor; {one.leased_devices_per_s:.0f} devices/s leased\n"
        for one in points
    ]
    *fitted, last = points
    for what in ("round_ms", "round_cpu_ms", "reading_cpu_ms") if len(fitted) > 1 else ():
        line = through([(one.nodes, getattr(one, what)) for one in fitted])
        said, seen = line.at(last.nodes), getattr(last, what)
        lines.append(
            f"{what:15} = {line}: for {last.nodes} nodes {said:.1f}, measured {seen:.1f}"
            f" ({100 * (seen / said - 1):+.0f} %)\n"
        )
    return "".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; 0 unless the measurement cannot run."""
    parser = argparse.ArgumentParser(prog="python -m tests.scale.actors", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 8, 24, 64])
    parser.add_argument("--seconds", type=float, default=3.0, help="of leasing at each number")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    os.environ.setdefault("RAY_maximum_startup_concurrency", "4")
    try:
        points = measure(sorted(set(chosen.nodes)), seconds=chosen.seconds)
    except (OSError, FleetError) as error:
        sys.stderr.write(f"the measurement cannot run: {error}\n")
        return 2
    documents = json.dumps([asdict(one) for one in points]) + "\n"
    sys.stdout.write(documents if chosen.json else render(points))
    return 0


if __name__ == "__main__":
    sys.exit(main())
