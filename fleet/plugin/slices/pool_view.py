"""How a reader judges a pool: the highest generation, whether it is complete, what it says. Pure.

Slices of a lower generation do not exist for a reader, however many there are (B73). A pool that is
incomplete or contradicts itself is good for one thing only: what it shows tainted is tainted.
Whoever needs all of it, or needs a device to be free, has to wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet.kube.base import Object, object_in, objects_in
from fleet.plugin.slices import counters

BLOCKING = frozenset({"NoSchedule", "NoExecute"})
"""Effects that keep a device from being allocated."""


@dataclass(frozen=True, slots=True)
class PoolReading:
    """A pool at its highest generation."""

    driver: str
    pool: str
    generation: int
    slices: tuple[Object, ...]
    trouble: str
    """Why the pool is incomplete or contradicts itself; "" when it can be relied on."""
    devices: Mapping[str, tuple[Object, ...]]
    """All entries seen by device name; more than one is a contradiction."""

    @property
    def complete(self) -> bool:
        """Whether decisions that need the whole pool may be based on this reading."""
        return not self.trouble

    def taint(self, device: str, key: str) -> Object | None:
        """The taint of this key on any entry of the device."""
        for entry in self.devices.get(device, ()):
            for taint in objects_in(entry.get("taints")):
                if taint.get("key") == key:
                    return dict(taint)
        return None

    def allocatable(self, device: str) -> bool | None:
        """Whether a scheduler may allocate the device; None: the pool does not tell.

        False as soon as one entry is tainted, complete or not; True only in a complete pool.
        """
        entries = self.devices.get(device, ())
        if any(blocked(entry) for entry in entries):
            return False
        if not self.complete:
            return None
        return bool(entries)


def blocked(device: Object) -> bool:
    """Whether a taint keeps the device from being allocated."""
    taints = device.get("taints") or []
    readable = objects_in(taints)
    if not isinstance(taints, list) or len(readable) != len(taints):
        return True  # who cannot read a taint must not take the device for free
    return any(str(taint.get("effect")) in BLOCKING for taint in readable)


def read_pools(slices: Iterable[Object]) -> Mapping[tuple[str, str], PoolReading]:
    """All pools of these slices by (driver, pool name)."""
    groups: dict[tuple[str, str], list[Object]] = {}
    for found in slices:
        key = (str(spec_of(found).get("driver", "")), pool_name(found))
        groups.setdefault(key, []).append(found)
    return {key: _read(key, group) for key, group in groups.items()}


def spec_of(found: Object) -> Object:
    """What the slice says; {} for one that says nothing readable."""
    return object_in(found.get("spec"))


def _pool(found: Object) -> Object:
    return object_in(spec_of(found).get("pool"))


def pool_name(found: Object) -> str:
    """Name of the slice's pool."""
    return str(_pool(found).get("name", ""))


def generation(found: Object) -> int:
    """Pool generation a slice belongs to; 0 when it tells none."""
    value = _pool(found).get("generation")
    return value if isinstance(value, int) else 0


def slice_count(found: Object) -> int:
    """How many slices the slice says its pool has."""
    value = _pool(found).get("resourceSliceCount")
    return value if isinstance(value, int) else 0


def devices_of(found: Object) -> Sequence[Object]:
    """The devices of a slice."""
    return objects_in(spec_of(found).get("devices"))


def carries_counters(found: Object) -> bool:
    """Whether it is a slice of counter sets, which has no devices."""
    return bool(spec_of(found).get("sharedCounters"))


def _given(found: Object) -> Sequence[object]:
    given = spec_of(found).get("devices") or []
    return given if isinstance(given, list) else [given]


def newest_entries(slices: Iterable[Object]) -> dict[str, Object]:
    """The devices of `slices` by name; of several entries that of the highest generation."""
    found: dict[str, Object] = {}
    for part in sorted(slices, key=generation, reverse=True):
        for entry in devices_of(part):
            found.setdefault(str(entry.get("name")), entry)
    return found


def _read(key: tuple[str, str], group: Sequence[Object]) -> PoolReading:
    top = max(map(generation, group))
    current = tuple(found for found in group if generation(found) == top)
    devices: dict[str, tuple[Object, ...]] = {}
    for found in current:
        for device in devices_of(found):
            name = str(device.get("name", ""))
            devices[name] = (*devices.get(name, ()), device)
    return PoolReading(
        driver=key[0],
        pool=key[1],
        generation=top,
        slices=current,
        trouble=_trouble(current, devices),
        devices=devices,
    )


def _trouble(current: Sequence[Object], devices: Mapping[str, tuple[Object, ...]]) -> str:
    counts = {slice_count(found) for found in current}
    if counts != {len(current)}:
        asked = ", ".join(str(count) for count in sorted(counts))
        return f"{len(current)} slices of {asked} are there"
    unreadable = sum(len(_given(found)) - len(devices_of(found)) for found in current)
    if unreadable:
        return f"{unreadable} devices cannot be read"
    twice = sorted(name for name, entries in devices.items() if len(entries) > 1)
    if twice:
        return f"devices named twice: {', '.join(twice)}"
    there = counters.offered_keys(current)
    loose = sorted(
        name
        for name, entries in devices.items()
        if any(not counters.keys(entry) <= there for entry in entries)
    )
    return f"no counters are there for: {', '.join(loose)}" if loose else ""
