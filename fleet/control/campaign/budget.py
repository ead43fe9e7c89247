"""How much of the fleet may be out of service because of us: one budget for all causes. Pure.

Decisions (case B50):

1. The denominator is the accelerators the nodes report. Nodes without any do not change it.
2. Scrub, quarantine and reset share the budget, and a device counts once, whatever the causes.
   Devices whose holder is unknown (HELD) are not out of service because of us.
3. Only starts are limited. Nothing that brings a device back is ever held up.
4. Small fleets move: a stated minimum is always allowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from math import ceil, floor

from fleet.control.campaign.targets import POOL, RACK
from fleet.core.messages import NodeView
from fleet.core.model import State
from fleet.core.settings import CampaignPolicy


class Standing(Enum):
    """What an accelerator is to the tenants right now."""

    SERVING = "serving"
    """Clean or in use: taking it away is felt."""
    IDLE = "idle"
    """Not clean yet: nobody can have it anyway."""
    OUT = "out"
    """Quarantined or under retest: out of service because of us."""
    HELD = "held"
    """Holder unknown: not ours to count."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One physical accelerator as planning sees it."""

    node: str
    rack: str
    pool: str
    standing: Standing


class Service:
    """What the fleet offers its tenants now, by accelerator UUID.

    Kept up to date view by view, with the counts that every step asks for: a step of the campaign
    must not cost more the larger the fleet is.
    """

    def __init__(self, accelerators: Mapping[str, Accelerator] | None = None) -> None:
        self._accelerators: dict[str, Accelerator] = {}
        self._of_node: dict[str, tuple[str, ...]] = {}
        self._out: set[str] = set()
        self._healthy: Counter[str] = Counter()
        self._serving: Counter[str] = Counter()
        for uuid, accelerator in (accelerators or {}).items():
            self._put(uuid, accelerator)

    @property
    def accelerators(self) -> Mapping[str, Accelerator]:
        """Every accelerator that the nodes report."""
        return self._accelerators

    @property
    def out(self) -> AbstractSet[str]:
        """Those that are out of service because of us."""
        return self._out

    def standing(self, uuid: str) -> Standing | None:
        """What the accelerator is to the tenants; None for one that nobody reports."""
        found = self._accelerators.get(uuid)
        return None if found is None else found.standing

    def spare(self, least: float) -> dict[str, int]:
        """Serving accelerators that each pool can miss, when `least` of its healthy ones stay."""
        return {
            pool: self._serving[pool] - ceil(least * healthy)
            for pool, healthy in self._healthy.items()
        }

    def update(self, view: NodeView) -> None:
        """Take in a node's newest view; what it does not show any more is gone."""
        rack, pool = view.labels.get(RACK, ""), view.labels.get(POOL, "")
        states: dict[str, set[str]] = {}
        for device in view.devices:
            states.setdefault(device.accelerator, set()).add(device.state)
        for uuid in self._of_node.get(view.node, ()):
            ours = self._accelerators.get(uuid)
            if uuid not in states and ours is not None and ours.node == view.node:
                self._drop(uuid)
        for uuid, seen in states.items():
            found, known = _standing(seen), self._accelerators.get(uuid)
            same = known is not None and (known.node, known.standing) == (view.node, found)
            if not same or known is None or (known.rack, known.pool) != (rack, pool):
                self._put(uuid, Accelerator(view.node, rack, pool, found))
        self._of_node[view.node] = tuple(states)

    def _put(self, uuid: str, accelerator: Accelerator) -> None:
        self._drop(uuid)
        self._accelerators[uuid] = accelerator
        self._count(uuid, accelerator, 1)

    def _drop(self, uuid: str) -> None:
        known = self._accelerators.pop(uuid, None)
        if known is not None:
            self._count(uuid, known, -1)

    def _count(self, uuid: str, accelerator: Accelerator, by: int) -> None:
        if accelerator.standing in (Standing.SERVING, Standing.IDLE):
            self._healthy[accelerator.pool] += by
        if accelerator.standing is Standing.SERVING:
            self._serving[accelerator.pool] += by
        if accelerator.standing is Standing.OUT:
            (self._out.add if by > 0 else self._out.discard)(uuid)


def in_service(views: Iterable[NodeView]) -> Service:
    """The service view of these nodes."""
    found = Service()
    for view in views:
        found.update(view)
    return found


def _standing(states: set[str]) -> Standing:
    """The standing of an accelerator whose devices are in these states; the worst one counts."""
    if states & {State.QUARANTINED, State.RETESTING}:
        return Standing.OUT
    if State.HELD in states:
        return Standing.HELD
    return Standing.SERVING if states & {State.CLEAN, State.IN_USE} else Standing.IDLE


def limit(service: Service, policy: CampaignPolicy) -> int:
    """Accelerators that may be out of service because of us at one time.

    Whole devices, rounded down: percents are too coarse for hundreds of nodes, and rounding up
    would exceed what the operator allowed; the minimum keeps small fleets moving.
    """
    allowed = floor(policy.out_of_service_max * len(service.accelerators))
    return max(allowed, policy.out_of_service_min)


def used(service: Service, running: Iterable[str]) -> frozenset[str]:
    """Accelerators that count against the budget: those out, and those with a wipe of ours."""
    return frozenset(service.out | set(running))


class Floors:
    """How many more serving accelerators each pool can spare.

    `least`: fraction of its healthy ones that must go on serving.
    """

    def __init__(self, service: Service, least: float) -> None:
        self._service = service
        self._spare = service.spare(least)
        self._taken: set[str] = set()

    def allow(self, uuid: str) -> bool:
        """Whether it may be taken. One that serves nobody costs the pool nothing."""
        pool = self._pool(uuid)
        return pool is None or self._spare[pool] > 0

    def take(self, uuid: str) -> None:
        """Count it as taken; twice is once."""
        pool = self._pool(uuid)
        if pool is not None:
            self._spare[pool] -= 1
            self._taken.add(uuid)

    def _pool(self, uuid: str) -> str | None:
        """The pool that misses it when it is taken."""
        found = self._service.accelerators.get(uuid)
        if found is None or found.standing is not Standing.SERVING or uuid in self._taken:
            return None
        return found.pool
