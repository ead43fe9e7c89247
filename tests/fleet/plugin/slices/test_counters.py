"""Counters: two devices that share memory never fit together, and every counter consumed exists."""

from __future__ import annotations

import itertools
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.core.messages import DeviceView
from fleet.plugin.slices.counters import COUNTERS_MAX, Key, consumption, keys, offered_keys, sets
from fleet.plugin.slices.device_attributes import names

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def device(name: str, *units: str, parent: str = "GPU-0") -> DeviceView:
    """A device of these units of `parent`; its UUID is ``GPU-0`` for the accelerator itself."""
    return DeviceView(
        uuid=parent if name == parent.lower() else f"PART-{name}",
        name=name,
        accelerator=parent,
        units=tuple(f"{parent}/{unit}" for unit in units),
        memory_bytes=1024,
        state="CLEAN",
    )


WHOLE = device("gpu-0", "m0", "m1", "rest")
LEFT, RIGHT = device("gpu-0-1g-0", "m0"), device("gpu-0-1g-1", "m1")
ALONE = device("gpu-1", "all", parent="GPU-1")


def entries(*devices: DeviceView) -> dict[str, dict[str, Any]]:
    """As a slice carries them, by UUID: what they consume only."""
    found = consumption(devices, names(devices))
    return {one.uuid: {"consumesCounters": found[one.uuid]} for one in devices if one.uuid in found}


def test_every_unit_is_a_counter_and_every_device_consumes_its_own() -> None:
    """KEP-4815: the accelerator consumes the memory outside every partition, too."""
    found = entries(WHOLE, LEFT, RIGHT, ALONE)
    one = {"value": "1"}
    assert found["PART-gpu-0-1g-0"]["consumesCounters"] == [
        {"counterSet": "gpu-0-memory", "counters": {"m0": one}}
    ]
    assert sets(found.values(), offered=found.values()) == (
        {"name": "gpu-0-memory", "counters": {"m0": one, "m1": one, "rest": one}},
    )


def test_an_accelerator_alone_has_no_counters() -> None:
    """E1: nothing is shared, and nothing is added to the slices of such nodes."""
    assert entries(ALONE, device("gpu-2", "all", parent="GPU-2")) == {}
    assert sets([], offered=[]) == ()


def test_what_does_not_fit_into_a_set_is_not_counted() -> None:
    """Reference 2.1: a set has 32 counters at most; beyond that the node alone decides."""
    units = [f"m{place}" for place in range(COUNTERS_MAX + 1)]
    assert len(entries(device("gpu-0", *units[:-1]), LEFT)) == 2
    assert entries(device("gpu-0", *units), LEFT) == {}


def test_sets_are_what_the_devices_on_offer_consume() -> None:
    """Reference 2.2: a device that consumes what no set has makes the pool invalid. A set stays as
    it is while one of its devices is withdrawn, and goes with the last."""
    found = entries(WHOLE, LEFT, RIGHT)
    right = [found["PART-gpu-0-1g-1"]]
    assert sets(found.values(), offered=right) == sets(found.values(), offered=found.values())
    assert sets(right, offered=right)[0]["counters"].keys() == {"m1"}
    assert sets(found.values(), offered=[]) == ()


def test_names_are_labels_whatever_the_accelerator_is_called() -> None:
    """Reference 2.1: names of sets and counters are DNS labels of 63 characters at most, and two
    accelerators never share a set."""
    long = "g" * 62
    devices = [
        device(f"{long}{end}", "M:0", "all", parent=f"{long}{end}".upper()) for end in ("a", "b")
    ]
    devices += [device(f"p-{one.name[-1]}", "all", parent=one.accelerator) for one in devices]
    devices += [device("x-1", "a", parent="UNSEEN"), device("x-2", "a", parent="UNSEEN")]
    found = entries(*devices)
    used = {key for entry in found.values() for key in keys(entry)}
    assert {one.uuid for one in devices} == found.keys()
    assert all(LABEL.fullmatch(text) for key in used for text in key)
    assert len({name for name, _ in used}) == 3


units = st.frozensets(st.sampled_from([f"m{place}" for place in range(8)]), min_size=1)


@given(st.lists(units, min_size=1, max_size=12))
def test_two_devices_fit_together_exactly_if_they_share_no_unit(
    drawn: list[frozenset[str]],
) -> None:
    """KEP-4815: by the scheduler's sums, of value 1 each, sharing a unit is what excludes."""
    whole = device("gpu-0", *(f"m{place}" for place in range(8)), "rest")
    devices = [whole, *(device(f"p{at}", *sorted(found)) for at, found in enumerate(drawn))]
    found = entries(*devices)
    pool = [{"spec": {"sharedCounters": list(sets(found.values(), offered=found.values()))}}]
    assert {key for entry in found.values() for key in keys(entry)} == offered_keys(pool)
    for one, other in itertools.combinations(devices, 2):
        apart = not set(one.units) & set(other.units)
        assert fits(pool, found[one.uuid], found[other.uuid]) is apart


def fits(pool: list[dict[str, Any]], *chosen: dict[str, Any]) -> bool:
    """The allocator's sum: of no counter more is consumed than its set has."""
    left: dict[Key, int] = {
        (one["name"], counter): int(amount["value"])
        for part in pool
        for one in part["spec"]["sharedCounters"]
        for counter, amount in one["counters"].items()
    }
    for entry in chosen:
        for one in entry["consumesCounters"]:
            for counter, amount in one["counters"].items():
                left[one["counterSet"], counter] -= int(amount["value"])
    return min(left.values()) >= 0
