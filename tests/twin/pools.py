"""Which devices the scheduler may choose from: complete pools, their taints, what is taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from fleet.kube.base import CLAIMS, NODES, SLICES, Name, Object, Resource
from fleet.plugin.slices.pool_view import PoolReading, read_pools
from tests.twin import objects

Place = tuple[str, str, str]
"""Driver, pool and device."""
Key = tuple[str, str]
"""Counter set and counter."""


class Pools:
    """Follows slices, nodes and claims; see `fleet.plugin.slices.pool_view` for what makes a pool
    whole.
    """

    def __init__(self, classes: Mapping[str, tuple[str, int]]) -> None:
        """`classes`: driver and least memory, bytes, by name of the DeviceClass."""
        self._classes = classes
        self._slices: dict[str, dict[str, Object]] = {}
        self._readings: dict[str, list[PoolReading]] = {}
        self._nodes: dict[str, Object] = {}
        self._taken: Counter[Place] = Counter()

    def changed(
        self, resource: Resource, name: Name, before: Object | None, after: Object | None
    ) -> None:
        """Follow one change."""
        if resource == CLAIMS:
            self._taken.subtract(_places(before))
            self._taken.update(_places(after))
        elif resource == SLICES:
            node = (after or before or {})["spec"].get("nodeName", "")
            there = self._slices.setdefault(node, {})
            there.pop(name.name, None)
            if after is not None:
                there[name.name] = after
            self._readings.pop(node, None)
        elif resource == NODES:
            self._nodes.pop(name.name, None)
            if after is not None:
                self._nodes[name.name] = after

    def nodes(self) -> Sequence[str]:
        """Nodes on which pods may be put."""
        return [
            name
            for name, found in sorted(self._nodes.items())
            if not found.get("spec", {}).get("unschedulable")
        ]

    def fitting(self, claim: Object, node: str, chosen: set[Place]) -> list[Object] | None:
        """The results of an allocation on `node`, first fit in slice order; None: does not fit.

        `chosen`: what other claims of the same pod were given in this cycle; it grows.
        """
        found: list[Object] = []
        mine: set[Place] = set()
        for request in claim["spec"]["devices"]["requests"]:
            asked = request["exactly"]
            wanted = int(asked.get("count", 1))
            for place, device, reading in self._free(node, asked):
                if not wanted:
                    break
                if place in chosen or place in mine:
                    continue
                consumed = _amounts(device, "consumesCounters")
                if consumed and not self._left(reading, chosen | mine) >= consumed:
                    continue
                mine.add(place)
                found.append(_result(request["name"], place, device))
                wanted -= 1
            if wanted:
                return None
        chosen |= mine
        return found

    def _left(self, reading: PoolReading, given: set[Place]) -> Counter[Key]:
        """What the pool's counter sets have left beside what is allocated, and given in this
        cycle."""
        left: Counter[Key] = Counter()
        for part in reading.slices:
            left.update(_amounts(part["spec"], "sharedCounters"))
        for name, entries in reading.devices.items():
            place = (reading.driver, reading.pool, name)
            if self._taken[place] or place in given:
                left.subtract(_amounts(entries[0], "consumesCounters"))
        return left

    def _free(self, node: str, asked: Object) -> Iterator[tuple[Place, Object, PoolReading]]:
        driver, least = self._classes[asked["deviceClassName"]]
        for reading in self._pools(node):
            if reading.driver != driver or not reading.complete:
                continue
            for name, entries in reading.devices.items():
                place = (driver, reading.pool, name)
                device = entries[0]
                if self._taken[place] or not _fits(device, least):
                    continue
                if _tolerated(device.get("taints") or (), asked.get("tolerations") or ()):
                    yield place, device, reading

    def _pools(self, node: str) -> list[PoolReading]:
        if node not in self._readings:
            there = self._slices.get(node, {})
            found = read_pools([there[name] for name in sorted(there)])
            self._readings[node] = [found[key] for key in sorted(found)]
        return self._readings[node]


def _amounts(found: Object, field: str) -> Counter[Key]:
    """Amounts of a device's ``consumesCounters`` or of a slice's ``sharedCounters``."""
    amounts: Counter[Key] = Counter()
    for one in found.get(field) or ():
        name = str(one.get("counterSet") or one.get("name"))
        for counter, amount in one["counters"].items():
            amounts[name, counter] += int(amount["value"])
    return amounts


def _places(claim: Object | None) -> list[Place]:
    if claim is None:
        return []
    return [
        (one["driver"], one["pool"], one["device"])
        for one in objects.results(claim)
        if not one.get("adminAccess")
    ]


def _fits(device: Object, least: int) -> bool:
    """The class asks for memory, which the agent device has none of."""
    text = str((device.get("capacity") or {}).get("memory", {}).get("value", "0"))
    units = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}
    size = int(text[:-2]) << units[text[-2:]] if text[-2:] in units else int(text)
    return size >= least


def _tolerated(taints: Sequence[Object], tolerations: Sequence[Object]) -> bool:
    return all(
        taint["effect"] not in ("NoSchedule", "NoExecute")
        or any(_tolerates(one, taint) for one in tolerations)
        for taint in taints
    )


def _tolerates(one: Object, taint: Object) -> bool:
    if one.get("effect") not in (None, "", taint["effect"]):
        return False
    if one.get("operator") == "Exists":
        return one.get("key") in (None, "", taint["key"])
    return bool(one.get("key") == taint["key"] and one.get("value") == taint.get("value"))


def _result(request: str, place: Place, device: Object) -> Object:
    """One result, with copies of both lists as they are now."""
    found: Object = {
        "request": request,
        "driver": place[0],
        "pool": place[1],
        "device": place[2],
    }
    for field in ("bindingConditions", "bindingFailureConditions"):
        if device.get(field):
            found[field] = list(device[field])
    return found
