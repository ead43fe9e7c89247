"""Many claims at once on a large twin fleet, with what that costs."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fleet.kube.base import Name
from tests.twin.faults import FaultyCluster
from tests.twin.wiping import steady
from tests.twin.world import Plan, World

BATCH, BATCH_S = 10, 0.1
"""Pods made at once, and the time, s, between two batches: 100 pods a second."""


@dataclass(frozen=True, slots=True)
class Bill:
    """What `claims` claims cost, from the first pod until nothing is left of any."""

    claims: int
    ran: bool
    """Whether all pods ran at the same time."""
    left: tuple[str, ...]
    exposures: int
    looks: float
    """Decisions of the coordinator per claim."""
    coordinator_ms: float
    """CPU time of the coordinator per claim, the API in memory included."""
    writes: dict[str, float]
    """Writes of coordinator and plugins per claim, by verb and kind."""
    spent_s: float
    """CPU time of the whole world."""


def bill(claims: int, *, nodes: int, devices: int = 8) -> Bill:
    """Run one pod with one claim of one device for each of `claims`, then delete them all."""
    plan = Plan(seed=7, nodes=nodes, devices=devices, period_s=0.25, measured=True)
    world = World(plan, fates=steady())
    world.run(20.0)
    for client in _clients(world):
        client.counts.clear()
    pods: list[Name] = []

    def make() -> None:
        pods.extend(world.pod() for _ in range(min(BATCH, claims - len(pods))))
        if len(pods) < claims:
            world.timeline.after(BATCH_S, make)

    with _undisturbed():
        begun = time.process_time()
        make()
        ran = world.run(300.0, lambda: world.checker.exposures >= claims and world.running(*pods))
        left = world.settle(300.0)
        spent_s = time.process_time() - begun
    chief = world.chiefs[0]
    total: Counter[str] = Counter()
    for client in _clients(world):
        total.update({what: count for what, count in client.counts.items() if " " in what})
    return Bill(
        claims,
        ran,
        tuple(left),
        world.checker.exposures,
        chief.binder.looked_at / claims,
        1000.0 * chief.spent_s / claims,
        {what: count / claims for what, count in total.items()},
        spent_s,
    )


def _clients(world: World) -> Iterator[FaultyCluster]:
    for owner in (world.chiefs[0].means.cluster, *(p.cluster for p in world.plugins.values())):
        assert isinstance(owner, FaultyCluster)
        yield owner


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Without the collector, which walks the whole world again and again and is no cost of ours."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
