"""The map of what real hardware must show is complete, and what it names exists and says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.document import ROOT, docstrings

PAGE = (ROOT / "docs" / "behaviours.md").read_text()
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]*) \| ([^|]*?) ?\|$", re.MULTILINE)
ROWS = [(int(row[1]), row[3].strip(), row[4].strip()) for row in ROW.finditer(PAGE)]
NAMED = re.compile(r"`(tests/[^`]+)::(test_\w+)`")
STAND_INS = "tests/drivers/"
IMPORTED = re.compile(r"^ *(?:import|from) (?:fleet|node_plugin|actors|jobs)\b", re.MULTILINE)
NOT_HELD = ("not held: ", "does not apply: ")


def numbers(text: str) -> set[int]:
    """Behaviours that a docstring names: ``gpus-8.16, 8.17`` are two, ``gpus-5.1`` is none."""
    return {
        int(number)
        for match in re.finditer(r"gpus-8\.\d+(?:, 8\.\d+)*", text)
        for number in re.findall(r"8\.(\d+)", match[0])
    }


def is_of_the_product(path: Path) -> bool:
    """Whether a test file uses anything of the product."""
    return IMPORTED.search(path.read_text()) is not None


def test_every_behaviour_has_its_row() -> None:
    """All forty-four, each once, in order: nothing is left out in silence."""
    assert [number for number, _, _ in ROWS] == list(range(1, 45))


@pytest.mark.parametrize(
    ("number", "held", "besides"), ROWS, ids=[f"gpus-8.{number}" for number, _, _ in ROWS]
)
def test_a_behaviour_is_held_by_the_tests_named(number: int, held: str, besides: str) -> None:
    """Each test named is one of the product and says the number; a row without one says why."""
    named = NAMED.findall(held)
    assert len(named) == held.count("`") // 2
    if not named:
        assert besides.startswith(NOT_HELD)
    assert [path for path, _ in named if path.startswith(STAND_INS)] == []
    missing = [
        f"{path}::{name}"
        for path, name in named
        if number not in numbers(docstrings(ROOT / path).get(name, ""))
    ]
    assert missing == []
    assert [path for path, _ in named if not is_of_the_product(ROOT / path)] == []


def test_numbers_are_read_as_they_are_written() -> None:
    """The reader of docstrings knows lists, and tells the section from others."""
    assert numbers("B24, gpus-8.2: x") == {2}
    assert numbers("gpus-8.16, 8.17: x, gpus-8.4 and gpus-5.1") == {16, 17, 4}
    assert numbers("Nothing of 8.7 here.") == set()
