"""What may be forgotten: pauses, numbers, agenda."""

from __future__ import annotations

from fleet.binding.tracking import Agenda, Track
from fleet.model import Token


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
