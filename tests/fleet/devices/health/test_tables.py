"""The health tables as files: complete, sourced, consistent with each other."""

from __future__ import annotations

import pytest

from fleet.devices.health import tables
from fleet.devices.health.reasons import CATALOGUE


@pytest.mark.parametrize(
    ("table", "key", "needed"),
    [
        ("checks", "check", {"name", "rule", "reading", "mandatory", "reason", "remedy", "source"}),
        ("reasons", "reason", {"code", "text", "liftable", "remedy", "source"}),
        ("xids", "xid", {"code", "text", "outcome"}),
        ("recovery", "recovery", {"word", "number", "says", "verdict"}),
    ],
)
def test_every_row_is_complete(table: str, key: str, needed: set[str]) -> None:
    """A row without its reason, remedy or source cannot be explained to an operator."""
    rows = tables.rows(table, key)
    assert all(needed <= row.keys() for row in rows)
    identities = [next(iter(row.values())) for row in rows]
    assert len(identities) == len(set(identities))


@pytest.mark.parametrize("table", ["check", "xid", "recovery"])
def test_every_reason_named_is_in_the_catalogue(table: str) -> None:
    """No table gives a reason that the catalogue does not explain."""
    file = {"check": "checks", "xid": "xids", "recovery": "recovery"}[table]
    named = {
        row[field]
        for row in tables.rows(file, table)
        for field in ("reason", "rise_reason")
        if row.get(field)
    }
    assert named <= CATALOGUE.keys()


def test_recovery_actions_have_the_drivers_numbers() -> None:
    """B40: the field's values 0 to 7, and no two rows that a log could mean at once."""
    rows = tables.rows("recovery", "recovery")
    assert [row["number"] for row in rows] == list(range(8))
    said = [words for row in rows for words in row["says"]]
    assert len(said) == len(set(said))


def test_a_table_without_rows_is_an_error() -> None:
    """A misspelt key is noticed, not taken as an empty table."""
    with pytest.raises(KeyError):
        tables.rows("checks", "checkz")
