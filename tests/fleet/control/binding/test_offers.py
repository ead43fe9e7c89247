"""What a node has to offer: whole pools, and only what it shows itself."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.control.binding.offers import OVERLAP, of_node, results_of
from fleet.kube.base import Object
from fleet.kube.marks import AGENT
from tests.fleet.control.binding.scenes import (
    DRIVER,
    NOW,
    allocated,
    device,
    entry,
    reason,
    result,
    scene,
    slice_of,
    view,
)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, ""),
        ({"state": "QUARANTINED"}, "quarantined"),
        ({"state": "IN_USE", "reasons": (reason(),)}, "quarantined"),
        ({"state": "HELD"}, "not clean (HELD)"),
        ({"claim": "uid"}, "held by a claim"),
        ({"attached": ("uid",)}, "held by a claim"),
        ({"checked_at": 0.0}, "not checked of late"),
        ({"checked_at": NOW + 3600}, "not checked of late"),
    ],
)
def test_the_node_has_the_last_word(fields: dict[str, Any], told: str) -> None:
    """B7: CLEAN, nobody on it, and checked within a minute; everything else is in the way."""
    (found,) = of_node(scene(view(device("gpu-0", **fields))), "n1")
    assert found.obstacle == told


def test_what_an_allocated_device_consumes_is_taken() -> None:
    """E1, KEP-4815: the scheduler counts what its slice says, also of a device that the node does
    not list any more; so do we, or both would give the same memory."""

    def consuming(*counters: str) -> list[Object]:
        amounts = {name: {"value": "1"} for name in counters}
        return [{"counterSet": "gpu-0-memory", "counters": amounts}]

    gone = entry(device("gone"), consumesCounters=consuming("m0", "m1"))
    left = entry(device("left"), consumesCounters=consuming("m0"))
    right = entry(device("right"), consumesCounters=consuming("m2"))
    amounts = {name: {"value": "1"} for name in ("m0", "m1", "m2")}
    sets = slice_of(count=2)
    del sets["spec"]["devices"]
    sets["spec"]["sharedCounters"] = [{"name": "gpu-0-memory", "counters": amounts}]
    found = of_node(
        scene(
            view(device("left"), device("right")),
            slices=[slice_of(gone, left, right, count=2), sets],
            claims=[allocated(result("gone"))],
        ),
        "n1",
    )
    assert {one.name: one.obstacle for one in found} == {
        "gone": "allocated to another claim",
        "left": OVERLAP,
        "right": "",
    }
    assert [len(one.counters) for one in found] == [2, 1, 1]


@pytest.mark.parametrize("fields", [{"blocked": ("no cgroups",)}, {"at": NOW - 61}])
def test_a_node_that_cannot_prepare_offers_nothing(fields: dict[str, Any]) -> None:
    """Nobody is allocated to a node that would refuse, or has not answered of late."""
    (found,) = of_node(scene(view(device("gpu-0"), **fields)), "n1")
    assert found.obstacle == "on a node that cannot prepare now"


def test_an_incomplete_pool_offers_nothing() -> None:
    """B73: nothing is allocated from half a pool; older generations do not exist."""
    found = device("gpu-0")
    half = scene(view(found), slices=[slice_of(entry(found), count=2)])
    assert [one.obstacle for one in of_node(half, "n1")] == ["in an incomplete pool"]
    newer = [slice_of(entry(device("old"))), slice_of(entry(found), generation=2)]
    assert [one.name for one in of_node(scene(view(found), slices=newer), "n1")] == ["gpu-0"]


def test_what_the_node_does_not_list_cannot_be_had() -> None:
    """A device that is only in the slice, the agent device among them, is nobody's to give."""
    ghosts = [slice_of({"name": AGENT}, {"name": "gpu-9"})]
    found = of_node(scene(view(device("gpu-0")), slices=ghosts), "n1")
    assert [one.obstacle for one in found] == ["the node's agent", "not on its node"]


def test_admin_access_takes_no_device() -> None:
    """B35: who only looks into a device does not have it, by the API's word."""
    looking = allocated({**result("gpu-0"), "adminAccess": True})
    (free,) = of_node(scene(view(device("gpu-0")), claims=[looking]), "n1")
    assert free.obstacle == ""
    (used,) = of_node(scene(view(device("gpu-0")), claims=[allocated(result("gpu-0"))]), "n1")
    assert used.obstacle == "allocated to another claim"


def test_claims_of_any_shape_are_read() -> None:
    """B19: a claim that cannot be understood is passed over, not stumbled over."""
    odd: list[Object] = [
        {},
        {"status": None},
        {"status": {"allocation": {"devices": {"results": "x"}}}},
    ]
    assert [results_of(one) for one in odd] == [[], [], []]
    mixed: Object = {"status": {"allocation": {"devices": {"results": [1, result("a")]}}}}
    assert results_of(mixed) == [result("a")]


def test_attributes_are_found_by_their_full_name() -> None:
    """The driver's domain may be left out where it is published, never where it is asked for."""
    (found,) = of_node(scene(view(device("gpu-0"))), "n1")
    assert found.attribute(f"{DRIVER}/numaNode") == {"int": 0}
    assert found.attribute("resource.kubernetes.io/pcieRoot") == {"string": ""}
    assert found.attribute("x.example.com/numaNode") is None
