"""Refused devices: left out, never forgotten, never hammered."""

from __future__ import annotations

from typing import Any

from fleet.plugin.slices.refusals import (
    LONGEST_WAIT_S,
    Pause,
    Refusals,
    about_counters,
    blamed,
    suspects,
)


def device(name: str, mark: str = "") -> dict[str, Any]:
    """A device told apart by its mark."""
    return {"name": name, "attributes": {"mark": {"string": mark}}}


def test_the_server_names_the_devices_it_refuses() -> None:
    """B09: causes point into spec.devices; a cause without a place blames nobody by itself."""
    devices = [device("a"), device("b"), device("c")]
    causes = [
        ("FieldValueInvalid", "spec.devices[2].taints[0].value", "bad"),
        ("FieldValueInvalid", "spec.devices[0].name", "bad"),
        ("FieldValueTooMany", "spec.devices", "Too many"),
        ("FieldValueInvalid", "spec.devices[9]", "not there"),
    ]
    assert [found["name"] for found in blamed(devices, causes)] == ["a", "c"]
    assert blamed(devices, causes[2:3]) == ()


def test_a_refusal_about_counters_is_told_from_one_about_a_device() -> None:
    """Invariant 31: counters are left out where the server minds them; devices where it minds
    those."""
    devices = {"spec": {"devices": [device("a")]}}
    sets = {"spec": {"sharedCounters": [{"name": "a-memory", "counters": {}}]}}
    field = "spec.devices[0].consumesCounters[0].counterSet"
    assert about_counters(devices, [("FieldValueInvalid", field, "must reference a counterSet")])
    assert about_counters(sets, [("FieldValueForbidden", "spec", "denied")])
    assert about_counters(sets, [])
    assert not about_counters(devices, [("FieldValueInvalid", "spec.devices[0].name", "bad")])
    assert not about_counters(devices, [(), ("FieldValueTooMany",)])


def test_without_a_name_what_changed_is_suspect() -> None:
    """What the server holds already cannot be what it minds."""
    stored = {"a": device("a"), "b": device("b", "old")}
    found = suspects([device("a"), device("b", "new"), device("c")], stored)
    assert [one["name"] for one in found] == ["b", "c"]


def test_a_refused_body_waits_longer_each_time() -> None:
    """B09: a 422 is never hot-looped: 5, 10, 20 ... s, and at most five minutes."""
    refusals, now = Refusals(), 0.0
    waits = []
    for _ in range(9):
        refusals.refuse([device("a")], now=now, why="bad")
        begun = now
        while refusals.withheld(device("a"), now=now):
            now += 1.0
        waits.append(now - begun)
    assert waits[:4] == [5, 10, 20, 40]
    assert waits[-1] == LONGEST_WAIT_S
    assert refusals.total == 9


def test_another_body_is_tried_at_once() -> None:
    """A device that looks different now may be fine now: its quarantine must not wait."""
    refusals = Refusals()
    refusals.refuse([device("a", "x")], now=0.0, why="bad")
    assert refusals.withheld(device("a", "x"), now=1.0) == "bad"
    assert refusals.withheld(device("a", "y"), now=1.0) == ""
    assert refusals.withheld(device("b"), now=1.0) == ""


def test_suspects_come_back_one_at_a_time() -> None:
    """Neighbours of an unknown culprit are found innocent by themselves."""
    refusals = Refusals()
    group = [device("a"), device("b"), device("c")]
    refusals.refuse(group, now=0.0, why="bad")
    back = [
        [one["name"] for one in group if not refusals.withheld(one, now=now)]
        for now in (4.0, 5.0, 10.0, 15.0)
    ]
    assert back == [[], ["a"], ["a", "b"], ["a", "b", "c"]]
    refusals.accepted([device("a")])
    assert refusals.withheld(device("a"), now=0.0) == ""


def test_a_pause_holds_for_its_content_and_doubles() -> None:
    """What failed is not repeated at once; other content is not kept waiting for it."""
    pause = Pause()
    pause.begin(now=0.0, content=[device("a")], longest_s=5.0)
    assert pause.holds(now=0.5, content=[device("a")])
    assert not pause.holds(now=0.5, content=[device("b")])
    assert not pause.holds(now=1.0, content=[device("a")])
    pause.begin(now=1.0, content=None, longest_s=5.0)
    assert pause.holds(now=2.9, content=[device("b")])
    for _ in range(5):
        pause.begin(now=10.0, content=None, longest_s=5.0)
    assert pause.holds(now=14.9, content=[])
    assert not pause.holds(now=15.0, content=[])
    pause.end()
    assert not pause.holds(now=10.5, content=[])
