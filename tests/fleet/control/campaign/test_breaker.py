"""The circuit breaker (case B50)."""

from __future__ import annotations

import pytest

from fleet.control.campaign.breaker import SPELLS, Breaker, Stance
from fleet.core.settings import CampaignPolicy

POLICY = CampaignPolicy(breaker_failures=3, breaker_fraction=0.5, breaker_window_s=100)


def after(*finished: tuple[float, bool]) -> Breaker:
    breaker = Breaker(POLICY)
    for at, failed in finished:
        breaker = breaker.record(at, failed=failed)
    return breaker


@pytest.mark.parametrize(
    ("finished", "stance"),
    [
        ([], Stance.CLOSED),
        ([(0, True), (1, True)], Stance.CLOSED),
        ([(0, True), (1, True), (2, True)], Stance.OPEN),
        ([(n, False) for n in range(4)] + [(5, True), (6, True), (7, True)], Stance.CLOSED),
        ([(n, False) for n in range(3)] + [(5, True), (6, True), (7, True)], Stance.OPEN),
        ([(0, True), (1, True), (101, True)], Stance.CLOSED),
        ([(0, True), (1, True), (2, True), (500, False)], Stance.OPEN),
    ],
)
def test_when_it_opens(finished: list[tuple[float, bool]], stance: Stance) -> None:
    """B50: count and fraction within the window; once open it stays open by itself."""
    assert after(*finished).stance is stance


def test_open_starts_nothing_and_closed_sets_no_limit() -> None:
    """B50: the brake is on starts; it says nothing about what runs."""
    assert after((0, True), (1, True), (2, True)).starts_allowed(5) == 0
    assert after().starts_allowed(5) is None


def test_half_open_lets_one_through_at_a_time() -> None:
    """B50: only a person goes on, and then one device at a time."""
    half = after((0, True), (1, True), (2, True)).resume()
    assert half.stance is Stance.HALF_OPEN
    assert (half.starts_allowed(0), half.starts_allowed(1)) == (1, 0)
    assert half.record(3, failed=False).stance is Stance.CLOSED
    assert half.record(3, failed=True).stance is Stance.OPEN


def test_nothing_is_remembered_across_a_resume() -> None:
    """B50: old failures do not trip it again after it was closed."""
    closed = after((0, True), (1, True), (2, True)).resume().record(3, failed=False)
    assert closed.seen == ()
    assert closed.record(4, failed=True).record(5, failed=True).stance is Stance.CLOSED


def test_resuming_a_closed_breaker_changes_nothing() -> None:
    """A resume by mistake does not slow a healthy campaign."""
    assert after((0, True)).resume() == after((0, True))


def test_it_explains_itself() -> None:
    """The report says how many of how many failed, and in what time."""
    assert after((0, True), (1, True), (2, True)).explain() == (
        "3 of the last 3 devices failed within 100 s"
    )


def test_it_costs_the_same_however_many_devices_end() -> None:
    """B50, E5: a window of thousands of devices is kept as a few sums, and none is forgotten."""
    breaker = Breaker(CampaignPolicy(breaker_failures=10_000, breaker_window_s=100))
    for number in range(3000):
        breaker = breaker.record(number / 50, failed=number % 3 == 0)
    assert len(breaker.seen) <= SPELLS + 1
    assert (breaker.finished, breaker.failures) == (3000, 1000)


def test_the_window_is_left_by_parts() -> None:
    """B50: a failure counts for the window, and for no more than a part of it longer."""
    part_s = POLICY.breaker_window_s / SPELLS
    first = after((0.0, True), (part_s * 0.9, True))
    assert first.record(100.0, failed=False).failures == 2
    assert first.record(100.0 + part_s, failed=False).failures == 0
