"""The copy of quarantine reasons outlives the journal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.core.model import Reason, Source, UnitId
from fleet.node.journal import mirror
from fleet.node.journal.mirror import Remembered

REASONS = {
    UnitId("u1"): frozenset(
        {
            Reason("xid", Source.KERNEL, liftable=True, detail="79", since=1.5),
            Reason("operator", Source.OPERATOR, liftable=False, remedy="ask", since=2.0),
        }
    ),
    UnitId("u2"): frozenset[Reason](),
}


def test_reasons_are_read_back_with_all_they_say(tmp_path: Path) -> None:
    """B15: code, source, detail, remedy, since and who may lift it survive."""
    path = tmp_path / "quarantine.json"
    mirror.write(path, REASONS)
    (found,) = mirror.read(path).reasons.items()
    assert found[0] == "u1"
    assert sorted(map(repr, found[1])) == sorted(map(repr, REASONS[UnitId("u1")]))


def test_no_copy_is_no_trouble(tmp_path: Path) -> None:
    """A first start has no copy."""
    assert mirror.read(tmp_path / "quarantine.json") == Remembered()


@pytest.mark.parametrize("text", ["", "[]", '{"u": [{}]}', '{"u": 1}', "{"])
def test_a_damaged_copy_is_told(tmp_path: Path, text: str) -> None:
    """Promise 5: what cannot be read is never taken for "nothing was wrong"."""
    path = tmp_path / "quarantine.json"
    path.write_text(text)
    found = mirror.read(path)
    assert (dict(found.reasons), bool(found.trouble)) == ({}, True)


REASON = {"code": 1, "source": "health", "liftable": True, "detail": "", "remedy": "", "since": 0}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 3000,
        json.dumps({"u": [REASON]}),
        json.dumps({"u": [{**REASON, "code": "ecc", "since": 10**400}]}),
    ],
)
def test_b07_a_copy_of_another_form_says_so(tmp_path: Path, text: str) -> None:
    """B07: depth, or a reason of other types, is a copy that cannot be read; never "no reasons"."""
    (tmp_path / "q.json").write_text(text)
    assert str(tmp_path / "q.json") in mirror.read(tmp_path / "q.json").trouble
