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
from dataclasses import dataclass
from enum import Enum
from math import ceil, floor

from fleet.campaign.targets import POOL, RACK
from fleet.messages import NodeView
from fleet.model import State
from fleet.settings import CampaignPolicy


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


@dataclass(frozen=True, slots=True)
class Service:
    """What the fleet offers its tenants now, by accelerator UUID."""

    accelerators: Mapping[str, Accelerator]


def in_service(views: Iterable[NodeView]) -> Service:
    """The service view of these nodes. Nodes that do not answer keep their last view in it."""
    found: dict[str, Accelerator] = {}
    for view in views:
        rack, pool = view.labels.get(RACK, ""), view.labels.get(POOL, "")
        states: dict[str, set[str]] = {}
        for device in view.devices:
            states.setdefault(device.accelerator, set()).add(device.state)
        for uuid, seen in states.items():
            found[uuid] = Accelerator(view.node, rack, pool, _standing(seen))
    return Service(found)


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
    out = {uuid for uuid, a in service.accelerators.items() if a.standing is Standing.OUT}
    return frozenset(out | set(running))


class Floors:
    """How many more serving accelerators each pool can spare.

    `least`: fraction of its healthy ones that must go on serving.
    """

    def __init__(self, service: Service, least: float) -> None:
        self._pools: dict[str, str] = {}
        healthy: Counter[str] = Counter()
        serving: Counter[str] = Counter()
        for uuid, accelerator in service.accelerators.items():
            if accelerator.standing in (Standing.SERVING, Standing.IDLE):
                healthy[accelerator.pool] += 1
            if accelerator.standing is Standing.SERVING:
                serving[accelerator.pool] += 1
                self._pools[uuid] = accelerator.pool
        self._spare = {pool: serving[pool] - ceil(least * healthy[pool]) for pool in healthy}

    def allow(self, uuid: str) -> bool:
        """Whether it may be taken. One that serves nobody costs the pool nothing."""
        pool = self._pools.get(uuid)
        return pool is None or self._spare[pool] > 0

    def take(self, uuid: str) -> None:
        """Count it as taken; twice is once."""
        pool = self._pools.pop(uuid, None)
        if pool is not None:
            self._spare[pool] -= 1
