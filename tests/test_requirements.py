"""The map from requirements to code and tests is true."""

from __future__ import annotations

import re

import pytest

from tests.document import ROOT, docstrings

MAP = (ROOT / "docs" / "requirements.md").read_text()
ALL = {
    *(f"A{n}" for n in range(1, 8)),
    *(f"B{n}" for n in range(1, 9)),
    *(f"C{n}" for n in range(1, 7)),
    *(f"D{n}" for n in range(1, 7)),
    *(f"E{n}" for n in range(1, 8)),
}
ROW = re.compile(r"^\| (\S+) [^|]*\|.*\| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
ROWS = [
    (match[1], re.findall(r"`([^`]+)`", match[2]), re.findall(r"`([^`]+)`", match[3]))
    for match in ROW.finditer(MAP)
    if "`tests/" in match[3]
]


def told(name: str) -> str:
    """What a file, a directory or one test (``path::test``) says; "" for what does not exist."""
    path, _, test = name.partition("::")
    place = ROOT / path
    if place.is_dir():
        return path
    text = place.read_text() if place.exists() else ""
    if not test:
        return text
    return docstrings(place).get(test, "") if text else ""


def test_every_requirement_is_in_the_map() -> None:
    """Each id A1 to E7 is either held or said not to be held yet."""
    named: set[str] = set()
    for line in MAP.splitlines():
        if line.startswith("|"):
            cell = line.split("|")[1]
            named |= set(re.findall(r"\b[A-E]\d\b", cell))
            for first, last in re.findall(r"([A-E]\d) to ([A-E]\d)", cell):
                named |= {f"{first[0]}{n}" for n in range(int(first[1]), int(last[1]) + 1)}
    assert named == ALL


@pytest.mark.parametrize(("name", "code", "tests"), ROWS, ids=[row[0] for row in ROWS])
def test_a_row_names_what_exists(name: str, code: list[str], tests: list[str]) -> None:
    """Code and tests named in the map exist, and the tests say what they hold."""
    assert code
    assert tests
    assert [path for path in code + tests if not told(path)] == []
    word = name if not name.isdigit() else f"[Pp]romise {name}"
    silent = [
        path
        for path in tests
        if path != "tests/simulation/checker.py" and not re.search(rf"\b{word}\b", told(path))
    ]
    assert silent == []


CASES = [
    (match[1], re.findall(r"`([^`]+)`", match[2]))
    for match in re.finditer(
        r"^\| ([BF]\d\d) \|[^|]*\|([^|]*)\|",
        (ROOT / "docs" / "cases.md").read_text(),
        re.MULTILINE,
    )
]


def test_cases_have_one_row_each_in_order() -> None:
    """A case is found where it is looked for, once."""
    names = [case for case, _ in CASES]
    assert names == sorted(set(names))


@pytest.mark.parametrize(("case", "tests"), CASES, ids=[case[0] for case in CASES])
def test_a_case_is_held_by_the_tests_named(case: str, tests: list[str]) -> None:
    """Every case in the list has a test that says its id."""
    assert tests
    assert [path for path in tests if not re.search(rf"\b{case}\b", told(path))] == []
