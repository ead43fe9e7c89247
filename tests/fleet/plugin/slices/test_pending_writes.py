"""Writes without an answer."""

from __future__ import annotations

from fleet.plugin.slices.publisher import Outstanding


def part(name: str, version: str) -> dict[str, object]:
    """A slice as far as it matters here."""
    return {"metadata": {"name": name, "resourceVersion": version}}


def test_an_update_is_outstanding_until_its_guard_is_void() -> None:
    """Promise 6: while the slice still has the version the update was made from, it may land."""
    outstanding = Outstanding()
    outstanding.add(part("a", "5"))
    outstanding.settle([part("a", "5"), part("b", "7")])
    assert outstanding
    outstanding.settle([part("a", "6")])
    assert not outstanding


def test_a_slice_that_is_gone_cannot_be_updated_late() -> None:
    """A replace of a deleted object fails: nothing is outstanding any more."""
    outstanding = Outstanding()
    outstanding.add(part("a", "5"))
    outstanding.settle([])
    assert not outstanding
