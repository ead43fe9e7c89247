"""HTML of pages to print: one document, its style inside, nothing fetched, nothing that runs.

Everything on a page was written by others. All of it goes through `text`; what is marked up already
is never joined with anything that did not.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template

from fleet.cli.text import visible
from fleet.core import errors
from fleet.core.disk import replace

STDOUT = "-"
_PAGE = Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title><style>$style</style></head><body>
$body
</body></html>
""")


def document(title: str, body: Iterable[str]) -> str:
    """The page: `title` is plain, the lines of `body` are marked up already, empty ones go."""
    lines = "\n".join(line for line in body if line)
    return _PAGE.substitute(title=text(title), style=_style(), body=lines)


@cache
def _style() -> str:
    return files("fleet.cli.pages").joinpath("page.css").read_text(encoding="utf-8")


def text(value: object) -> str:
    """Anything as text of the page: no markup, nothing that acts instead of showing."""
    return html.escape(visible(str(value)))


def table(head: tuple[str, ...], rows: Iterable[str], *, kind: str = "") -> Iterator[str]:
    """A table of `rows` made by `row`; `kind` is its class."""
    cells = "".join(f"<th>{text(cell)}</th>" for cell in head)
    opened = f'<table class="{text(kind)}">' if kind else "<table>"
    yield f"{opened}<thead><tr>{cells}</tr></thead><tbody>"
    yield from rows
    yield "</tbody></table>"


def row(*cells: object, open_: bool = False) -> str:
    """One row; `open_` marks what is not in order."""
    line = "".join(f"<td>{text(cell)}</td>" for cell in cells)
    return f'<tr class="open">{line}</tr>' if open_ else f"<tr>{line}</tr>"


def folded(summary: str, lines: Iterable[str]) -> Iterator[str]:
    """A part that opens on a click, without a script."""
    yield f"<details><summary>{text(summary)}</summary>"
    yield from lines
    yield "</details>"


def check_place(file: Path | None, *, as_json: bool) -> None:
    """Raise `InputInvalid` where a page and a JSON document would go to the same place."""
    if file is not None and str(file) == STDOUT and as_json:
        raise errors.InputInvalid(
            "a page and a JSON document cannot both go to the standard output",
            remedy="name a file with --html, or leave --json out",
        )


def put(file: Path, page: str) -> int:
    """Write a page to `file` ("-": the standard output); its size in bytes.

    Raises `InputInvalid` when the file cannot be written.
    """
    content = page.encode()
    if str(file) == STDOUT:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return len(content)
    try:
        replace(file, content)
    except OSError as error:
        raise errors.InputInvalid(
            f"{file} cannot be written: {error.strerror}", remedy="name a file you may write"
        ) from error
    return len(content)
