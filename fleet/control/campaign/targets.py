"""Which devices a campaign works on: choosing among overlapping devices, and what each is. Pure.

A whole accelerator is wiped as one wherever nobody uses a part of it. Where a tenant holds a
partition, the free partitions beside it are wiped one by one and the rest is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fleet.core.messages import DeviceView, NodeView
from fleet.core.model import State, Token

RACK, POOL = "rack", "pool"
"""Node labels that planning reads; a node without one counts as a rack or pool of no name."""


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """One device a campaign has to bring to an outcome, with all that planning needs."""

    node: str
    name: str
    uuid: str
    accelerator: str
    units: frozenset[str]
    memory_bytes: int
    floor: Token
    state: str
    rack: str = ""
    pool: str = ""


def in_use(device: DeviceView) -> bool:
    """Whether a claim holds the device itself."""
    return bool(device.claim) or device.state == State.IN_USE


def target_of(view: NodeView, device: DeviceView) -> Target:
    """The target a device view describes."""
    return Target(
        node=view.node,
        name=device.name,
        uuid=device.uuid,
        accelerator=device.accelerator,
        units=frozenset(device.units),
        memory_bytes=device.memory_bytes,
        floor=Token.parse(device.floor),
        state=device.state,
        rack=view.labels.get(RACK, ""),
        pool=view.labels.get(POOL, ""),
    )


def choose(view: NodeView, wanted: Callable[[DeviceView], bool]) -> tuple[DeviceView, ...]:
    """Devices of a node that together cover what is wanted, none overlapping another.

    Largest first. A device that is partly used gives way to its wanted free parts; one that is
    wholly used is chosen as it is, so that the report names it.
    """
    used = [device for device in view.devices if in_use(device)]
    busy_units = {unit for device in _smallest(used) for unit in device.units}
    candidates = sorted(
        (device for device in view.devices if wanted(device)),
        key=lambda device: (-len(device.units), device.name, device.uuid),
    )
    taken: set[str] = set()
    chosen: list[DeviceView] = []
    for device in candidates:
        units = set(device.units)
        if units & taken:
            continue
        if units & busy_units and _has_free_part(units, candidates, busy_units):
            continue
        taken |= units
        chosen.append(device)
    return tuple(sorted(chosen, key=lambda device: (device.name, device.uuid)))


def touched(view: NodeView, target: Target) -> bool:
    """Whether a claim holds any device that shares a unit with the target now."""
    return any(
        in_use(device) and target.units.intersection(device.units)
        for device in _smallest([device for device in view.devices if in_use(device)])
    )


def _smallest(used: Sequence[DeviceView]) -> Iterable[DeviceView]:
    """Used devices that contain no smaller used one: a parent only mirrors its children's use."""
    for device in used:
        units = set(device.units)
        if not any(set(other.units) < units for other in used):
            yield device


def _has_free_part(units: set[str], candidates: Sequence[DeviceView], busy_units: set[str]) -> bool:
    return any(
        set(part.units) < units and not busy_units.intersection(part.units) for part in candidates
    )
