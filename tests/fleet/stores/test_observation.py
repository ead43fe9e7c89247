"""A lease ends when it was seen unchanged for its time, by nobody's wall clock."""

from __future__ import annotations

import pytest

from fleet.core.model import Lease, Token
from fleet.stores.observation import UNSTATED_S, Observation, Term
from tests.contracts.lease_store_contract import START, OwnClock, campaign, claim, units

TERM = Term(60.0, "one")


def lease(end: float | None = START) -> Lease:
    """A lease whose writer's clock said `end`."""
    return Lease(units("u"), campaign("r"), Token(1, 1), end)


def left_s(seen: Lease, clock: OwnClock) -> float:
    """How long it is in force for us, s."""
    assert seen.expires_at is not None
    return seen.expires_at - clock.now()


@pytest.mark.parametrize("skew_s", [0.0, 3600.0, -3600.0])
def test_b49_neither_clock_on_the_wall_shortens_or_extends_a_lease(skew_s: float) -> None:
    """B49: its whole length, counted from when it was seen first; our clock may be set."""
    clock = OwnClock()
    observed = Observation(clock)
    assert left_s(observed.seen(lease(START + skew_s), TERM), clock) == 60.0
    clock.passed_s += 30.0
    clock.skew_s += skew_s
    assert left_s(observed.seen(lease(START + skew_s), TERM), clock) == 30.0
    clock.passed_s += 30.0
    assert left_s(observed.seen(lease(START + skew_s), TERM), clock) == 0.0
    assert left_s(observed.seen(lease(START + skew_s), Term(60.0, "two")), clock) == 60.0


def test_b49_what_never_ends_does_not_and_what_states_no_length_has_the_longest() -> None:
    """B49: a lease without a ttl has no end; one that an older version wrote lasts ten minutes."""
    clock = OwnClock()
    observed = Observation(clock)
    forever = Lease(units("u"), claim("a"), Token(1, 1))
    assert observed.seen(forever, None) == forever
    assert left_s(observed.seen(lease(START - 7_200.0), None), clock) == UNSTATED_S
    clock.passed_s += UNSTATED_S
    assert left_s(observed.seen(lease(START - 7_200.0), None), clock) == 0.0


def test_b49_time_a_request_took_is_not_time_it_was_seen_unchanged() -> None:
    """B49: what was asked for before the minute was over says nothing of its end."""
    clock = OwnClock()
    observed = Observation(clock)
    observed.seen(lease(), TERM)
    clock.passed_s += 59.0
    asked_at = clock.monotonic()
    clock.passed_s += 5.0
    assert left_s(observed.seen(lease(), TERM, asked_at=asked_at), clock) == 1.0
