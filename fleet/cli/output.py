"""How verbs print: JSON on request, otherwise rich on a terminal and plain lines elsewhere.

Results go to stdout, errors and progress to stderr. Rich honours NO_COLOR by itself.

What people read is partly written by strangers: a console of ours takes no text for markup and
lets no control character of it through. JSON is ASCII, with everything else escaped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, Self

import typer
from pydantic import BaseModel
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fleet.cli.text import shown, visible
from fleet.core.errors import FleetError
from fleet.core.messages import FOR_PEOPLE, DeviceView, Message, NodeView

VERSION: Literal[1] = 1
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


PLAIN_WIDTH = 100_000
"""Width, columns, where no terminal says how wide it is: no limit to what is shown."""


class PlainConsole(Console):
    """A console on which text is text: what would act on the terminal is written out.

    Whatever is printed comes through these two methods, in tables and progress bars as well.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """A string as `Text`, never as markup or an emoji code."""
        wanted = {**options, "markup": False, "emoji": False, "highlight": False}
        return super().render_str(visible(text), **wanted)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of anything printable; our own markers and cursor moves are no `Text`."""
        found = renderable
        if isinstance(found, Text):
            found = shown(found)
        elif isinstance(found, Table):
            found = self._fitted(found, options or self.options)
        return super().render(found, options)

    def _fitted(self, table: Table, options: ConsoleOptions) -> Table:
        """The table, or what it says in another form where it is too wide.

        Rich would cut words and ids short, and what is cut off an id or a verdict is missed.
        """
        wide = options.update(width=PLAIN_WIDTH)
        if Measurement.get(self, wide, table).maximum <= options.max_width:
            return table
        if table.show_header:
            return _upright(table)
        for column in table.columns:
            column.overflow, column.no_wrap = "fold", False
        return table


def _upright(table: Table) -> Table:
    """The rows below each other, a line for each cell with the name of its column."""
    grid = Table.grid(padding=(0, 2))
    grid.title, grid.title_justify = table.title, "left"
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for number, row in enumerate(zip(*(column.cells for column in table.columns), strict=True)):
        if number:
            grid.add_row("", "")
        for column, cell in zip(table.columns, row, strict=True):
            grid.add_row(column.header, cell)
    return grid


def console() -> Console:
    """The console for results."""
    terminal = sys.stdout.isatty()
    return PlainConsole(
        file=sys.stdout,
        highlight=False,
        soft_wrap=not terminal,
        width=None if terminal else PLAIN_WIDTH,
    )


def error_console() -> Console:
    """The console for errors and progress."""
    return PlainConsole(file=sys.stderr, highlight=False, soft_wrap=not sys.stderr.isatty())


def fields_of(message: BaseModel) -> dict[str, Any]:
    """What a message says, by field."""
    return {name: getattr(message, name) for name in type(message).model_fields}


class VerbAnswer(Message):
    """What a verb says with --json: one document, whose shape `fleet schema` tells.

    A verb's answer is a class of its own, so that it cannot say what its schema does not.
    """

    version: Literal[1] = VERSION
    """Of all shapes: it grows when a field is taken away or means something else."""
    kind: str
    """The verb."""

    @classmethod
    def of(cls, message: BaseModel, **more: Any) -> Self:
        """The answer that says what `message` says, and `more`."""
        return cls(**fields_of(message), **more)


class DeviceRow(DeviceView):
    """A device and where it is."""

    node: str
    retired: bool = False
    """Whether an operator took it out of the slices for good."""
    replaced: str = ""
    """Of a device that is not there any more: by what its board was replaced; "": it is missed, or
    it is there."""

    @classmethod
    def at(cls, view: NodeView, device: DeviceView) -> Self:
        """The row of `device`, one of the node of `view`."""
        retired = device.uuid in view.retired
        return cls(**fields_of(device), node=view.node, retired=retired)


class DecidedDevice(DeviceRow, VerbAnswer):
    """One device after an operator's decision about it."""

    simulated: bool


class ErrorAnswer(VerbAnswer):
    """Why a verb could not run: on standard output, where its answer would have been."""

    kind: Literal["error"] = "error"
    error: str
    """Name of the error, as documented in `fleet/core/errors.py`."""
    detail: str
    remedy: str
    problems: tuple[str, ...] = ()


_said = False
"""Whether standard output has its one document."""


def begin() -> None:
    """A verb begins: nothing was answered yet."""
    global _said  # noqa: PLW0603
    _said = False


def emit(answer: VerbAnswer, *, as_json: bool, render: Callable[[Console], None]) -> None:
    """Print `answer` as JSON, or call `render` with the result console."""
    if not as_json:
        render(console())
        return
    global _said  # noqa: PLW0603  a process prints one document
    _said = True
    sys.stdout.write(document(answer) + "\n")


def document(answer: VerbAnswer) -> str:
    """The answer as JSON in ASCII: what would act on a terminal is escaped, and so is half a
    character, which a path or a stranger's manifest may have.
    """
    found = json.dumps(answer.model_dump(mode="json", context=FOR_PEOPLE))
    # JSON has no number that is none.
    return json.dumps(json.loads(found, parse_constant=lambda _: None), indent=2)


def emit_error(error: FleetError) -> None:
    """Print the error as the one JSON document, unless the verb has answered already."""
    if not _said:
        problems = tuple(str(one) for one in error.fields.get("problems", ()))
        answer = ErrorAnswer(
            error=type(error).__name__, detail=error.detail, remedy=error.remedy, problems=problems
        )
        emit(answer, as_json=True, render=lambda _: None)
