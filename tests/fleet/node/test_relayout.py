"""Memory that is divided otherwise is the same memory: what was known of it goes along."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core import sqlite
from fleet.core.model import (
    Accelerator,
    ClaimUid,
    Device,
    Source,
    State,
    Token,
    Unit,
    UnitId,
    UnitSpec,
    Uuid,
)
from fleet.devices.health import reasons
from fleet.node import relayout
from fleet.node.journal import schema
from fleet.node.journal.journal import Journal

GPU = Uuid("GPU-11111111-2222-3333-4444-555555555555")
NOW = 1000.0


def accelerator(*slices: str) -> Accelerator:
    """One of 80 bytes, in equal parts."""
    ids = tuple(UnitId(f"{GPU}/{name}") for name in slices)
    specs = tuple(UnitSpec(one, 80 // len(ids)) for one in ids)
    return Accelerator(GPU, specs, (Device(GPU, "gpu", GPU, ids, 80),))


WHOLE, SLICED = accelerator("all"), accelerator("m0", "m1")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """An empty journal."""
    path = tmp_path / "journal.db"
    opened = Journal(sqlite.open_database(path, schema=schema.SCHEMA, timeout_s=5))
    yield opened
    opened.close()


def divide(journal: Journal, found: Accelerator) -> None:
    """What a load of the inventory does."""
    known = list(journal.units.values())
    with journal.commit() as commit:
        for spec in found.units:
            if spec.id not in journal.units:
                commit.put_unit(Unit(spec.id))
        relayout.settle(commit, known, found, now=NOW)


def put(journal: Journal, *units: Unit) -> None:
    """Store units as they are."""
    with journal.commit() as commit:
        for unit in units:
            commit.put_unit(unit)


def states(journal: Journal, found: Accelerator) -> Sequence[State]:
    """The states of an accelerator's units, in order."""
    return [journal.units[spec.id].state for spec in found.units]


def test_promise_5_a_new_division_of_free_memory_is_dirty_and_the_old_one_is_not_trusted(
    journal: Journal,
) -> None:
    """Promise 5: switching partitioning on makes nothing clean, and off again neither."""
    divide(journal, WHOLE)
    put(journal, replace(journal.units[WHOLE.units[0].id], state=State.CLEAN, floor=Token(1, 7)))
    divide(journal, SLICED)
    assert states(journal, SLICED) == [State.DIRTY, State.DIRTY]
    assert states(journal, WHOLE) == [State.DIRTY]
    assert {journal.units[spec.id].floor for spec in SLICED.units} == {Token(1, 7)}
    put(journal, *(replace(journal.units[s.id], state=State.CLEAN) for s in SLICED.units))
    divide(journal, WHOLE)
    assert states(journal, WHOLE) == [State.DIRTY]
    assert states(journal, SLICED) == [State.DIRTY, State.DIRTY]


@pytest.mark.parametrize("state", [State.HELD, State.IN_USE])
def test_promise_4_memory_somebody_may_hold_stays_held(journal: Journal, state: State) -> None:
    """Promise 4: what was held as a whole is held in parts, whoever switched the mode."""
    divide(journal, WHOLE)
    put(journal, replace(journal.units[WHOLE.units[0].id], state=state, claim=ClaimUid("c")))
    divide(journal, SLICED)
    assert states(journal, SLICED) == [State.HELD, State.HELD]


def test_a_division_that_comes_back_while_somebody_held_the_other_is_quarantined(
    journal: Journal,
) -> None:
    """Doubt: units known to be free are not believed so when a claim had the memory otherwise."""
    divide(journal, WHOLE)
    put(journal, replace(journal.units[WHOLE.units[0].id], state=State.DIRTY))
    divide(journal, SLICED)
    first = SLICED.units[0].id
    put(journal, replace(journal.units[first], state=State.IN_USE, claim=ClaimUid("c")))
    divide(journal, WHOLE)
    (unit,) = (journal.units[spec.id] for spec in WHOLE.units)
    assert unit.state is State.QUARANTINED
    assert [reason.code for reason in unit.reasons] == [relayout.CHANGED]


def test_faults_go_with_the_memory(journal: Journal) -> None:
    """B15: a quarantined GPU is not healthy again because it was divided."""
    divide(journal, WHOLE)
    fault = reasons.make("remap-failed", Source.HEALTH, detail="", since=1.0)
    broken = replace(
        journal.units[WHOLE.units[0].id], state=State.QUARANTINED, reasons=frozenset({fault})
    )
    put(journal, broken)
    divide(journal, SLICED)
    assert states(journal, SLICED) == [State.QUARANTINED, State.QUARANTINED]
    assert all(journal.units[spec.id].reasons == {fault} for spec in SLICED.units)


def test_a_division_that_is_recorded_changes_nothing(journal: Journal) -> None:
    """A load that finds what it knows leaves clean memory clean."""
    divide(journal, SLICED)
    put(journal, *(replace(journal.units[s.id], state=State.CLEAN) for s in SLICED.units))
    divide(journal, SLICED)
    assert states(journal, SLICED) == [State.CLEAN, State.CLEAN]
