"""How verbs print: JSON on request, otherwise rich on a terminal and plain lines elsewhere.

Results go to stdout, errors and progress to stderr. Rich honours NO_COLOR by itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


PLAIN_WIDTH = 200
"""Width, columns, of tables where no terminal says how wide it is."""


def console() -> Console:
    """The console for results."""
    terminal = sys.stdout.isatty()
    return Console(
        file=sys.stdout,
        highlight=False,
        soft_wrap=not terminal,
        width=None if terminal else PLAIN_WIDTH,
    )


def error_console() -> Console:
    """The console for errors and progress."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=not sys.stderr.isatty())


def emit(document: Any, *, as_json: bool, render: Callable[[Console], None]) -> None:
    """Print `document` as JSON, or call `render` with the result console."""
    if not as_json:
        render(console())
        return
    sys.stdout.write(json.dumps(document, default=_jsonable, indent=2, sort_keys=False) + "\n")


def _jsonable(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, set | frozenset | tuple):
        return sorted(value) if isinstance(value, set | frozenset) else list(value)
    return str(value)
