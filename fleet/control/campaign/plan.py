"""What to start next, and what a whole campaign would look like. Pure and deterministic.

There are no fixed waves at run time: `next_batch` is asked at every step, so a device that is done
frees its slot at once and a slow one holds back nobody. `plan` runs the same function to its end,
for `--dry-run`.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from fleet.control.campaign import budget
from fleet.control.campaign.budget import Service
from fleet.control.campaign.targets import Target
from fleet.core.settings import CampaignPolicy


@dataclass(frozen=True, slots=True)
class Waves:
    """Waves of a campaign if every wave ended before the next one began."""

    waves: tuple[tuple[Target, ...], ...]
    blocked: tuple[Target, ...] = ()
    """Targets no wave can start while limits and the fleet stay as they are."""


class Line:
    """Targets that wait, by node; the node with the least in work comes first.

    Kept from step to step: the order is that of a heap whose outdated entries are left in and
    passed over, so that a step costs what it starts, not what waits.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, Target]] = {}
        self._load: Counter[str] = Counter()
        self._heap: list[tuple[int, str]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def nodes(self) -> Collection[str]:
        """Nodes on which something waits."""
        return self._waiting.keys()

    def on(self, node: str) -> list[Target]:
        """What waits on a node, in order."""
        return sorted(self._waiting.get(node, {}).values())

    def add(self, target: Target) -> None:
        """It waits."""
        self._waiting.setdefault(target.node, {})[target.uuid] = target
        self._push(target.node)

    def remove(self, target: Target) -> None:
        """It waits no more."""
        left = self._waiting.get(target.node, {})
        left.pop(target.uuid, None)
        if not left:
            self._waiting.pop(target.node, None)

    def load(self, node: str, by: int) -> None:
        """So many more of the node's devices are in work."""
        self._load[node] += by
        self._push(node)

    def batch(
        self, room: Room, most: int | None, ready: Callable[[Target], bool]
    ) -> tuple[Target, ...]:
        """What may start now; the line itself stays as it is. Takes the room of what it returns."""
        found: list[Target] = []
        taken: dict[str, set[str]] = {}
        passed: set[str] = set()
        heap, narrow = self._heap, False
        while not room.full and (most is None or len(found) < most):
            if room.spent and not narrow:
                # Only what is out of service already may start: a few nodes, not the whole line.
                narrow, heap = True, self._entries(room.out_on(), taken, passed)
            if not heap:
                break
            load, node = heapq.heappop(heap)
            mine = taken.get(node, set())
            if node in passed or load != self._load[node] + len(mine):
                continue
            fitting = (t for t in self.on(node) if t.uuid not in mine and ready(t) and room.fits(t))
            chosen = next(fitting, None)
            if chosen is None:
                passed.add(node)
                continue
            room.take(chosen)
            found.append(chosen)
            taken.setdefault(node, set()).add(chosen.uuid)
            heapq.heappush(heap, (load + 1, node))
        for node in passed | taken.keys():
            self._push(node)
        return tuple(found)

    def _entries(
        self, nodes: Iterable[str], taken: Mapping[str, set[str]], passed: Collection[str]
    ) -> list[tuple[int, str]]:
        found = [
            (self._load[node] + len(taken.get(node, ())), node)
            for node in set(nodes)
            if node in self._waiting and node not in passed
        ]
        heapq.heapify(found)
        return found

    def _push(self, node: str) -> None:
        if node not in self._waiting:
            return
        heapq.heappush(self._heap, (self._load[node], node))
        if len(self._heap) > 4 * len(self._waiting) + 64:
            self._heap = self._entries(self._waiting, {}, ())


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
    line = Line()
    for target in pending:
        line.add(target)
    for target in running:
        line.load(target.node, 1)
    return line.batch(Room(running, service, policy), most, _always)


class Room:
    """What is left of every limit while a batch is put together."""

    def __init__(
        self, running: Collection[Target], service: Service, policy: CampaignPolicy
    ) -> None:
        self._policy = policy
        self._most_out = budget.limit(service, policy)
        self._service = service
        self._out = set(service.out)
        self._floors = budget.Floors(service, policy.pool_floor)
        self._total = 0
        self._per_node: Counter[str] = Counter()
        self._per_rack: Counter[str] = Counter()
        for target in running:
            self.take(target)

    @property
    def full(self) -> bool:
        """Whether as much is in work as may be."""
        return self._total >= self._policy.max_parallel

    @property
    def spent(self) -> bool:
        """Whether nothing may start that is not out of service already."""
        return len(self._out) >= self._most_out

    def out_on(self) -> set[str]:
        """Nodes with an accelerator that is out of service or in work."""
        known = self._service.accelerators
        return {known[uuid].node for uuid in self._out if uuid in known} | self._per_node.keys()

    def take(self, target: Target) -> None:
        """Count a target as started."""
        self._total += 1
        self._per_node[target.node] += 1
        self._per_rack[_rack(target)] += 1
        self._out.add(target.accelerator)
        self._floors.take(target.accelerator)

    def fits(self, target: Target) -> bool:
        """Whether starting it keeps every limit."""
        policy = self._policy
        return (
            not self.full
            and self._per_node[target.node] < policy.max_parallel_per_node
            and self._per_rack[_rack(target)] < policy.max_parallel_per_rack
            and (target.accelerator in self._out or not self.spent)
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
    line = Line()
    for target in sorted(targets):
        line.add(target)
    for target in running:
        line.load(target.node, 1)
    waves: list[tuple[Target, ...]] = []
    while batch := line.batch(Room(running if not waves else (), service, policy), None, _always):
        if not waves:
            for target in running:
                line.load(target.node, -1)
        waves.append(batch)
        for target in batch:
            line.remove(target)
    return Waves(tuple(waves), tuple(t for node in sorted(line.nodes) for t in line.on(node)))


def _always(_: Target) -> bool:
    return True
