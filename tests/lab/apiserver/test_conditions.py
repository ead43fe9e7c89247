"""Rules of conditions and network addresses (refusals are also rows in tests/contracts)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.apiserver.conditions import condition_causes, network_causes

GOOD = {
    "type": "x.example.com/Sanitized",
    "status": "True",
    "reason": "Done",
    "message": "",
    "lastTransitionTime": "2026-11-29T13:13:23Z",
}


def test_a_good_condition_has_no_causes() -> None:
    """Nothing is wrong with one that has all it needs."""
    assert condition_causes([GOOD], "c") == []


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"type": ""}, "c[0].type", "FieldValueRequired"),
        ({"type": "a b"}, "c[0].type", "FieldValueInvalid"),
        ({"status": "yes"}, "c[0].status", "FieldValueNotSupported"),
        ({"reason": ""}, "c[0].reason", "FieldValueRequired"),
        ({"reason": "1st"}, "c[0].reason", "FieldValueInvalid"),
        ({"reason": "R" * 1025}, "c[0].reason", "FieldValueTooLong"),
        ({"message": "ü" * 16385}, "c[0].message", "FieldValueTooLong"),
        ({"lastTransitionTime": ""}, "c[0].lastTransitionTime", "FieldValueRequired"),
        ({"observedGeneration": -1}, "c[0].observedGeneration", "FieldValueInvalid"),
    ],
)
def test_each_rule_has_its_field_and_reason(
    change: dict[str, Any], field: str, reason: str
) -> None:
    """One cause per broken rule; lengths count bytes."""
    (cause,) = condition_causes([{**GOOD, **change}], "c")
    assert (cause.field, cause.reason) == (field, reason)


def test_types_are_unique() -> None:
    """The second condition of a type is a duplicate."""
    (cause,) = condition_causes([GOOD, GOOD], "c")
    assert (cause.reason, cause.field) == ("FieldValueDuplicate", "c[1].type")


@pytest.mark.parametrize(
    ("network", "fields"),
    [
        ({"ips": ["10.9.8.7/24", "2001:db8::1/64"], "interfaceName": "net1"}, []),
        ({"ips": ["10.9.8.7"]}, ["n.ips[0]"]),
        ({"ips": ["10.9.8.700/24"]}, ["n.ips[0]"]),
        ({"ips": ["10.9.8.7/24"] * 17}, ["n.ips"]),
        ({"interfaceName": "i" * 257}, ["n.interfaceName"]),
        ({"hardwareAddress": "h" * 129}, ["n.hardwareAddress"]),
    ],
)
def test_network_addresses_have_their_form(network: dict[str, Any], fields: list[str]) -> None:
    """Addresses in CIDR form, names of limited size."""
    assert [cause.field for cause in network_causes(network, "n")] == fields
