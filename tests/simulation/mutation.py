"""Broken versions of the protocol: each drops exactly one rule, and one property must notice.

A rule that stands alone is dropped alone. Where two guards cover each other on purpose (real checks
race, the model's do not), dropping one is harmless and both are dropped together; the text says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet.core import claim_states, unit_states
from fleet.core.claim_states import ClaimEvent, ClaimFact, ClaimState
from fleet.core.model import State
from fleet.core.table import Table
from fleet.core.unit_states import Event, Fact
from tests.simulation.rules import Rules
from tests.simulation.world import Scenario

UnitTable = Table[State, Event, Fact]
ClaimTable = Table[ClaimState, ClaimEvent, ClaimFact]

ONE = ((0,),)
TWO = ((0,), (0,))
PARENT_CHILD = ((0, 1), (0,))
NEIGHBOURS = ((0,), (1,))
PARENT = ((0, 1),)
HOLDER_AND_LOOKER = ((0,), ())
LOOKS = ((), (0,))
"""The second claim of `HOLDER_AND_LOOKER` is attached to the device of the first."""


@dataclass(frozen=True)
class Mutant:
    """A broken protocol, where to look at it, and which property catches it."""

    rule: str
    caught_by: str
    scenario: Scenario
    rules: Rules
    ignored: frozenset[str] = frozenset()
    """Checks left out, to see what follows physically from what they would notice first."""

    def __str__(self) -> str:
        return f"without: {self.rule}"


def without(table: UnitTable, event: Event, *facts: Fact) -> UnitTable:
    """The table whose rows for `event` do not ask for these facts."""
    return Table(
        table.name,
        tuple(
            replace(row, requires=row.requires - set(facts)) if row.event is event else row
            for row in table.rows
        ),
    )


def redirected(table: UnitTable, event: Event, state: State, to: State) -> UnitTable:
    """The table in which `event` in `state` always leads to `to`."""
    return Table(
        table.name,
        tuple(
            replace(row, to=to, requires=frozenset())
            if row.event is event and row.state is state
            else row
            for row in table.rows
        ),
    )


def claims_redirected(event: ClaimEvent, state: ClaimState, to: ClaimState) -> ClaimTable:
    """The table of claims in which `event` in `state` always leads to `to`."""
    return Table(
        claim_states.TABLE.name,
        tuple(
            replace(row, to=to, requires=frozenset())
            if row.event is event and row.state is state
            else row
            for row in claim_states.TABLE.rows
        ),
    )


def unjoined() -> ClaimTable:
    """The table of claims in which a teardown joins nobody."""
    return Table(
        claim_states.TABLE.name,
        tuple(
            replace(row, requires=row.requires - {ClaimFact.PREPARE_JOINED})
            for row in claim_states.TABLE.rows
        ),
    )


def at(
    devices: tuple[tuple[int, ...], ...], profile: str, faults: str = "", budget: int = 0
) -> Scenario:
    """A small scenario; `faults` are names parted by commas, `budget` how many strike."""
    kinds = frozenset(faults.split(", ")) if faults else frozenset()
    return Scenario("mutant", devices, profile=profile, faults=kinds, budget=budget)


def flow(*rules: str) -> Rules:
    """The protocol without these flow rules."""
    return Rules(dropped=frozenset(rules))


START = (Event.WIPE_STARTED, Event.RETEST_STARTED)


def starting(*facts: Fact) -> UnitTable:
    """The table of units whose wipes and retests start without these facts."""
    table = unit_states.TABLE
    for event in START:
        table = without(table, event, *facts)
    return table
