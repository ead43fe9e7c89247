"""Bad writes of conditions and two field managers on one claim (experiments 4 and 5)."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.kube.base import Object
from tests.contracts.api_ground import (
    DONE,
    FAILED,
    Ground,
    condition,
    entry,
    reservation,
)
from tests.contracts.api_server import JSON_PATCH

FIRST = "status.devices[0].conditions[0]"
NAIVE = "2026-11-29T13:13:23"


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"reason": None}, f"{FIRST}.reason", "Required value"),
        ({"reason": ""}, f"{FIRST}.reason", "Required value"),
        ({"reason": "a b"}, f"{FIRST}.reason", "Invalid value"),
        ({"lastTransitionTime": None}, f"{FIRST}.lastTransitionTime", "Required value"),
        (
            {"status": "true"},
            f"{FIRST}.status",
            'supported values: "False", "True", "Unknown"',
        ),
        ({"kind": "with space"}, f"{FIRST}.type", "Invalid value"),
        ({"message": "m" * 32769}, f"{FIRST}.message", "Too long"),
    ],
    ids=["no-reason", "empty-reason", "bad-reason", "no-time", "status", "type", "message"],
)
def test_a_condition_that_breaks_a_rule_is_refused(
    ground: Ground, fields: dict[str, Any], field: str, text: str
) -> None:
    """4: 422 with the field named; a condition of ours must never be one of these."""
    claim = ground.claim("d0")
    reply = ground.confirm(claim, entry("d0", condition(**fields)))
    assert (reply.code, reply.reason) == (422, "Invalid")
    assert reply.causes[0][1] == field
    assert text in reply.message


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"lastTransitionTime": NAIVE}, 'cannot parse "" as "Z07:00"'),
        ({"status": True}, "failed to create typed patch object"),
        ({"unheardOf": 1}, "field not declared in schema"),
    ],
    ids=["time-without-zone", "status-as-boolean", "unknown-field"],
)
def test_an_apply_of_a_malformed_body_is_answered_500(
    ground: Ground, fields: dict[str, Any], text: str
) -> None:
    """4: server-side apply answers 500 to malformed bodies: a 5xx is not always worth a retry."""
    claim = ground.claim("d0")
    reply = ground.confirm(claim, entry("d0", condition(**fields)))
    assert reply.code == 500
    assert text in reply.message


@pytest.mark.parametrize(
    "fields",
    [
        {"message": None},
        {"kind": "WithoutDomain"},
        {"message": "m" * 32768},
        {"lastTransitionTime": "2026-11-29T13:13:23.123456Z"},
    ],
    ids=["no-message", "no-domain", "longest-message", "microseconds"],
)
def test_a_condition_at_the_edge_is_taken(ground: Ground, fields: dict[str, Any]) -> None:
    """4: no message, a type without domain, 32768 bytes of message, microseconds: 200."""
    claim = ground.claim("d0")
    assert ground.confirm(claim, entry("d0", condition(**fields))).code == 200
    stored = ground.status(claim)["devices"][0]["conditions"][0]
    assert "." not in stored["lastTransitionTime"]


def test_duplicate_entries_are_refused_in_two_ways(ground: Ground) -> None:
    """4: a device twice: 500 for server-side apply, 422 Duplicate value for a merge patch."""
    claim = ground.claim("d0")
    twice = [entry("d0", condition()), entry("d0", condition())]
    applied = ground.confirm(claim, *twice)
    assert applied.code == 500
    assert "duplicate entries for key" in applied.message
    merged = ground.merge(f"{claim}/status", {"status": {"devices": twice}})
    assert merged.code == 422
    assert "Duplicate value" in merged.message


@pytest.mark.parametrize(
    "change",
    [{"driver": "other.example.com"}, {"pool": "other"}, {"device": "d7"}],
    ids=["driver", "pool", "device"],
)
def test_only_allocated_devices_take_conditions(ground: Ground, change: Object) -> None:
    """4: wrong driver, wrong pool, device not allocated: 422, must be an allocated device."""
    claim = ground.claim("d0")
    reply = ground.confirm(claim, {**entry("d0", condition()), **change})
    assert reply.code == 422
    assert reply.causes[0][0] == "FieldValueInvalid"
    assert reply.causes[0][1] == "status.devices[0]"
    assert "must be an allocated device in the claim" in reply.causes[0][2]


def test_eight_conditions_fit_nine_do_not(ground: Ground) -> None:
    """4: 8 conditions on a device, all managers together: 200; the ninth: 422."""
    claim = ground.claim("d0")
    many = [condition(f"x.example.com/c{n}") for n in range(7)]
    assert ground.confirm(claim, entry("d0", *many)).code == 200
    assert ground.confirm(claim, entry("d0", condition(DONE)), owner="second").code == 200
    reply = ground.confirm(claim, entry("d0", condition(FAILED)), owner="third")
    assert reply.code == 422
    assert "conditions: Too many: 9: must have at most 8 items" in reply.message


@pytest.mark.parametrize(
    ("size", "code", "text"),
    [(10239, 200, ""), (10241, 422, "data: Too long: may not be more than 10240 bytes")],
)
def test_data_of_a_device_has_a_limit(ground: Ground, size: int, code: int, text: str) -> None:
    """4: 10239 bytes of data: 200; 10241: 422."""
    claim = ground.claim("d0")
    filled = {"k": "x" * (size - len('{"k":""}'))}
    reply = ground.confirm(claim, entry("d0", data=filled))
    assert reply.code == code
    assert text in reply.message


def test_data_of_a_device_is_an_object(ground: Ground) -> None:
    """4: data as a JSON array: 422, must be a valid JSON object."""
    claim = ground.claim("d0")
    reply = ground.confirm(claim, entry("d0", data=[1, 2]))
    assert reply.code == 422
    assert "must be a valid JSON object" in reply.message


def test_a_failed_test_of_a_json_patch_has_no_cause(ground: Ground) -> None:
    """4: JSON patch whose test fails: 422, 'the server rejected our request', no cause."""
    claim = ground.claim("d0")
    body = [
        {"op": "test", "path": "/metadata/uid", "value": "another"},
        {"op": "add", "path": "/status/devices", "value": []},
    ]
    reply = ground.send("PATCH", f"{claim}/status", body, content_type=JSON_PATCH)
    assert reply.code == 422
    assert "the server rejected our request due to an error in our request" in reply.message
    assert reply.causes == []


def test_repeating_an_apply_is_free(ground: Ground) -> None:
    """4: an identical apply leaves the resourceVersion unchanged, also later."""
    claim = ground.claim("d0")
    first = ground.confirm(claim, entry("d0", condition())).ok()
    ground.server.later()
    again = ground.confirm(claim, entry("d0", condition())).ok()
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_two_writers_share_a_claim(ground: Ground) -> None:
    """5: one applies d0, the other d1 and a further type on d0: everything stays, merged."""
    claim = ground.claim("d0", "d1")
    assert ground.confirm(claim, entry("d0", condition(DONE)), owner="plugin").code == 200
    both = [entry("d0", condition("x.example.com/Seen")), entry("d1", condition(DONE))]
    assert ground.confirm(claim, *both, owner="controller").code == 200
    assert ground.conditions(claim, "d0") == {DONE: "True", "x.example.com/Seen": "True"}
    assert ground.conditions(claim, "d1") == {DONE: "True"}
    withdata = entry("d0", condition(DONE), data={"a": 1})
    assert ground.confirm(claim, withdata, owner="plugin").code == 200
    assert ground.conditions(claim, "d0") == {DONE: "True", "x.example.com/Seen": "True"}


def test_two_opinions_on_one_condition_conflict(ground: Ground) -> None:
    """5: same device and type, other value, no force: 409 with the exact path; equal: none."""
    claim = ground.claim("d0")
    ground.confirm(claim, entry("d0", condition()), owner="plugin").ok()
    assert ground.confirm(claim, entry("d0", condition()), owner="controller").code == 200
    reply = ground.confirm(claim, entry("d0", condition(status="False")), owner="third")
    assert (reply.code, reply.reason) == (409, "Conflict")
    assert {cause[0] for cause in reply.causes} == {"FieldManagerConflict"}
    where = (
        '.status.devices[device="d0",driver="rows.fleetscrub.dev",pool="rows"]'
        '.conditions[type="x.example.com/Sanitized"].status'
    )
    assert {cause[1] for cause in reply.causes} == {where}


def test_another_time_is_another_opinion(ground: Ground) -> None:
    """5: a different lastTransitionTime alone is a conflict."""
    claim = ground.claim("d0")
    ground.confirm(claim, entry("d0", condition()), owner="plugin").ok()
    later = condition(lastTransitionTime="2026-11-29T13:13:24Z")
    reply = ground.confirm(claim, entry("d0", later), owner="controller")
    assert reply.code == 409
    assert reply.causes[0][1].endswith(".lastTransitionTime")


def test_what_an_apply_leaves_out_is_removed(ground: Ground) -> None:
    """5: an entry or condition that its only owner leaves out is gone; others' stay."""
    claim = ground.claim("d0", "d1")
    ground.confirm(claim, entry("d0", condition(DONE)), entry("d1", condition(DONE))).ok()
    ground.confirm(claim, entry("d0", condition(FAILED)), owner="controller").ok()
    assert ground.confirm(claim, entry("d0", condition("x.example.com/New"))).code == 200
    assert ground.conditions(claim, "d0") == {FAILED: "True", "x.example.com/New": "True"}
    assert [item["device"] for item in ground.status(claim)["devices"]] == ["d0"]


def test_an_empty_list_removes_what_is_ones_own(ground: Ground) -> None:
    """5: apply of an empty list removes own conditions and data; the entry others own stays."""
    claim = ground.claim("d0")
    ground.confirm(claim, entry("d0", condition(DONE), data={"a": 1}), owner="plugin").ok()
    ground.confirm(claim, entry("d0", condition(FAILED)), owner="controller").ok()
    assert ground.confirm(claim, owner="plugin").code == 200
    (left,) = ground.status(claim)["devices"]
    assert left["device"] == "d0"
    assert "data" not in left
    assert ground.conditions(claim) == {FAILED: "True"}


def test_a_plain_write_takes_ownership(ground: Ground) -> None:
    """5: after a merge patch by a third client an apply conflicts until it uses force."""
    claim = ground.claim("d0")
    ground.confirm(claim, entry("d0", condition()), owner="plugin").ok()
    body = {"status": {"devices": [entry("d0", condition(status="False"))]}}
    ground.merge(f"{claim}/status", body).ok()
    reply = ground.confirm(claim, entry("d0", condition()), owner="plugin")
    assert reply.code == 409
    assert 'conflict with "unknown"' in reply.message
    forced = ground.confirm(claim, entry("d0", condition()), owner="plugin", force=True)
    assert forced.code == 200
    assert ground.conditions(claim) == {DONE: "True"}


def test_a_share_id_may_be_absent(ground: Ground) -> None:
    """5: the key shareID may be absent, and entries still merge by the other three keys."""
    claim = ground.claim("d0")
    ground.confirm(claim, entry("d0", condition(DONE)), owner="one").ok()
    ground.confirm(claim, entry("d0", condition(FAILED)), owner="two").ok()
    assert len(ground.status(claim)["devices"]) == 1


def test_reservations_merge_by_uid(ground: Ground) -> None:
    """9: a reservation of our own, by apply, leaves the others untouched; [] releases it."""
    claim = ground.claim("d0")
    ground.apply(claim, {"reservedFor": [reservation("a")]}, owner="one").ok()
    ground.apply(claim, {"reservedFor": [reservation("b")]}, owner="two").ok()
    names = {item["name"] for item in ground.status(claim)["reservedFor"]}
    assert names == {"a", "b"}
    assert ground.apply(claim, {"reservedFor": []}, owner="two").code == 200
    assert [item["name"] for item in ground.status(claim)["reservedFor"]] == ["a"]
