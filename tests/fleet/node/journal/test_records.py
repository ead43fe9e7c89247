"""Records as text: digests over stored bytes, round trips, damage noticed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.core import sqlite
from fleet.core.model import NO_TOKEN, Reason, Source, State, Token, Unit, UnitId
from fleet.node.journal import records

REASONS = st.frozensets(
    st.builds(
        Reason,
        code=st.text(min_size=1, max_size=8),
        source=st.sampled_from(Source),
        liftable=st.booleans(),
        detail=st.text(max_size=8),
        since=st.floats(0, 1e10),
    ),
    max_size=3,
)
UNITS = st.builds(
    Unit,
    id=st.just(UnitId("u")),
    state=st.sampled_from(State),
    reasons=REASONS,
    floor=st.builds(Token, st.integers(0, 2**60), st.integers(0, 2**60)),
    closed=st.booleans(),
    token=st.none() | st.just(NO_TOKEN),
    interruptions=st.integers(0, 3),
)


@given(UNITS)
def test_a_unit_survives_the_round_trip(unit: Unit) -> None:
    """What is written is what is read, for every unit."""
    text = json.loads(json.dumps(records.unit_fields(unit)))
    assert records.unit_from(text) == unit


def test_another_spelling_of_the_same_record_is_no_damage() -> None:
    """B26: the digest covers the stored bytes, whatever their order of keys or white space."""
    text = '{ "b": 1,\n "a": "" }'
    assert records.checked(text, records.digest(text), where="here") == {"a": "", "b": 1}


@pytest.mark.parametrize("text", ['{"a": 2}', '{"a": 1} ', ""])
def test_a_changed_byte_is_damage(text: str) -> None:
    """B07: text that does not match its digest is corrupt, never read."""
    with pytest.raises(sqlite.Corrupt):
        records.checked(text, records.digest('{"a": 1}'), where="here")


def test_a_record_of_the_wrong_type_is_damage() -> None:
    """B07: valid JSON of another shape is corrupt too."""
    with pytest.raises(sqlite.Corrupt):
        records.checked("[]", records.digest("[]"), where="here")
