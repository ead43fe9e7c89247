"""A claim as the coordinator reads it."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from fleet.core import errors
from fleet.kube.base import Object
from fleet.kube.claim import read
from fleet.kube.marks import Marks
from tests.fleet.control.binding.scenes import DRIVER, SPACE, result

MARKS = Marks(DRIVER)
GATED = {"bindingConditions": [MARKS.sanitized], "bindingFailureConditions": [MARKS.failed]}


def claim(*results: Object, **status: object) -> Object:
    """A claim with this allocation."""
    allocation = {"devices": {"results": list(results)}, "allocationTimestamp": "2026-11-29T13:13:23Z"}  # fmt: skip  # noqa: E501
    return {
        "metadata": {"name": "c", "namespace": SPACE, "uid": "u", "resourceVersion": "7"},
        "status": {"allocation": allocation, **status},
    }


def told(device: str, **conditions: str) -> Object:
    """An entry of status.devices."""
    kinds = {"sanitized": MARKS.sanitized, "failed": MARKS.failed}
    listed = [{"type": kinds[kind], "status": status} for kind, status in conditions.items()]
    return {"driver": DRIVER, "pool": "n1", "device": device, "conditions": listed}


def test_what_belongs_to_others_is_passed_over() -> None:
    """B37: other drivers' results and the agent device are none of ours, whatever is in them."""
    foreign = {"driver": "x.example.com", "pool": 7, "device": None}
    reading = read(claim(foreign, result("agent"), result("a")), MARKS)
    assert [one.device for one in reading.devices] == ["a"]


def test_admin_access_holds_nothing() -> None:
    """B35: a device that is only looked into is not the claim's own, and gives it no node."""
    reading = read(claim(result("a") | {"adminAccess": True}), MARKS)
    assert [one.device for one in reading.devices] == ["a"]
    assert reading.holding == ()
    assert reading.nodes == ()


def test_our_hold_is_no_consumer() -> None:
    """B12: pods, our reservation and everybody else's are told apart."""
    entries = [
        {"resource": "pods", "name": "p", "uid": "1"},
        MARKS.hold(node="n1", uid="u"),
        {"apiGroup": "x.example.com", "resource": "pods", "name": "q", "uid": "2"},
    ]
    reading = read(claim(result("a"), reservedFor=entries), MARKS)
    assert [pod.name for pod in reading.pods] == ["p"]
    assert reading.held
    assert reading.others == 1


@pytest.mark.parametrize(
    ("entries", "bound", "failed"),
    [
        ([], False, False),
        ([told("a", sanitized="True")], False, False),
        ([told("a", sanitized="True"), told("b", sanitized="Unknown")], False, False),
        ([told("a", sanitized="True"), told("b", sanitized="True")], True, False),
        ([told("b", failed="True")], False, True),
    ],
)
def test_bound_is_every_device_and_failed_is_any(
    entries: list[Object], bound: bool, failed: bool
) -> None:
    """The scheduler waits for every condition of every device, and stops at one failure."""
    found = claim(result("a") | GATED, result("b") | GATED, devices=entries)
    reading = read(found, MARKS)
    assert (reading.gated, reading.bound, reading.failed) == (True, bound, failed)


def test_what_follows_from_a_reading_follows_from_a_changed_one() -> None:
    """Devices taken out of a reading are on no node of it, and nobody waits for theirs."""
    gated = {"bindingConditions": ["a"]}
    found = read(claim(result("x") | gated, result("y", pool="n2") | gated), MARKS)
    assert (found.nodes, found.gated, found.bound) == (("n1", "n2"), True, False)
    first = replace(found, devices=found.devices[:1])
    assert (first.nodes, [one.device for one in first.holding]) == (("n1",), ["x"])
    bare = replace(found, devices=())
    assert (bare.nodes, bare.holding, bare.gated, bare.bound) == ((), (), False, True)


def test_a_condition_of_another_share_does_not_count() -> None:
    """Conditions are told apart by pool, device and share."""
    reading = read(
        claim(result("a") | GATED | {"shareID": "s1"}, devices=[told("a", sanitized="True")]), MARKS
    )
    assert not reading.bound


def test_receipts_of_others_are_not_ours() -> None:
    """Only the entry of our driver speaks of our token."""
    entry = told("a") | {"data": {"token": "1.2"}}
    one = read(claim(result("a"), devices=[entry]), MARKS)
    other = read(claim(result("a"), devices=[entry | {"driver": "x.example.com"}]), MARKS)
    assert one.receipt(one.devices[0], "token") == "1.2"
    assert other.receipt(other.devices[0], "token") == ""


@pytest.mark.parametrize("text", ["2026-11-29T13:13:23", "soon", 7, None])
def test_a_time_that_cannot_be_read_is_none(text: object) -> None:
    """B19: a timestamp without a zone, or none, sets no deadline."""
    found = claim(result("a"))
    found["status"]["allocation"]["allocationTimestamp"] = text
    assert read(found, MARKS).allocated_at is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("status", "allocation", "devices", "results"), {"a": 1}),
        (("status", "allocation", "devices", "results"), ["a"]),
        (("status", "allocation", "devices"), "all"),
        (("status", "allocation"), "all"),
        (("status", "reservedFor"), "a pod"),
        (("status", "reservedFor"), [None]),
        (("status",), []),
        (("metadata", "uid"), ""),
    ],
)
def test_what_cannot_be_understood_is_never_guessed(path: tuple[str, ...], value: object) -> None:
    """B19: a claim read as without devices or users would lose its lease while it is in use."""
    found = copy.deepcopy(claim(result("a"), reservedFor=[]))
    place = found
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(errors.ClaimUnready):
        read(found, MARKS)


@pytest.mark.parametrize("field", ["request", "pool", "device"])
def test_a_result_of_ours_without_a_name_is_refused(field: str) -> None:
    """B19: which device was meant is not guessed either."""
    with pytest.raises(errors.ClaimUnready):
        read(claim(result("a") | {field: 3}), MARKS)
