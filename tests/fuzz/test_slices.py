"""ResourceSlices, ours and of others: whatever one says, the pools beside it are read."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import given

from fleet.core import errors
from fleet.kube import answers
from fleet.kube.base import SLICES, Object
from fleet.plugin.slices.foreign import covered
from fleet.plugin.slices.pool import PoolIdentity, plan
from fleet.plugin.slices.pool_view import read_pools
from tests.fleet.control.binding.scenes import DRIVER, device, entry, slice_of
from tests.fuzz.mutations import documents, spelled
from tests.fuzz.running import bounded, fuzzed

GOOD = slice_of(entry(device("gpu-0", node="good")), node="good")
SHARED: list[Object] = [{"counterSet": "gpu-0-memory", "counters": {"a": {"value": "1"}}}]
BAD = slice_of(
    {
        **entry(device("gpu-1", node="bad")),
        "taints": [{"key": f"{DRIVER}/not-clean", "effect": "NoSchedule"}],
        "consumesCounters": SHARED,
    },
    node="bad",
)
BAD["metadata"] |= {"uid": "u", "resourceVersion": "5", "managedFields": [{"manager": "m"}]}
FOREIGN = slice_of(
    {
        "name": "gpu-9",
        "attributes": {
            "uuid": {"string": "GPU-bad-gpu-1"},
            "example.com/pciBusID": {"string": "0000:3b:00.0"},
            "simulated": {"bool": False},
        },
    },
    node="bad",
    driver="gpu.example.com",
)


def _listed(*found: Any) -> list[Object]:
    body = b'{"items": [' + b",".join(map(spelled, found)) + b"]}"
    with suppress(errors.ApiFailed):
        return answers.entries(SLICES, answers.object_of(body, what="list"), what="list")[0]
    return []


@fuzzed(100)
@given(bad=documents(BAD))
def test_a_bad_slice_hides_no_pool_beside_it(bad: Any) -> None:
    """B19, B20, promise 9: a slice of any content leaves other nodes' pools complete."""
    found = _listed(bad, GOOD)
    with bounded():
        pools = read_pools(found)
    good = pools[DRIVER, "good"]
    assert good.allocatable("gpu-0") is True or len(good.slices) > 1
    for pool in pools.values():
        for name in pool.devices:
            pool.allocatable(name)
            pool.taint(name, f"{DRIVER}/not-clean")


@fuzzed(100)
@given(bad=documents(BAD))
def test_our_own_slice_is_written_anew_whatever_became_of_it(bad: Any) -> None:
    """B9, B20: whatever somebody made of our slice, the next write says what is so."""
    found = _listed(bad)
    identity = PoolIdentity(DRIVER, "bad", "node-uid")
    devices = [entry(device("gpu-1", node="bad"))]
    with bounded():
        writes = plan(found, devices, identity=identity)
    bodies = [getattr(write, "body", None) for write in writes]
    assert all(body is None or body["spec"]["devices"] == devices for body in bodies)


@fuzzed(100)
@given(bad=documents(FOREIGN))
def test_another_drivers_slice_is_compared_or_passed_over(bad: Any) -> None:
    """B4, B20: a slice of another driver of any content never keeps our node from publishing."""
    mine = [device("gpu-1", node="bad"), device("gpu-2", node="bad")]
    found = _listed(bad, GOOD, FOREIGN)
    with bounded():
        why = covered(mine, slices=found, driver=DRIVER, node={"status": {"capacity": {}}})
    assert all(text.strip() for text in why.values())
    assert mine[0].uuid in why
