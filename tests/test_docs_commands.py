"""Every command line in every document can be typed: verbs, options and targets exist."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Any

import pytest
import typer

from fleet.cli.main import build
from node_plugin.__main__ import _parser
from tests import document
from tests.commands import ELSEWHERE, NAMED, NOT_TYPED, PAGES, TYPED, plain
from tests.document import ROOT, Line, blocks, commands, inline, pages

APP: Any = typer.main.get_command(build())
TARGETS = frozenset(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROGRAMS = ("fleet", "make", "helm", "kubectl", "docker", "systemctl", "install", "journalctl")
FREE = re.compile(r"[A-Z0-9_.:/-]*[A-Z][A-Z0-9_.:/-]*|.*\.\.\..*|\$.*")
"""What stands for a value: PLACEHOLDER, DIR, NODE=FILE, ..., $STATE."""


def alternatives(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """`tag issue|verify` is two commands."""
    for place, word in enumerate(words):
        if "|" in word and not word.startswith("-"):
            return [
                found
                for one in word.split("|")
                for found in alternatives((*words[:place], one, *words[place + 1 :]))
            ]
    return [words]


def wrong(words: tuple[str, ...], *, whole: bool) -> str:
    """What of these words behind `fleet` does not exist; "" for a line that can be typed."""
    command = APP
    context = typer.Context(command, info_name="fleet")
    rest = list(words)
    while hasattr(command, "get_command") and rest and not rest[0].startswith("-"):
        below = command.get_command(context, rest[0])
        if below is None:
            return "" if rest[0] in {"...", "VERB"} else f"no verb {rest[0]!r}"
        context = typer.Context(below, info_name=rest.pop(0), parent=context)
        command = below
    try:
        found, left, _ = command.make_parser(context).parse_args(list(rest))
    except Exception as error:  # noqa: BLE001  the parser's class moves between versions of typer
        return str(error) or type(error).__name__
    if left and not (set(left) <= {"..."}):
        return f"left over: {left}"
    if not whole:
        return ""
    if (
        hasattr(command, "get_command")
        and not command.invoke_without_command
        and "version" not in found
    ):
        return "a verb is missing"
    missing = [one.name for one in command.params if one.required and not found.get(one.name)]
    return f"missing: {missing}" if missing else ""


LINES = commands("fleet")


def test_the_documents_have_commands() -> None:
    """The reader of documents finds blocks of every kind: fenced, indented, with a prompt."""
    read = {line.page for line in LINES if line.whole}
    assert {"README.md", "docs/quick-start.md", "docs/isolation-tags.md"} <= read
    assert len(LINES) > 200


@pytest.mark.parametrize("page", sorted({line.page for line in LINES}))
def test_a_command_line_can_be_typed(page: str) -> None:
    """E7: nobody finds out at night that a documented command has another name."""
    found = [
        f"{line.text}: {told}"
        for line in LINES
        if line.page == page
        for words in alternatives(line.words)
        if (told := wrong(words, whole=line.whole))
    ]
    assert found == []


def test_a_line_that_is_wrong_is_found() -> None:
    """The check itself: a verb, an option, an argument and a value too many."""
    assert "no verb" in wrong(("wipe",), whole=False)
    assert wrong(("status", "--colour"), whole=False)
    assert "missing" in wrong(("quarantine", "clear", "gpu-0"), whole=True)
    assert "left over" in wrong(("status", "node-1"), whole=False)
    assert wrong(("quarantine", "clear", "gpu-0", "--reason", "x"), whole=True) == ""


def test_options_of_the_plugin_are_its_own() -> None:
    """`fleet-node-plugin` takes each option that a document gives it."""
    known = {option for action in _parser()._actions for option in action.option_strings}
    lines: list[Line] = commands("fleet-node-plugin")
    assert lines
    found = [
        f"{line}: {word}"
        for line in lines
        for word in line.words
        if word.startswith("--") and word.partition("=")[0] not in known
    ]
    assert found == []


def test_targets_of_make_exist() -> None:
    """Each `make TARGET` is one of the Makefile."""
    found = [
        f"{line}: {word}"
        for line in commands("make")
        for word in line.words[:1]
        if not (word in TARGETS or "=" in word or FREE.fullmatch(word))
    ]
    assert found == []


def test_f72_every_command_is_typed_by_a_test_or_says_why_not() -> None:
    """F72, F77: each block of commands in the pages for operators says where it is typed, and a
    test types what is typed there; what none does has its reason."""
    for page in PAGES:
        told = document.typed(page)
        assert {one.place for one in told} <= {*TYPED, *NOT_TYPED}, page
        placed = [command for one in told for command in one.commands]
        loose = [
            line.text
            for program in PROGRAMS
            for line in commands(program)
            if line.page == page and line.whole and line.text.strip() not in placed
        ]
        assert loose == [], page
    for name in (*TYPED.values(), *ELSEWHERE.values(), *NAMED.values()):
        assert not name.startswith("tests/") or (ROOT / name).exists(), name


def test_f72_what_a_page_names_in_a_sentence_is_typed_as_well() -> None:
    """F72: a command within the text of these pages is one that a block has, with whatever
    arguments, or that another test runs; no reason is left over."""
    typed = [
        plain(one) for page in PAGES for block in document.typed(page) for one in block.commands
    ]
    unused = set(NAMED)
    missing = []
    for page in PAGES:
        for piece in inline(pages()[page]):
            if piece.split(" ")[0] not in PROGRAMS[:4] or " " not in piece:
                continue
            reasons = {one for one in NAMED if piece.startswith(one)}
            unused -= reasons
            verb = " ".join(takewhile(re.compile(r"[a-z][a-z-]*").fullmatch, piece.split(" ")))
            if not reasons and not any(verb in one for one in typed):
                missing.append(f"{page}: {piece}")
    assert missing == []
    assert unused == set()


def test_blocks_say_what_they_are() -> None:
    """A block is shell, output, or of a language that some test reads."""
    known = {"", "sh", "text", "console", "toml", "yaml", "json", "mermaid"}
    used = {(page, language) for page, text in pages().items() for language, _ in blocks(text)}
    assert {one for one in used if one[1] not in known} == set()
