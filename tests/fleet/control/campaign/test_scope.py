"""What an earlier part of a run leaves to the next."""

from __future__ import annotations

import pytest

from fleet.control.campaign.scope import Scope
from fleet.core.messages import DeviceResult, Outcome


def result(uuid: str, outcome: Outcome, operation: str = "") -> DeviceResult:
    return DeviceResult(
        operation=operation, node="n", device="d", uuid=uuid, outcome=outcome, state=""
    )


def test_only_certified_devices_stay_done() -> None:
    """E2: resume goes on with everything that was not certified."""
    found = Scope(results=tuple(result(o.value, o) for o in Outcome)).certified()
    assert set(found) == {"certified"}


@pytest.mark.parametrize(
    ("operations", "made"),
    [
        (["r/g/1"], {"g": 1}),
        (["r/g/1", "r/g/3", "r/g/2"], {"g": 3}),
        ([""], {}),
        (["odd"], {}),
    ],
)
def test_attempts_made_are_read_off_the_operations(
    operations: list[str], made: dict[str, int]
) -> None:
    """B60: a new attempt never reuses the id of one that has a result."""
    results = tuple(result("g", Outcome.FAILED, operation) for operation in operations)
    assert Scope(results=results).attempts_made() == made
