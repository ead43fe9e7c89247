"""How verbs print."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleet.cli.main import main
from fleet.cli.output import (
    PlainConsole,
    VerbAnswer,
    begin,
    console,
    emit,
    emit_error,
    error_console,
)
from fleet.core.errors import DeviceUnknown
from fleet.core.messages import Moment
from tests.fleet.cli.fleets import certify


class Example(VerbAnswer):
    """An answer with times."""

    kind: Literal["example"] = "example"
    since: Moment
    until: Moment = 0.0


def test_f56_a_document_is_plain_json(capsys: pytest.CaptureFixture[str]) -> None:
    """F56: a verb answers one document with version and kind, times as text, and no lines."""

    def render(_: object) -> None:
        raise AssertionError("text was rendered beside the document")

    begin()
    emit(Example(since=1_700_000_000.25), as_json=True, render=render)
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["version", "kind", "since", "until"]
    assert (found["since"], found["until"]) == ("2023-11-14T22:13:20.250Z", None)
    emit_error(DeviceUnknown("gone"))
    assert capsys.readouterr().out == "", "a verb that has answered has had its document"


class Told(VerbAnswer):
    """An answer with somebody's words."""

    kind: Literal["told"] = "told"
    words: str
    rate: float = 0.0


def test_f56_a_document_acts_on_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """F56: of a document nothing acts on whoever looks at it, what is half a character is no reason
    to fail, and what is no number is null."""
    words = "a\x1b[2J\x7f\x9b1m\u202e\u2028\U000e0001\udcff é"
    begin()
    emit(Told(words=words, rate=float("nan")), as_json=True, render=lambda _: None)
    told = capsys.readouterr().out
    assert all(" " <= letter <= "~" or letter == "\n" for letter in told)
    assert json.loads(told) == {"version": 1, "kind": "told", "words": words, "rate": None}


def test_a_pipe_gets_whole_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """Where no terminal says how wide it is, nothing is cut or wrapped at 80 columns."""
    console().print("x" * 190)
    assert capsys.readouterr().out == "x" * 190 + "\n"


def wide(title: str = "") -> Table:
    """A table whose columns may not be broken, with a long id, a verdict and a reason."""
    table = Table(box=None, title=title)
    for name in ("node", "uuid", "verdict", "reason"):
        table.add_column(name, no_wrap=True)
    table.add_row("node-01", "SIM-f5892dcf-e596-583c-9b8f-507b9d75e5f3", "failed", "remap-failed")
    table.add_row("node-02", "SIM-1ace4365-f197-511b-a6de-468b7168fdb0", "done", "-")
    return table


@pytest.mark.parametrize("width", [30, 50, 80, 200])
def test_a_narrow_terminal_cuts_off_no_id_and_no_verdict(width: int) -> None:
    """E7: what does not fit beside each other is written below each other, whole."""
    file = io.StringIO()
    PlainConsole(file=file, width=width, force_terminal=True, color_system=None).print(wide("run"))
    shown = file.getvalue()
    assert "…" not in shown
    assert all(len(line) <= width for line in shown.splitlines())
    whole = "".join(shown.split())
    for cell in (cell for column in wide().columns for cell in column.cells):
        assert str(cell) in whole
    assert len([line for line in shown.splitlines() if "failed" in line]) == 1 + (width < 80)


def test_a_pipe_gets_whole_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is no terminal a row is one line, however wide it is."""
    table = wide()
    table.add_row("node-03", "u" * 300, "failed", "r" * 300)
    console().print(table)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.split() == ["node-03", "u" * 300, "failed", "r" * 300]


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


def test_f59_tables_of_all_verbs_look_alike(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F59: one style of tables: words and spaces, whichever verb prints them."""
    certify(state)
    capsys.readouterr()
    assert main(["evidence", "list", "--state", str(state), "--json"]) == 0
    (digest, *_) = [
        row["certificate"] for row in json.loads(capsys.readouterr().out)["certificates"]
    ]
    for words in (
        ["devices"],
        ["status"],
        ["evidence", "list"],
        ["evidence", "show", digest],
        ["evidence", "keys", "list"],
    ):
        main([*words, "--state", str(state)])
        said = capsys.readouterr().out
        assert said.strip(), words
        assert not set("━─┃│┏┡┬╇") & set(said), words
