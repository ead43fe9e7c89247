"""Rules of conditions (each refusal is also a row in tests/contracts/test_api_rows_conditions)."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.kube.memory.conditions import condition_causes

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
