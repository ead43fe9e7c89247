"""Rules of decoding."""

from __future__ import annotations

import pytest

from fleet.kube.base import CLAIMS, Object
from tests.lab.apiserver.decoder import check_typed, converted, decode
from tests.lab.apiserver.refusal import Refusal
from tests.lab.apiserver.schema import CLAIM, LEASE, SLICE


def test_unknown_fields_and_nulls_are_dropped() -> None:
    """An ordinary write loses what the server does not know, without a word."""
    body = {"metadata": {"name": "a", "labels": None}, "spec": {"unheardOf": 1}, "other": {}}
    assert decode(body, CLAIM) == {"metadata": {"name": "a"}, "spec": {"devices": {}}}


def test_empty_lists_are_not_stored() -> None:
    """A slice published with an empty list of devices reads back without one."""
    body = {"spec": {"driver": "d", "devices": [], "pool": {"name": "p"}}}
    assert decode(body, SLICE)["spec"] == {"driver": "d", "pool": {"name": "p"}}


def test_opaque_content_is_left_alone() -> None:
    """data and opaque parameters are any JSON; only conditions are stored as null."""
    entry = {"driver": "d", "pool": "p", "device": "x", "data": {"a": None, "b": [None]}}
    body = {"status": {"devices": [entry]}}
    (found,) = decode(body, CLAIM)["status"]["devices"]
    assert found == {**entry, "conditions": None}


@pytest.mark.parametrize(
    "body",
    [
        {"spec": {"leaseTransitions": 2**31}},
        {"spec": {"leaseTransitions": "1"}},
        {"spec": {"leaseTransitions": True}},
        {"spec": {"holderIdentity": 7}},
        {"spec": {"acquireTime": "2026-11-29T13:13:23Z"}},
        {"spec": []},
    ],
)
def test_a_wrong_type_is_a_400(body: Object) -> None:
    """Numbers out of range, strings for numbers, booleans, lists for objects."""
    with pytest.raises(Refusal) as caught:
        decode(body, LEASE)
    assert caught.value.code == 400


def test_an_apply_of_a_value_that_does_not_parse_is_a_500() -> None:
    """The same mistake that is a 400 elsewhere."""
    body = {"status": {"allocation": {"allocationTimestamp": "now"}}}
    with pytest.raises(Refusal) as caught:
        converted(body, CLAIM, CLAIMS)
    assert caught.value.code == 500
    assert "Kind=ResourceClaim" in caught.value.message


def test_an_apply_lists_everything_it_does_not_understand() -> None:
    """Undeclared fields, wrong types and duplicate keys, each with its path."""
    device = {"driver": "d", "pool": "p", "device": "x"}
    body = {
        "status": {
            "devices": [device, device],
            "reservedFor": "nobody",
            "unheardOf": 1,
        }
    }
    with pytest.raises(Refusal) as caught:
        check_typed(body, CLAIM, label="a")
    message = caught.value.message
    assert ".status.devices: duplicate entries for key" in message
    assert ".status.reservedFor: expected list" in message
    assert ".status.unheardOf: field not declared in schema" in message


def test_an_apply_of_a_good_body_passes() -> None:
    """Nothing is raised, nulls included."""
    body: Object = {"metadata": {"name": "a"}, "status": {"devices": None}}
    check_typed(body, CLAIM, label="a")
    assert converted(body, CLAIM, CLAIMS)["metadata"] == {"name": "a"}
