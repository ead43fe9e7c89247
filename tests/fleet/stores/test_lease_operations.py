"""Rules of counting lease operations."""

from __future__ import annotations

import pytest

from fleet.core import errors
from fleet.stores import lease_operations


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (True, "done"),
        (False, "done"),
        (errors.LeaseHeld("another has it"), "held"),
        (errors.LeaseLost("gone"), "refused"),
        (errors.StoreUnavailable("away"), "unavailable"),
    ],
)
def test_an_answer_counts_under_one_result(answer: object, result: str) -> None:
    """E4: what is everyday, what is a fault and what nobody knows are told apart."""
    assert lease_operations.result_of(answer) == result
    assert result in lease_operations.RESULTS
