"""Our marks on claims."""

from __future__ import annotations

import pytest

from fleet.kube.marks import Marks

MARKS = Marks("gpu.example.com")


def test_everything_carries_the_drivers_name() -> None:
    """Conditions, finalizer and reservation of two drivers on one claim never meet."""
    mine = (MARKS.sanitized, MARKS.healthy, MARKS.failed, MARKS.finalizer)
    assert len(set(mine)) == 4
    assert all(one.startswith("gpu.example.com/") for one in mine)
    assert MARKS.hold(node="n1", uid="u")["apiGroup"] == "gpu.example.com"


@pytest.mark.parametrize(
    "entry",
    [
        {"resource": "pods", "name": "p", "uid": "u"},
        {"apiGroup": "other.example.com", "resource": "holds", "name": "n1", "uid": "u"},
        {"apiGroup": "gpu.example.com", "resource": "locks", "name": "n1", "uid": "u"},
        {},
    ],
)
def test_only_our_own_entry_is_our_hold(entry: dict[str, object]) -> None:
    """B12: a pod, or another driver's reservation, is never taken for ours."""
    assert MARKS.is_hold(MARKS.hold(node="n1", uid="u"))
    assert not MARKS.is_hold(entry)
