"""The witness is never ahead of the journal it was written after."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.node.journal import witness
from fleet.node.journal.witness import Witness

SEEN = Witness("j1", 5, "m1", "", "b1")


def test_a_witness_is_read_back(tmp_path: Path) -> None:
    """What was written last is what is read."""
    path = tmp_path / "run" / "n1.witness"
    witness.write(path, SEEN)
    assert witness.read(path) == SEEN


@pytest.mark.parametrize("text", ["", "{", "[]", '{"journal_id": "j1"}', '"x"'])
def test_a_damaged_witness_is_no_witness(tmp_path: Path, text: str) -> None:
    """A witness that cannot be read says nothing, and stops nothing."""
    path = tmp_path / "witness"
    path.write_text(text)
    assert witness.read(path) is None


@pytest.mark.parametrize(
    ("journal_id", "sequence", "machine_id", "contradicted"),
    [
        ("j1", 5, "m1", False),
        ("j1", 6, "m1", False),
        ("j1", 4, "m1", True),
        ("j2", 9, "m1", True),
        ("j2", 1, "m2", False),
    ],
)
def test_a_restored_or_swapped_journal_is_convicted(
    journal_id: str, sequence: int, machine_id: str, contradicted: bool
) -> None:
    """DESIGN 4: a journal behind its witness, or another's, is not believed."""
    found = witness.contradicts(
        SEEN, journal_id=journal_id, sequence=sequence, machine_id=machine_id
    )
    assert bool(found) == contradicted


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 3000,
        b'{"journal_id":"a","sequence":"7","machine_id":"m","node_uid":"","boot_id":""}',
        b'{"journal_id":1,"sequence":7,"machine_id":"m","node_uid":"","boot_id":""}',
    ],
)
def test_b07_a_witness_of_another_form_is_none(tmp_path: Path, content: bytes) -> None:
    """B07: depth or a number that is none is no witness, and never keeps the node from starting."""
    (tmp_path / "w").write_bytes(content)
    assert witness.read(tmp_path / "w") is None
