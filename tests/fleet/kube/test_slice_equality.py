"""Semantic comparison: what the server rewrites is no difference; what matters is one."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.kube.slice_equality import (
    Feature,
    dropped,
    quantity,
    same_device,
    same_devices,
    same_slice,
)
from fleet.plugin.slices.device_attributes import quantity_text

AT = "2026-11-29T13:22:15Z"


def device(**changes: Any) -> dict[str, Any]:
    """A device with a taint and a memory capacity."""
    return {
        "name": "gpu-0",
        "attributes": {"uuid": {"string": "GPU-0"}},
        "capacity": {"memory": {"value": "1024Mi"}},
        "taints": [{"key": "d/not-clean", "effect": "NoSchedule"}],
        "allowMultipleAllocations": False,
        **changes,
    }


@pytest.mark.parametrize(
    ("text", "number"),
    [("1024Mi", 2**30), ("1Gi", 2**30), ("1073741824", 2**30), ("1e3", 1000), ("2k", 2000),
     ("500m", Fraction(1, 2)), ("1.5Ki", 1536), ("80Gi", 80 * 2**30)],
)  # fmt: skip
def test_quantities_are_numbers_whatever_their_spelling(text: str, number: Fraction) -> None:
    """Invariant 31: the server answers with its own spelling of the same amount."""
    assert quantity(text) == number


@pytest.mark.parametrize("text", ["", "Gi", "1Zi", "1 Gi", "one"])
def test_what_is_no_quantity_is_none(text: str) -> None:
    """Text that is no quantity is never equal to a number by accident."""
    assert quantity(text) is None


@pytest.mark.parametrize(
    "stored",
    [
        device(capacity={"memory": {"value": "1Gi"}}),
        device(taints=[{"key": "d/not-clean", "effect": "NoSchedule", "timeAdded": AT}]),
        device(taints=[{"key": "d/not-clean", "value": "", "effect": "NoSchedule"}]),
        device(bindingConditions=[]),
        device(newerField={"of": "a later API"}),
    ],
)
def test_what_the_server_rewrites_is_no_difference(stored: dict[str, Any]) -> None:
    """Invariant 31: quantities, timeAdded, empty lists and fields of a newer API cause no write."""
    assert same_device(device(), stored)


@pytest.mark.parametrize(
    "stored",
    [
        device(name="gpu-1"),
        device(attributes={"uuid": {"string": "GPU-1"}}),
        device(capacity={"memory": {"value": "2Gi"}}),
        device(capacity={}),
        device(taints=[]),
        device(taints=[{"key": "d/not-clean", "effect": "NoExecute"}]),
        device(taints=[{"key": "d/not-clean", "value": "x", "effect": "NoSchedule"}]),
        device(allowMultipleAllocations=True),
        device(bindsToNode=True),
        device(bindingConditions=["d/Sanitized"]),
        device(consumesCounters=[{"counterSet": "x"}]),
    ],
)
def test_what_matters_is_a_difference(stored: dict[str, Any]) -> None:
    """B34: whatever a foreign edit changes in a device is seen, so that it can be reverted."""
    assert not same_device(device(), stored)


def test_times_one_second_apart_are_the_same_and_more_are_not() -> None:
    """Invariant 32: the server keeps whole seconds; a moved time is a foreign edit."""
    times = [AT, "2026-11-29T13:22:15.7Z", "2026-11-29T13:22:16Z", "2026-11-29T13:22:18Z", "junk"]
    made = [
        device(taints=[{"key": "d/not-clean", "effect": "NoSchedule", "timeAdded": time}])
        for time in times
    ]
    assert [same_device(made[0], other) for other in made] == [True, True, True, False, False]


def test_the_order_of_devices_counts_and_that_of_taints_does_not() -> None:
    """The order of devices is their priority for the allocator."""
    one, two = device(), device(name="gpu-1")
    assert same_devices([one, two], [one, two])
    assert not same_devices([one, two], [two, one])
    taints = [{"key": "a/b", "effect": "NoSchedule"}, {"key": "a/c", "effect": "NoSchedule"}]
    assert same_device(device(taints=taints), device(taints=taints[::-1]))


def part(uid: str = "n1", generation: int = 1, **spec: Any) -> dict[str, Any]:
    """A slice."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": uid, "controller": True}
    pool = {"name": "n", "generation": generation, "resourceSliceCount": 1}
    return {
        "metadata": {"ownerReferences": [owner]},
        "spec": {"driver": "d", "nodeName": "n", "pool": pool, **spec},
    }


def test_a_slice_differs_by_owner_pool_or_selector() -> None:
    """Invariant 30: a slice owned by a Node that was re-created is not the same slice."""

    assert same_slice(part(), part(devices=[]))
    assert not same_slice(part(), part(uid="n2"))
    assert not same_slice(part(), part(generation=2))
    assert not same_slice(part(), part(allNodes=True))
    assert not same_slice(part(), part(devices=[device()]))


def test_dropped_fields_are_found_in_the_answer() -> None:
    """Reference 0: a gate that is off shows only in what the server answers."""
    consumed = [{"counterSet": "gpu-0-memory", "counters": {"m0": {"value": "1"}}}]
    sent = part(devices=[device(bindingConditions=["d/Sanitized"], consumesCounters=consumed)])
    bare = part(devices=[{"name": "gpu-0", "attributes": {}}])
    assert dropped(sent, sent) == frozenset()
    assert dropped(sent, bare) == frozenset(Feature)
    assert dropped(bare, bare) == frozenset()


def test_dropped_counter_sets_are_found_in_the_answer() -> None:
    """Reference 2.1: a server that keeps the counters of old devices may drop those of new sets."""
    sent = part(sharedCounters=[{"name": "gpu-0-memory", "counters": {"m0": {"value": "1"}}}])
    assert dropped(sent, part()) == {Feature.COUNTERS}
    assert dropped(sent, sent) == dropped(part(), part()) == frozenset()
    assert not same_slice(sent, part())


@given(st.integers(0, 2**62))
def test_a_rendered_size_reads_back_as_the_same_number(size: int) -> None:
    """The spelling we send is a quantity and means the size in bytes."""
    assert quantity(quantity_text(size)) == size
