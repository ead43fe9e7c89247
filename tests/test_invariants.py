"""The map of the forty invariants is complete, and what it names exists and says so."""

from __future__ import annotations

import re

import pytest

from tests.document import ROOT, docstrings

ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
ROWS = [
    (int(match[1]), match[3].strip())
    for match in ROW.finditer((ROOT / "docs" / "invariants.md").read_text())
]
NAMED = re.compile(r"`(tests/[^`]+)::(test_\w+)`")


def numbers(text: str) -> set[int]:
    """Invariants that a docstring names: one, several, or a range of them."""
    found: set[int] = set()
    for match in re.finditer(r"[Ii]nvariants? (\d+(?:(?:, | and | to )\d+)*)", text):
        found |= {int(number) for number in re.findall(r"\d+", match[1])}
        for first, last in re.findall(r"(\d+) to (\d+)", match[1]):
            found |= set(range(int(first), int(last) + 1))
    return found


def test_every_invariant_has_its_row() -> None:
    """All forty, each once, in order: nothing is left out in silence."""
    assert [number for number, _ in ROWS] == list(range(1, 41))


@pytest.mark.parametrize(("number", "held"), ROWS, ids=[str(number) for number, _ in ROWS])
def test_an_invariant_is_held_by_the_tests_named(number: int, held: str) -> None:
    """Each test named exists and says the number."""
    named = NAMED.findall(held)
    assert named
    missing = [
        f"{path}::{name}"
        for path, name in named
        if number not in numbers(docstrings(ROOT / path).get(name, ""))
    ]
    assert missing == []


def test_numbers_are_read_as_they_are_written() -> None:
    """The reader of docstrings knows lists and ranges."""
    assert numbers("B1, invariant 3: x") == {3}
    assert numbers("Invariants 3, 4 and 9 with") == {3, 4, 9}
    assert numbers("Promise 7, invariants 28 to 31: x") == {28, 29, 30, 31}
    assert numbers("Nothing of 7 here.") == set()
