"""A lease ends when it was seen unchanged for its time, by nobody's wall clock."""

from __future__ import annotations

from fleet.clock import ManualClock
from fleet.model import Lease, Token
from fleet.stores.dynamodb_sheet import StoredLease
from fleet.stores.dynamodb_watch import SKEW_S, Watch
from tests.contracts.lease_store_contract import START, campaign, claim, units


def stored(end: float, given: str = "w0") -> StoredLease:
    """A lease of a minute whose writer's clock said `end`."""
    return StoredLease(Lease(units("u"), campaign("r"), Token(1, 1), end), 60.0, given, given)


def end(watch: Watch, lease: StoredLease, clock: ManualClock) -> float | None:
    """When it ends for us."""
    return watch.ends({"k": lease}, clock.monotonic())["k"]


def test_a_writer_whose_clock_is_ahead_or_behind_changes_nothing() -> None:
    """DESIGN 4: an hour ahead is over after the minute it was given; minutes behind are not over
    before."""
    for skew_s in (3600.0, -300.0):
        clock = ManualClock(START)
        watch, lease = Watch(clock), stored(START + skew_s)
        first = end(watch, lease, clock)
        assert first is not None
        assert first > clock.now()
        clock.advance(59.0)
        assert (end(watch, lease, clock) or 0.0) > clock.now()
        clock.advance(1.0)
        assert (end(watch, lease, clock) or 0.0) <= clock.now()


def test_a_renewal_begins_anew() -> None:
    """DESIGN 4: what was given again is watched again."""
    clock = ManualClock(START)
    watch = Watch(clock)
    end(watch, stored(START), clock)
    clock.advance(59.0)
    assert end(watch, stored(START, "w1"), clock) == clock.now() + 60.0
    watch.begin({"k": stored(START, "w2")})
    clock.advance(60.0)
    assert end(watch, stored(START, "w2"), clock) == START


def test_what_is_long_over_or_never_ends_is_not_watched() -> None:
    """E5: only clocks that AWS would not take signatures of could differ by more."""
    clock = ManualClock(START)
    watch = Watch(clock)
    assert end(watch, stored(START - SKEW_S), clock) == START - SKEW_S
    forever = StoredLease(Lease(units("u"), claim("a"), Token(1, 1)), None, "w0", "w0")
    assert end(watch, forever, clock) is None


def test_time_a_request_took_is_not_time_it_was_seen_unchanged() -> None:
    """DESIGN 4: what was asked for before the minute was over says nothing of its end."""
    clock = ManualClock(START)
    watch, lease = Watch(clock), stored(START)
    end(watch, lease, clock)
    clock.advance(59.0)
    asked_at = clock.monotonic()
    clock.advance(5.0)
    assert watch.ends({"k": lease}, asked_at)["k"] == clock.now() + 1.0


def test_what_is_gone_is_forgotten() -> None:
    """B6: memory is bounded by the leases there are."""
    clock = ManualClock(START)
    watch, lease = Watch(clock), stored(START)
    end(watch, lease, clock)
    clock.advance(60.0)
    watch.keep_only([])
    assert end(watch, lease, clock) == clock.now() + 60.0
    watch.begin({"k": None})
    assert end(watch, lease, clock) == clock.now() + 60.0
