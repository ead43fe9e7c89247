"""What to start next, and what a whole campaign would look like. Pure and deterministic.

There are no fixed waves at run time: `next_batch` is asked at every step, so a device that is done
frees its slot at once and a slow one holds back nobody. `plan` runs the same function to its end,
for `--dry-run`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from fleet.campaign import budget
from fleet.campaign.budget import Service
from fleet.campaign.targets import Target
from fleet.settings import CampaignPolicy


@dataclass(frozen=True, slots=True)
class Waves:
    """Waves of a campaign if every wave ended before the next one began."""

    waves: tuple[tuple[Target, ...], ...]
    blocked: tuple[Target, ...] = ()
    """Targets no wave can start while limits and the fleet stay as they are."""


def next_batch(
    pending: Collection[Target],
    running: Collection[Target],
    service: Service,
    policy: CampaignPolicy,
    *,
    most: int | None = None,
) -> tuple[Target, ...]:
    """Targets that may start now, spread across nodes first. `most`: at most so many (the breaker).

    Never breaks a limit, whatever is running already; returns nothing when nothing may start.
    """
    room = _Room(running, service, policy)
    queues: dict[str, list[Target]] = {}
    for target in sorted(pending):
        queues.setdefault(target.node, []).append(target)
    batch: list[Target] = []
    while most is None or len(batch) < most:
        nodes = sorted(queues, key=lambda node: (room.per_node[node], node))
        chosen = next((t for node in nodes for t in queues[node] if room.fits(t)), None)
        if chosen is None:
            break
        queues[chosen.node].remove(chosen)
        room.take(chosen)
        batch.append(chosen)
    return tuple(batch)


class _Room:
    """What is left of every limit while a batch is put together."""

    def __init__(
        self, running: Collection[Target], service: Service, policy: CampaignPolicy
    ) -> None:
        self._policy = policy
        self._most_out = budget.limit(service, policy)
        self._out = set(budget.used(service, ()))
        self._floors = budget.Floors(service, policy.pool_floor)
        self._total = 0
        self.per_node: Counter[str] = Counter()
        self._per_rack: Counter[str] = Counter()
        for target in running:
            self.take(target)

    def take(self, target: Target) -> None:
        """Count a target as started."""
        self._total += 1
        self.per_node[target.node] += 1
        self._per_rack[_rack(target)] += 1
        self._out.add(target.accelerator)
        self._floors.take(target.accelerator)

    def fits(self, target: Target) -> bool:
        """Whether starting it keeps every limit."""
        policy = self._policy
        return (
            self._total < policy.max_parallel
            and self.per_node[target.node] < policy.max_parallel_per_node
            and self._per_rack[_rack(target)] < policy.max_parallel_per_rack
            and (target.accelerator in self._out or len(self._out) < self._most_out)
            and self._floors.allow(target.accelerator)
        )


def _rack(target: Target) -> str:
    """Nodes whose rack nobody named each count as a rack of their own."""
    return target.rack or f"node {target.node}"


def plan(
    targets: Collection[Target],
    service: Service,
    policy: CampaignPolicy,
    *,
    running: Collection[Target] = (),
) -> Waves:
    """The waves of a campaign over `targets`, as the fleet stands now."""
    left = set(targets)
    waves: list[tuple[Target, ...]] = []
    while batch := next_batch(left, running if not waves else (), service, policy):
        waves.append(batch)
        left -= set(batch)
    return Waves(tuple(waves), tuple(sorted(left)))
