"""The diagrams say what the tables say."""

from __future__ import annotations

import pytest

from fleet.core import claim_states, errors, unit_states
from fleet.core.claim_states import ClaimFact, ClaimState
from fleet.core.model import State
from fleet.core.unit_states import Fact
from tests import diagrams

TEXT = (
    "before\n<!-- diagram:unit -->\nold\n<!-- /diagram:unit -->\nbetween\n"
    "<!-- diagram:claim -->\n<!-- /diagram:claim -->\nafter\n"
)


def test_every_row_has_its_arrow() -> None:
    """Each row of both tables is shown as an arrow that names its event."""
    units = diagrams.diagram(unit_states.TABLE, State.HELD)
    records = diagrams.diagram(claim_states.TABLE, ClaimState.ABSENT)
    rows = [(units, str(r.state), str(r.event), str(r.to)) for r in unit_states.TABLE.rows]
    rows += [(records, str(r.state), str(r.event), str(r.to)) for r in claim_states.TABLE.rows]
    for text, state, event, to in rows:
        arrow = f"    {state} --> {to}: "
        assert event in next(line for line in text.splitlines() if line.startswith(arrow))


def test_a_diagram_begins_where_a_new_journal_does() -> None:
    """Units begin HELD, claims ABSENT."""
    units = diagrams.diagram(unit_states.TABLE, State.HELD)
    records = diagrams.diagram(claim_states.TABLE, ClaimState.ABSENT)
    assert units.startswith("stateDiagram-v2\n    [*] --> HELD\n")
    assert records.startswith("stateDiagram-v2\n    [*] --> ABSENT\n")


def test_guards_are_abbreviated() -> None:
    """A guarded arrow shows its guards in short words, in a fixed order."""
    text = diagrams.diagram(unit_states.TABLE, State.HELD)
    assert "    CHECKING --> CLEAN: HealthPassed [certified, no reason]\n" in text
    assert "    IN_USE --> DIRTY: Released [no reason, spec gone, tenant gone]" in text


def test_every_fact_has_a_short_word() -> None:
    """No two facts share an abbreviation, and none is without one."""
    words = [diagrams.SHORT[fact] for fact in (*Fact, *ClaimFact)]
    assert len(set(words)) == len(words)


def test_embed_replaces_the_marked_blocks_only() -> None:
    """Marked blocks become fenced diagrams, the rest of the text stays, twice changes nothing."""
    once = diagrams.embed(TEXT)
    assert "old" not in once
    assert once.count("```mermaid\nstateDiagram-v2\n") == 2
    assert once.startswith("before\n<!-- diagram:unit -->\n```mermaid\n")
    assert once.endswith("<!-- /diagram:claim -->\nafter\n")
    assert diagrams.embed(once) == once


def test_embed_wants_a_place_for_each() -> None:
    """A text without marks, or with a name nobody knows, is refused with the remedy."""
    for text in ("nothing", TEXT.replace("diagram:claim", "diagram:lease")):
        with pytest.raises(errors.InputInvalid, match="mark one place for each"):
            diagrams.embed(text)
