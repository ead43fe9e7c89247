"""Results on their way into the run's record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from fleet.control.campaign.ports import CampaignCoordinator
from fleet.control.campaign.run import APPENDED_MAX, Keeping
from fleet.core import errors
from fleet.core.messages import DeviceResult, Outcome


class Store:
    """Takes results, unless it is away."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.kept: list[str] = []
        self.away = False

    def append(self, run: str, results: Sequence[DeviceResult]) -> None:
        assert run == "r1"
        if self.away:
            raise errors.StoreUnavailable("away")
        self.calls.append(len(results))
        self.kept += [result.uuid for result in results]


def row(uuid: str) -> DeviceResult:
    return DeviceResult(node="n", device="d", uuid=uuid, outcome=Outcome.CERTIFIED, state="CLEAN")


def keeping() -> tuple[Keeping, Store]:
    store = Store()
    return Keeping("r1", cast("CampaignCoordinator", cast("Any", store))), store


def test_what_a_store_that_is_away_did_not_take_goes_out_again() -> None:
    """E5: no result is lost, none goes out twice, and their order stays."""
    ours, store = keeping()
    store.away = True
    ours.add(row("a"))
    with pytest.raises(errors.StoreUnavailable):
        ours.save()
    ours.add(row("b"))
    store.away = False
    ours.save()
    ours.save()
    assert (store.kept, store.calls) == (["a", "b"], [2])


def test_many_results_go_out_in_parts() -> None:
    """E5: one run does not keep the store from the others while it hands over a whole fleet."""
    ours, store = keeping()
    for number in range(APPENDED_MAX + 1):
        ours.add(row(str(number)))
    ours.save()
    assert store.calls == [APPENDED_MAX, 1]


def test_the_last_rows_are_made_as_they_are_handed_over() -> None:
    """E5: the rows of a stopped run's devices are never all in memory, and a break loses none."""
    ours, store = keeping()
    made: list[str] = []

    def rows() -> Any:
        for number in range(2 * APPENDED_MAX):
            made.append(str(number))
            yield row(str(number))

    ours.add(row("first"))
    ours.end_with(rows())
    store.away = True
    with pytest.raises(errors.StoreUnavailable):
        ours.save()
    assert made == []
    store.away = False
    ours.save()
    assert store.kept == ["first", *made]
    assert store.calls == [1, APPENDED_MAX, APPENDED_MAX]
