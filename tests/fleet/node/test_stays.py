"""Whom a fault of an instance concerns: by what lay there then, and in doubt everybody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core import sqlite
from fleet.core.model import BootId, UnitId, Uuid
from fleet.node import stays
from fleet.node.journal import schema
from fleet.node.journal.journal import Journal
from fleet.node.stays import Stay

GPU = Uuid("GPU-00000000-0000-4000-8000-0000000000a0")
BOOT = BootId("boot-1")
LONG = 100.0
"""Time, s, beyond the clocks' margin."""


def units(*numbers: int) -> tuple[UnitId, ...]:
    return tuple(UnitId(f"{GPU}/m{number}") for number in numbers)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """An empty journal."""
    path = tmp_path / "journal.db"
    opened = Journal(sqlite.open_database(path, schema=schema.SCHEMA, timeout_s=5))
    yield opened
    opened.close()


def begin(journal: Journal, *found: Stay) -> None:
    with journal.commit() as commit:
        for stay in found:
            stays.begin(commit, GPU, BOOT, stay)


def end(journal: Journal, stay: Stay, now_s: float) -> None:
    with journal.commit() as commit:
        stays.end(commit, GPU, BOOT, replace(stay, until=now_s))


def struck(journal: Journal, gi: int, at_s: float | None) -> frozenset[UnitId] | None:
    return stays.struck(journal, GPU, BOOT, gi=gi, at_s=at_s)


def test_b70_a_fault_concerns_what_lay_there_then(journal: Journal) -> None:
    """B70, promise 9: a number given out again says nothing of who has it now."""
    first = Stay(2, units(0, 1), since=LONG)
    begin(journal, first)
    end(journal, first, 2 * LONG)
    begin(journal, Stay(2, units(4, 5), since=3 * LONG), Stay(1, units(6), since=LONG))
    assert struck(journal, 2, 1.5 * LONG) == frozenset(units(0, 1))
    assert struck(journal, 2, 4 * LONG) == frozenset(units(4, 5))
    assert struck(journal, 1, 4 * LONG) == frozenset(units(6))


def test_b70_in_doubt_everybody_is_meant(journal: Journal) -> None:
    """B70: unknown numbers, times without a stay, no time and several places: all units."""
    first = Stay(2, units(0), since=LONG)
    begin(journal, first)
    assert struck(journal, 7, LONG) is None
    assert struck(journal, 2, 0.0) is None
    assert struck(journal, 2, None) == frozenset(units(0))
    end(journal, first, 2 * LONG)
    begin(journal, Stay(2, units(3), since=2 * LONG))
    assert struck(journal, 2, None) is None
    assert struck(journal, 2, 2 * LONG) == frozenset(units(0, 3))


def test_a_reboot_forgets_and_what_stays_at_its_place_is_one_stay(journal: Journal) -> None:
    """Numbers of another boot are nobody's; a claim after a wipe at one place adds nothing."""
    for start in range(1, 2 * stays.KEPT):
        stay = Stay(5, units(1), since=start * LONG)
        begin(journal, stay)
        end(journal, stay, (start + 0.5) * LONG)
    begin(journal, Stay(6, units(2), since=LONG))
    assert struck(journal, 5, 1.2 * LONG) == frozenset(units(1))
    assert struck(journal, 6, 1.2 * LONG) == frozenset(units(2))
    assert stays.struck(journal, GPU, BootId("boot-2"), gi=5, at_s=1.2 * LONG) is None


def test_b70_a_number_given_out_again_ends_the_stay_elsewhere(journal: Journal) -> None:
    """B70, gpus-8.33: who removed the first from outside told nobody; the second is not the first.

    That the first one's record is dropped later says nothing of the second.
    """
    first, second = Stay(7, units(0), since=LONG), Stay(7, units(4), since=3 * LONG)
    begin(journal, first, second)
    end(journal, first, 4 * LONG)
    assert struck(journal, 7, 5 * LONG) == frozenset(units(4))
    assert struck(journal, 7, LONG) == frozenset(units(0))


def test_many_places_are_forgotten_from_the_oldest(journal: Journal) -> None:
    """The record does not grow for ever; what it lost concerns everybody."""
    for start in range(1, stays.KEPT + 2):
        begin(journal, Stay(start, units(start), since=start * LONG))
    assert struck(journal, 1, LONG) is None
    assert struck(journal, 2, 2 * LONG) == frozenset(units(2))
