"""How a reader judges a pool (B73)."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.plugin.slices.pool_view import PoolReading, carries_counters, newest_entries, read_pools


def part(
    generation: int, count: int, *devices: tuple[str, str], pool: str = "node-a", driver: str = "d"
) -> dict[str, Any]:
    """A slice of devices given as (name, effect of its taint or "")."""
    return {
        "metadata": {"name": f"s{generation}-{count}-{devices}"},
        "spec": {
            "driver": driver,
            "nodeName": "node-a",
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            "devices": [
                {"name": name, **({"taints": [{"key": "q", "effect": effect}]} if effect else {})}
                for name, effect in devices
            ],
        },
    }


def read(*parts: dict[str, Any]) -> PoolReading:
    """The reading of the only pool."""
    (found,) = read_pools(parts).values()
    return found


def test_a_half_updated_pool_is_not_believed() -> None:
    """B73: generation 4 is ignored, the pool is incomplete, and gpu-0 counts as tainted."""
    found = read(part(4, 2, ("gpu-0", "")), part(5, 2, ("gpu-0", "NoSchedule")))
    assert found.generation == 5
    assert not found.complete
    assert found.allocatable("gpu-0") is False
    assert found.taint("gpu-0", "q") == {"key": "q", "effect": "NoSchedule"}


def test_a_lower_generation_does_not_exist() -> None:
    """B73: generations are never merged: what only an older one lists is not in the pool."""
    found = read(part(4, 1, ("old", "")), part(5, 1, ("new", "")))
    assert found.complete
    assert found.devices.keys() == {"new"}
    assert found.allocatable("old") is False


def test_an_incomplete_pool_proves_nobody_free() -> None:
    """B73: no decision that needs completeness: untainted or missing in half a pool is unknown."""
    found = read(part(5, 2, ("gpu-0", "")))
    assert found.allocatable("gpu-0") is None
    assert found.allocatable("gpu-1") is None


def test_a_complete_pool_tells() -> None:
    """All slices of the highest generation there: free, tainted and absent are known."""
    found = read(part(5, 2, ("a", ""), ("b", "NoExecute")), part(5, 2, ("c", "None")))
    assert found.complete
    assert [found.allocatable(name) for name in ("a", "b", "c", "x")] == [True, False, True, False]


def test_too_many_slices_or_a_name_twice_is_a_contradiction() -> None:
    """Reference 2.1: names are unique in the pool, across slices; a wrong count is no pool."""
    assert not read(part(5, 1, ("a", "")), part(5, 1, ("b", ""))).complete
    twice = read(part(5, 2, ("a", "")), part(5, 2, ("a", "NoSchedule"), ("b", "")))
    assert "a" in twice.trouble
    assert twice.allocatable("a") is False
    assert twice.allocatable("b") is None


def test_a_pool_whose_counters_are_missing_is_a_contradiction() -> None:
    """Reference 2.2: a scheduler allocates nothing from a pool whose devices consume counters that
    no set of the same generation has; a slice of sets counts like any other."""
    consumed = [{"counterSet": "gpu-0-memory", "counters": {"m0": {"value": "1"}}}]
    devices = part(5, 2, ("gpu-0", ""))
    devices["spec"]["devices"][0]["consumesCounters"] = consumed

    def counting(generation: int, *counters: str) -> dict[str, Any]:
        found = part(generation, 2)
        del found["spec"]["devices"]
        amounts = {name: {"value": "1"} for name in counters}
        found["spec"]["sharedCounters"] = [{"name": "gpu-0-memory", "counters": amounts}]
        return found

    assert read(devices, counting(5, "m0", "m1")).allocatable("gpu-0") is True
    assert not read(devices).complete
    assert not read(devices, counting(4, "m0")).complete
    loose = read(devices, counting(5, "m1"))
    assert "gpu-0" in loose.trouble
    assert loose.allocatable("gpu-0") is None
    assert carries_counters(counting(5, "m0"))
    assert not carries_counters(devices)


def test_pools_and_drivers_are_kept_apart() -> None:
    """A pool is known by driver and name; a damaged slice belongs to none of ours."""
    found = read_pools([part(1, 1, ("a", "")), part(9, 1, driver="e"), part(3, 1, pool="p"), {}])
    assert {key: reading.generation for key, reading in found.items()} == {
        ("d", "node-a"): 1,
        ("e", "node-a"): 9,
        ("d", "p"): 3,
        ("", ""): 0,
    }


def test_of_several_entries_the_newest_is_taken() -> None:
    """Promise 5: what an earlier process published last is what is held on to."""
    found = newest_entries([part(4, 1, ("a", ""), ("b", "")), part(5, 1, ("a", "NoSchedule"))])
    assert found.keys() == {"a", "b"}
    assert found["a"]["taints"] == [{"key": "q", "effect": "NoSchedule"}]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec",), None),
        (("spec",), []),
        (("spec", "pool"), "x"),
        (("spec", "devices"), {"name": "gpu-1"}),
        (("spec", "devices"), [None, "x", []]),
        (("spec", "sharedCounters"), [5]),
    ],
)
def test_b19_a_slice_of_another_form_hides_no_pool_beside_it(
    path: tuple[str, ...], value: object
) -> None:
    """B19: a slice that cannot be read is no complete pool, and takes no other with it."""
    bad, good = part(1, 1, ("gpu-1", "")), part(1, 1, ("gpu-0", ""), pool="good")
    place = bad
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    pools = read_pools([bad, good])
    assert pools[good["spec"]["driver"], "good"].allocatable("gpu-0") is True


@pytest.mark.parametrize("taints", ["x", [None], [{"effect": "NoSchedule"}, 5], {"effect": "x"}])
def test_b19_a_taint_that_cannot_be_read_closes_the_device(taints: object) -> None:
    """B19, promise 5: who cannot read a taint does not take the device for free."""
    bad = part(1, 1, ("gpu-0", ""))
    bad["spec"]["devices"][0]["taints"] = taints
    assert read(bad).allocatable("gpu-0") is False
