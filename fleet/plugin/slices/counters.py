"""Counters that keep the scheduler from giving the same memory away twice. Pure.

An accelerator and its partitions are offered side by side, and share memory. Each accelerator with
more than one device has a counter set ``<name of the accelerator>-memory`` with one counter of
value 1 for each of its units, and each of its devices consumes all counters of its units: of two
devices that share a unit the scheduler allocates one at most (KEP-4815).

The sets that a pool lists are made from what its devices consume, never from anything else. A
device that consumes what no set of its pool has would make the whole pool invalid for a scheduler,
and this way also one that is published from memory alone (lost, or of a node that is silent) has
its set.

An accelerator with one device has nothing to share, and one with more units than a set has counters
cannot be described: neither gets any. Safety rests on the node in any case, which refuses a device
whose memory somebody else has.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

from fleet.core.messages import DeviceView
from fleet.kube.base import Object, object_in, objects_in

SETS_MAX = 8
"""Counter sets of a slice: the server's limit."""
COUNTERS_MAX = 32
"""Counters of a set: the server's limit."""
_LABEL_MAX = 63
_SUFFIX = "-memory"
_DIGITS = 10
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")

Key = tuple[str, str]
"""Counter set and counter, within a pool."""


def consumption(
    devices: Iterable[DeviceView], names: Mapping[str, str]
) -> Mapping[str, list[Object]]:
    """`consumesCounters` of each device that shares an accelerator, by UUID.

    `names`: device name in the slice by UUID.
    """
    groups: dict[str, list[DeviceView]] = {}
    for device in devices:
        groups.setdefault(device.accelerator or device.uuid, []).append(device)
    found: dict[str, list[Object]] = {}
    for accelerator, group in groups.items():
        units = {unit for device in group for unit in device.units}
        if len(group) < 2 or len(units) > COUNTERS_MAX:
            continue
        name = _set_name(names.get(accelerator, ""), accelerator)
        for device in group:
            if device.units:
                counters = {_counter(unit): {"value": "1"} for unit in device.units}
                found[device.uuid] = [{"counterSet": name, "counters": counters}]
    return found


def sets(entries: Iterable[Object], *, offered: Iterable[Object]) -> tuple[Object, ...]:
    """The counter sets that `entries` consume, as far as one of `offered` consumes them, by name.

    `entries` holds `offered` and what else the accelerators have: a device that is withdrawn for
    a while changes no set, which would make the whole pool be written anew.
    """
    wanted = {name for entry in offered for name, _ in keys(entry)}
    found: dict[str, set[str]] = {}
    for entry in entries:
        for name, counter in keys(entry):
            found.setdefault(name, set()).add(counter)
    return tuple(
        {"name": name, "counters": {counter: {"value": "1"} for counter in sorted(found[name])}}
        for name in sorted(wanted)
    )


def keys(entry: Object) -> frozenset[Key]:
    """The counters a slice device consumes. Of ours each is consumed whole."""
    return frozenset(
        (str(one.get("counterSet", "")), str(counter))
        for one in objects_in(entry.get("consumesCounters"))
        for counter in object_in(one.get("counters"))
    )


def offered_keys(slices: Iterable[Object]) -> frozenset[Key]:
    """The counters that the sets of these slices have."""
    return frozenset(
        (str(found.get("name", "")), str(counter))
        for part in slices
        for found in objects_in(object_in(part.get("spec")).get("sharedCounters"))
        for counter in object_in(found.get("counters"))
    )


def _set_name(device: str, accelerator: str) -> str:
    """A DNS label; one that would be too long is cut and told apart by a hash."""
    if device and len(device) + len(_SUFFIX) <= _LABEL_MAX:
        return f"{device}{_SUFFIX}"
    digest = hashlib.sha256((device or accelerator).encode()).hexdigest()[:_DIGITS]
    kept = device[: _LABEL_MAX - len(_SUFFIX) - _DIGITS - 1].rstrip("-") or "accelerator"
    return f"{kept}-{digest}{_SUFFIX}"


def _counter(unit: str) -> str:
    """The unit's name within its accelerator, where that is a DNS label."""
    name = unit.rpartition("/")[2]
    if len(name) <= _LABEL_MAX and _LABEL.fullmatch(name):
        return name
    return f"unit-{hashlib.sha256(unit.encode()).hexdigest()[:_DIGITS]}"
