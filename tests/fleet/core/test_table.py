"""A table takes its first row whose facts hold, and refuses everything else."""

from __future__ import annotations

from enum import StrEnum

import pytest

from fleet.core import errors
from fleet.core.table import Row, Table


class Door(StrEnum):
    """States of the smallest machine that has a guard."""

    SHUT = "SHUT"
    OPEN = "OPEN"
    AJAR = "AJAR"


class Push(StrEnum):
    """Its one event."""

    PUSH = "Push"


class Known(StrEnum):
    """Its facts."""

    UNLOCKED = "unlocked"
    OILED = "oiled"


ROWS = (
    Row(Door.SHUT, Push.PUSH, Door.OPEN, frozenset({Known.UNLOCKED, Known.OILED})),
    Row(Door.SHUT, Push.PUSH, Door.AJAR, frozenset({Known.UNLOCKED})),
)
TABLE: Table[Door, Push, Known] = Table("door", ROWS)


def test_earlier_rows_win() -> None:
    """Of two rows that apply the first is taken; with fewer facts the next one."""
    assert TABLE.row(Door.SHUT, Push.PUSH, set(Known)).to is Door.OPEN
    assert TABLE.row(Door.SHUT, Push.PUSH, {Known.UNLOCKED}).to is Door.AJAR


def test_missing_facts_are_named() -> None:
    """A refusal names state, event and what each row still needed, in a fixed order."""
    with pytest.raises(errors.IllegalTransition) as caught:
        TABLE.row(Door.SHUT, Push.PUSH, set())
    assert caught.value.detail == (
        "door: Push is not possible in SHUT without: oiled, unlocked or unlocked"
    )
    assert (caught.value.state, caught.value.event) == (Door.SHUT, Push.PUSH)


def test_no_row_no_move() -> None:
    """A pair without a row is refused whatever is known, and nothing is said to be missing."""
    with pytest.raises(errors.IllegalTransition) as caught:
        TABLE.row(Door.OPEN, Push.PUSH, set(Known))
    assert caught.value.detail == "door: Push is not possible in OPEN"


def test_accepts_looks_at_the_pair_only() -> None:
    """`accepts` says whether any row exists, `matching` gives the rows in order."""
    assert TABLE.accepts(Door.SHUT, Push.PUSH)
    assert not TABLE.accepts(Door.AJAR, Push.PUSH)
    assert tuple(TABLE.matching(Door.SHUT, Push.PUSH)) == ROWS


def test_observers_are_told_of_rows_taken_and_of_nothing_else() -> None:
    """What counts rows sees each one that was taken; a refusal is none, and tables stay equal."""
    taken: list[Row[Door, Push, Known]] = []
    watched: Table[Door, Push, Known] = Table("door", ROWS, observers=[taken.append])
    watched.row(Door.SHUT, Push.PUSH, set(Known))
    with pytest.raises(errors.IllegalTransition):
        watched.row(Door.OPEN, Push.PUSH, set(Known))
    assert taken == [ROWS[0]]
    assert watched == TABLE
