"""HTML of pages to print: what is made of others' words, and where it goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.cli.pages import markup
from fleet.core import errors
from tests.fleet.cli.pages.test_certificate import HOSTILE, Parsed


def test_nothing_of_others_becomes_markup() -> None:
    """Names, reasons and titles are text on the page, whatever is in them."""
    body = [
        *markup.table((HOSTILE,), [markup.row(HOSTILE, open_=True)], kind='x" onload="y'),
        *markup.folded(HOSTILE, [f"<p>{markup.text(HOSTILE)}</p>"]),
    ]
    found = Parsed(markup.document(HOSTILE, body))
    assert found.open == []
    assert not {"script", "img"} & set(found.tags)
    assert not {"src", "onload", "onerror", "href"} & {name for name, _ in found.attributes}
    assert found.text.count("alert(1)") == 5  # the title, a head, a cell, a summary, a paragraph
    assert not {"\x1b", "\u202e"} & set(found.text)


def test_a_page_goes_where_it_is_asked_to(tmp_path: Path, capfdbinary: object) -> None:
    """A file is replaced whole; a place that cannot be written is said with a remedy."""
    target = tmp_path / "page.html"
    assert markup.put(target, "é") == 2
    assert target.read_text(encoding="utf-8") == "é"
    with pytest.raises(errors.InputInvalid, match="cannot be written"):
        markup.put(tmp_path / "gone" / "page.html", "x")


def test_page_and_document_do_not_share_a_place() -> None:
    """--html - and --json both want the standard output."""
    markup.check_place(Path("x"), as_json=True)
    markup.check_place(None, as_json=True)
    with pytest.raises(errors.InputInvalid, match="both"):
        markup.check_place(Path("-"), as_json=True)
