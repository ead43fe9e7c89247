"""How verbs print."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleet.cli.output import console, emit, error_console
from fleet.messages import ByteFigures


def test_a_document_is_plain_json(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json models, sets and tuples become one JSON document and nothing is rendered."""

    def render(_: object) -> None:
        raise AssertionError("text was rendered beside the document")

    document = {"bytes": ByteFigures(total=1), "names": frozenset({"b", "a"}), "pair": (2, 1)}
    emit(document, as_json=True, render=render)
    found = json.loads(capsys.readouterr().out)
    assert found["bytes"]["total"] == 1
    assert (found["names"], found["pair"]) == (["a", "b"], [2, 1])


def test_a_pipe_gets_whole_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """Where no terminal says how wide it is, nothing is cut or wrapped at 80 columns."""
    console().print("x" * 190)
    assert capsys.readouterr().out == "x" * 190 + "\n"


HOSTILE = "t\x1b[2J\n\x1b]0;pwn[red]:boom:"
SHOWN = r"t\x1b[2J\n\x1b]0;pwn[red]:boom:"


@pytest.mark.parametrize("make", [console, error_console])
def test_nothing_printed_acts_on_the_terminal(
    make: Callable[[], Console], capsys: pytest.CaptureFixture[str]
) -> None:
    """Strings, texts and cells of tables: no control, no forged line, no markup, no emoji code."""
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE))
    printer = make()
    printer.print(HOSTILE)
    printer.print(Text(HOSTILE), "and")
    printer.print(table)
    found = capsys.readouterr()
    lines = (found.out + found.err).splitlines()
    assert lines[:2] == [SHOWN, f"{SHOWN} and"]
    assert sum(SHOWN in line for line in lines) >= 5
    assert not any(ord(c) < 32 for line in lines for c in line)
