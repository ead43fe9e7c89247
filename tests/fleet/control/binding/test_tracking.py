"""What may be forgotten: pauses, numbers, agenda."""

from __future__ import annotations

from fleet.control.binding.decisions import BUSY_S
from fleet.control.binding.tracking import LEAP_S, STUCK_S, UNDOING_MAX_S, Agenda, Track, Watch
from fleet.core.model import Token


def test_another_token_begins_anew() -> None:
    """Operations of an earlier lease never stand for those of a new one."""
    track = Track()
    track.under(Token(1, 1), "i")
    track.numbers["d"] = 2
    track.sent.add("d")
    old = track.operation("u", "d")
    track.under(Token(1, 2), "i")
    assert not track.sent
    assert track.operation("u", "d") != old
    assert track.operation("u", "d").endswith("/0")


def test_a_restarted_node_is_asked_again_under_the_same_name() -> None:
    """A node that may have lost an order gets it again; one that knows it does nothing twice."""
    track = Track()
    track.under(Token(1, 1), "i")
    track.numbers["d"] = 1
    track.sent.add("d")
    name = track.operation("u", "d")
    track.under(Token(1, 1), "another")
    assert not track.sent
    assert track.operation("u", "d") == name


def test_the_earliest_time_wins() -> None:
    """A claim that changed is looked at now, though it was due later; and once only."""
    agenda = Agenda()
    agenda.at("a", 30.0)
    agenda.at("a", 5.0)
    agenda.at("a", 20.0)
    assert agenda.take(4.9, 9) == []
    assert agenda.take(5.0, 9) == ["a"]
    assert agenda.take(99.0, 9) == []


def test_what_does_not_fit_stays_due() -> None:
    """A bounded step leaves the rest for the next, the longest overdue first."""
    agenda = Agenda()
    for place, uid in enumerate("cab"):
        agenda.at(uid, float(place))
    assert agenda.take(9.0, 2) == ["c", "a"]
    assert agenda.take(9.0, 2) == ["b"]


def test_a_clock_that_goes_back_stops_nothing() -> None:
    """What was due an hour ahead by a wrong clock is due at once when it is set right."""
    agenda, track = Agenda(), Track(refused="x", refused_until=3600.0, unused_since=3600.0)
    agenda.at("a", 3630.0)
    agenda.rewind(10.0)
    track.rewind()
    assert agenda.take(10.0, 9) == ["a"]
    assert (track.refused_until, track.unused_since) == (0.0, None)


def test_leaps_of_a_clock_are_not_watched() -> None:
    """A clock that is set, in either direction, adds nothing to what we have watched."""
    watch = Watch()
    for now in (1000.0, 1002.0, 1600.0 + LEAP_S, 1601.0 + LEAP_S, 5.0, 6.0):
        watch.step(now)
    assert watch.seconds == 4.0


def test_an_operation_counts_from_when_the_node_took_it_in() -> None:
    """One that is handed in again is the same; a node that began anew begins it anew."""
    track = Track(token=Token(1, 1), incarnation="i")
    track.taken_in("d", 10.0)
    track.taken_in("d", 20.0)
    assert track.ordered_since == {"d": 10.0}
    track.under(Token(1, 1), "another")
    assert track.ordered_since == {}


def test_a_pledge_counts_from_when_its_words_were_seen() -> None:
    """A renewed pledge is another one."""
    track = Track()
    assert [track.pledged("me 1", 50.0), track.pledged("me 1", 60.0)] == [0.0, 10.0]
    assert track.pledged("me 2", 70.0) == 0.0


def test_another_allocation_is_one_that_we_saw_come() -> None:
    """What we found at the start is told apart from what came while we watched."""
    track = Track(followed=False)
    told = []
    for allocation in ("first", "first", "second"):
        track.given(allocation)
        told.append((track.followed, track.pending_since))
        track.pending_since = 3.0
    assert told == [(False, None), (False, 3.0), (True, None)]


def test_what_cannot_be_given_back_is_tried_ever_more_slowly() -> None:
    """Pauses double up to a bound, and end with the first success."""
    track, token = Track(), Token(1, 1)
    pauses = []
    for _ in range(6):
        track.left([token], 100.0)
        pauses.append(track.undoing_s)
    assert pauses[:2] == [BUSY_S, 2 * BUSY_S]
    assert pauses[-1] == UNDOING_MAX_S
    assert track.is_stuck(token, 100.0 + STUCK_S - 1.0)
    assert not track.is_stuck(token, 100.0 + STUCK_S)
    track.left([], 100.0)
    assert track.undoing_s == 0.0
    assert not track.is_stuck(token, 100.0)
