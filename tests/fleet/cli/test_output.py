"""How verbs print."""

from __future__ import annotations

import json

import pytest

from fleet.cli.output import console, emit
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
