"""The sweep drops what it says, and has a reason for whatever nothing notices."""

from __future__ import annotations

import pytest

from fleet.core import claim_states, unit_states
from tests.simulation import checker
from tests.simulation.sweep import Break, breaks, judged

ALL = {broken.name: broken for broken in breaks()}


def test_every_row_and_every_fact_is_dropped_once() -> None:
    """DESIGN 4: each row of both tables, and each fact a row asks for."""
    units, records = unit_states.TABLE.rows, claim_states.TABLE.rows
    facts = sum(len(row.requires) for row in units) + sum(len(row.requires) for row in records)
    assert len(ALL) == len(units) + len(records) + facts


@pytest.mark.parametrize(
    ("name", "property_"),
    [
        ("unit: DIRTY WipeStarted -> WIPING", checker.TRAP),
        ("unit: WIPING WipeFailed -> QUARANTINED", checker.UNHEARD),
        ("unit: CLEAN Exposed -> IN_USE", checker.NOBODY_STARTS),
        ("unit: CHECKING HealthPassed -> CLEAN without certificate durable", checker.UNCERTIFIED),
        ("claim: ABSENT Unprepare -> ABSENT", checker.TRAP),
    ],
)
def test_a_dropped_row_or_fact_is_noticed(name: str, property_: str) -> None:
    """Promises 5 to 8: by the property it is there for."""
    assert judged(ALL[name]).startswith(property_)


def test_who_may_survive_says_why() -> None:
    """A row that only lets trust grow falls to the row below it, which quarantines."""
    broken: Break = ALL["unit: HELD ProvenFree -> DIRTY"]
    assert broken.excuse == "the row below it quarantines: it fails closed"
    assert ALL["unit: CHECKING HealthPassed -> CLEAN"].excuse == ""
