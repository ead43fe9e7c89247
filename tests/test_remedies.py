"""Every command that a message of the product names can be typed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.document import ROOT
from tests.test_docs_commands import alternatives, wrong

PLACES = ("fleet", "actors", "jobs", "node_plugin")
FILLED = "NAME"
SPAN = re.compile(r"`fleet ([^`]+)`")


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each string of a module; what is filled in counts as a word."""
    inside: set[ast.AST] = set()
    for one in ast.walk(tree):
        if isinstance(one, ast.JoinedStr):
            inside |= set(one.values)
            parts = (str(p.value) if isinstance(p, ast.Constant) else FILLED for p in one.values)
            yield one.lineno, "".join(parts)
        elif isinstance(one, ast.Constant) and isinstance(one.value, str) and one not in inside:
            yield one.lineno, one.value


def named(text: str) -> Iterator[tuple[str, ...]]:
    """The words of each command of ours in a text."""
    for found in SPAN.finditer(text):
        words = re.sub(r"'[^']*'", "QUOTED", found[1]).split()
        if words[0] != FILLED:
            yield tuple(word.removeprefix("[").removesuffix("]") for word in words)


def faults(text: str) -> list[str]:
    """What cannot be typed as it stands: with an option all that is required is named as well."""
    return [
        f"fleet {' '.join(words)}: {told}"
        for whole in named(text)
        for words in alternatives(whole)
        if (told := wrong(words, whole=any(word.startswith("--") for word in words)))
    ]


@pytest.mark.parametrize("place", PLACES)
def test_a_command_that_a_message_names_can_be_typed(place: str) -> None:
    """E7: a remedy that is followed at night word by word does what it says."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {told}"
        for path in sorted((ROOT / place).rglob("*.py"))
        if "`fleet " in (content := path.read_text())
        for line, text in texts(ast.parse(content))
        for told in faults(text)
    ]
    assert found == []


def test_a_command_that_cannot_be_typed_is_found() -> None:
    """The check itself: a reason left out, an option that is none, text that is filled in."""
    (tree,) = ast.parse("f'do `fleet node drain {name} --wait 600`'").body
    assert [faults(text) for _, text in texts(tree)] == [
        ["fleet node drain NAME --wait 600: missing: ['reason']"]
    ]
    assert faults("see `fleet status --colour`") != []
    assert faults("see `fleet node drain`, then `fleet scrub`") == []
