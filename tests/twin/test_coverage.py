"""What stories met is counted, and gaps are told: rows, kinds, and rows said to be out of reach."""

from __future__ import annotations

from collections import Counter

from fleet.core import unit_states
from fleet.core.claim_states import TABLE as CLAIMS
from fleet.core.model import State, Unit, UnitId
from fleet.core.unit_states import Event
from tests.twin.coverage import IN_FORCE_S, UNREACHABLE, Coverage, Weather, excused, keys
from tests.twin.kinds import CONTROL, KINDS, MESSAGES, NODES, NONE, RATES
from tests.twin.misfortune import Misfortune
from tests.twin.users import Users
from tests.twin.world import World


def full() -> Coverage:
    """Everything that can be met was met once."""
    rows = Counter({key: 1 for key in keys() if not excused(key)})
    return Coverage(rows, kinds=Counter(dict.fromkeys(KINDS, 1)))


def test_rows_are_counted_with_the_trouble_in_force() -> None:
    """Issue 8: a row taken within twenty seconds of a strike counts with it, later with none."""
    now, seen = 0.0, Coverage()
    weather = Weather(lambda: now)
    unit = Unit(UnitId("u"), State.HELD)
    with seen.watching(weather):
        unit_states.step(unit, Event.PROVEN_FREE, now=0.0)
        weather.where = "n0"
        weather.strike("disk-full", "n0")
        unit_states.step(unit, Event.PROVEN_FREE, now=0.0)
        now = IN_FORCE_S + 1.0
        unit_states.step(unit, Event.PROVEN_FREE, now=0.0)
    unit_states.step(unit, Event.PROVEN_FREE, now=0.0)
    assert seen.triples == {
        ("unit", "HELD", "ProvenFree", NONE): 2,
        ("unit", "HELD", "ProvenFree", "disk-full"): 1,
    }
    assert not unit_states.TABLE.observers
    assert not CLAIMS.observers


def test_gaps_are_told() -> None:
    """A row never taken, a kind never struck and an excuse that does not hold are each named."""
    seen = full()
    assert [*seen.untaken(), *seen.impossible(), *seen.unstruck()] == []
    missing = next(key for key in keys() if not excused(key))
    wrong = next(key for key in keys() if excused(key))
    del seen.rows[missing], seen.kinds["disk-full"]
    seen.rows[wrong] = 1
    assert (seen.untaken(), seen.impossible()) == ([missing], [wrong])
    assert seen.unstruck() == ["disk-full"]
    told = "\n".join(seen.lines())
    assert "never taken: " in told
    assert "out of reach, yet taken: " in told
    assert "never struck: disk-full" in told


def test_every_excuse_is_for_a_row_that_is_there() -> None:
    """A row that the tables lost, or renamed, excuses nothing."""
    rows = {
        (table.name, str(row.state), str(row.event), str(row.to))
        for table in (unit_states.TABLE, CLAIMS)
        for row in table.rows
    }
    assert rows >= UNREACHABLE.keys()
    assert all(UNREACHABLE.values())


def test_every_kind_is_drawn_somewhere() -> None:
    """A kind of trouble in the catalogue is a rate, a fate of wipes or a move of the story."""
    world = World()
    users = Users(world)
    moves = {move.kind for move in (*users.moves(), *Misfortune(world, users).moves())}
    assert {*MESSAGES} <= RATES.keys()
    assert {*NODES, *CONTROL} <= moves | RATES.keys()
