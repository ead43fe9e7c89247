"""How a partitioned GPU is cut into units and devices, from its table of profiles. Pure.

One unit per memory slice, all of them together the whole memory. Devices are the accelerator
itself and one per profile and placement, under UUIDs of ours: the driver's own MIG-UUID lives only
as long as an instance. A profile whose one placement takes everything has no device of its own
where it is the way to reach the accelerator: that is the accelerator.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet.core.model import Accelerator, Device, UnitId, UnitSpec, Uuid

NONE = 0xFFFFFFFF
"""What NVML says for "no instance": of a process, or of an event of the whole GPU."""
PARTS = "PART-"
"""How the UUID of a partition begins: those are ours, not the driver's."""
MEMORY_HEALTH = "DRAM errors and row remapping are told of the whole GPU only"
"""For certificates: no driver tells them of one instance."""
_NAMESPACE = uuid.UUID("c3a5a1c2-6a57-5c0d-9a34-0f6f1f0b7d6e")
_GIB = 1 << 30
_MIB = 1 << 20
_EIGHTHS = 8
_PREFIX = "MIG "
_VARIANTS = {
    0x7: "+me",
    0x8: "+me",
    0xA: "+gfx",
    0xB: "+gfx",
    0xC: "+gfx",
    0xD: "-me",
    0xE: "-me",
    0xF: "+me.all",
    0x10: "+me.all",
    0x11: "+gfx",
}
"""What tells profiles of one size apart, by NVML's number: media engines, graphics."""


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """Where an instance lies, in memory slices."""

    start: int
    size: int

    def __str__(self) -> str:
        return f"{self.start}:{self.size}"

    @property
    def slices(self) -> range:
        return range(self.start, self.start + self.size)


@dataclass(frozen=True, slots=True)
class Profile:
    """One row of the driver's table: a kind of GPU instance."""

    name: str
    """As ``1g.10gb`` or ``1g.10gb+me``: unique on its GPU."""
    id: int
    """What the driver's calls want; not the number the table is walked by."""
    compute_slices: int
    memory_bytes: int
    """What the driver says an instance has: usually less than its slices of the whole."""
    placements: tuple[Placement, ...]
    engines: Mapping[str, int]
    """Counts of what else an instance has: multiprocessors, copy engines, decoders ..."""

    @property
    def memory_slices(self) -> int:
        return max((placement.size for placement in self.placements), default=0)


def profile_name(said: str, *, number: int, slices: int, memory_mib: int, total_bytes: int) -> str:
    """The profile's name: what the driver calls it or, of an old one without names, what it would.

    `number` is that of NVML's walk. The driver counts memory in eighths of the whole, rounded up.
    """
    told = said.removeprefix(_PREFIX).strip()
    if told:
        return told
    share = -(-memory_mib * _MIB * _EIGHTHS // total_bytes) if total_bytes else 0
    whole_gib = -(-total_bytes // _GIB)
    return f"{slices}g.{round(share * whole_gib / _EIGHTHS)}gb{_VARIANTS.get(number, '')}"


def slices(profiles: Iterable[Profile]) -> int:
    """How many memory slices the GPU has: where the last placement ends."""
    ends = [p.start + p.size for profile in profiles for p in profile.placements]
    return max(ends, default=0)


def units(gpu: Uuid, total_bytes: int, count: int) -> tuple[UnitSpec, ...]:
    """`count` units that cover `total_bytes` exactly, as equal as whole bytes allow."""
    edges = [index * total_bytes // count for index in range(count + 1)]
    return tuple(
        UnitSpec(unit(gpu, index), edges[index + 1] - edges[index], edges[index])
        for index in range(count)
    )


def unit(gpu: Uuid, index: int) -> UnitId:
    """The unit that is memory slice `index`."""
    return UnitId(f"{gpu}/m{index}")


def units_of(gpu: Uuid, placement: Placement, count: int) -> tuple[UnitId, ...]:
    """The units of a placement, as far as the GPU has them; of one outside of it all."""
    found = tuple(unit(gpu, index) for index in placement.slices if 0 <= index < count)
    return found or tuple(unit(gpu, index) for index in range(count))


def entire(profiles: Sequence[Profile]) -> tuple[Profile, Placement] | None:
    """Through what the whole accelerator is reached: the profile that takes all memory slices.

    Of several the one with most compute slices, plain before special. None: no profile does, and
    the accelerator cannot be reached as a whole while it is partitioned.
    """
    everything = Placement(0, slices(profiles))
    full = [p for p in profiles if everything.size and everything in p.placements]
    if not full:
        return None
    chosen = min(full, key=lambda p: (-p.compute_slices, len(p.name), p.name))
    return chosen, everything


def part_uuid(gpu: Uuid, profile: str, start: int) -> Uuid:
    """The partition's UUID: the same for ever, whether it exists now or not."""
    return Uuid(f"{PARTS}{uuid.uuid5(_NAMESPACE, f'{gpu}/{profile}/{start}')}")


def undivided(
    gpu: Uuid, name: str, *, total_bytes: int, attributes: Mapping[str, str]
) -> Accelerator:
    """An accelerator without partitions: one unit, one device."""
    only = UnitSpec(UnitId(f"{gpu}/all"), total_bytes)
    facts = {**attributes, "partitionable": "false"}
    return Accelerator(gpu, (only,), (Device(gpu, name, gpu, (only.id,), total_bytes, "", facts),))


def divided(
    gpu: Uuid,
    name: str,
    *,
    total_bytes: int,
    profiles: Sequence[Profile],
    attributes: Mapping[str, str],
) -> Accelerator:
    """A partitioned accelerator: a unit per slice, the whole and a device per placement.

    Raises ValueError for a table without placements.
    """
    count = slices(profiles)
    if not count:
        raise ValueError(f"{name} has no profile with a placement")
    specs = units(gpu, total_bytes, count)
    way = entire(profiles)
    whole = Device(
        uuid=gpu,
        name=name,
        accelerator=gpu,
        units=tuple(spec.id for spec in specs),
        memory_bytes=total_bytes,
        attributes={
            **attributes,
            "partitionable": "true",
            "memory_health": MEMORY_HEALTH,
            **({"instance_profile": way[0].name, "placement": str(way[1])} if way else {}),
        },
    )
    parts = [
        _part(whole, profile, placement, specs)
        for profile in profiles
        for placement in sorted(profile.placements)
        if (profile, placement) != way
    ]
    return Accelerator(gpu, specs, (whole, *parts))


def _part(
    whole: Device, profile: Profile, placement: Placement, specs: Sequence[UnitSpec]
) -> Device:
    sizes = {spec.id: spec.size_bytes for spec in specs}
    mine = units_of(whole.uuid, placement, len(specs))
    kept = {k: v for k, v in whole.attributes.items() if k not in _OF_THE_WHOLE}
    return Device(
        uuid=part_uuid(whole.uuid, profile.name, placement.start),
        name=f"{whole.name}-{_label(profile.name)}-{placement.start}",
        accelerator=whole.uuid,
        units=mine,
        memory_bytes=sum(sizes[unit_id] for unit_id in mine),
        profile=profile.name,
        attributes={
            **kept,
            "parent": whole.uuid,
            "placement": str(placement),
            "compute_slices": str(profile.compute_slices),
            "instance_memory_bytes": str(profile.memory_bytes),
            **{engine: str(count) for engine, count in profile.engines.items()},
        },
    )


_OF_THE_WHOLE = frozenset({"partitionable", "instance_profile"})


def _label(profile: str) -> str:
    """The profile within a device name: letters, digits and hyphens, and no two profiles alike."""
    spelled = profile.lower().replace("-", "-no-").replace("+", "-")
    return re.sub(r"[^a-z0-9-]", "-", spelled)


def placed(device: Device, profiles: Sequence[Profile]) -> tuple[Profile, Placement] | None:
    """By which profile and where an instance of the device is made; None: the GPU has no such."""
    if device.whole:
        return entire(profiles)
    for profile in profiles:
        for placement in profile.placements:
            if device.uuid == part_uuid(device.accelerator, profile.name, placement.start):
                return profile, placement
    return None


def device_of(
    gpu: Uuid, profile_id: int, placement: Placement, profiles: Sequence[Profile]
) -> Uuid | None:
    """The device with this profile and placement; None for a shape that the table does not have."""
    for profile in profiles:
        if profile.id == profile_id and placement in profile.placements:
            whole = (profile, placement) == entire(profiles)
            return gpu if whole else part_uuid(gpu, profile.name, placement.start)
    return None
