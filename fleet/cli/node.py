"""`fleet node`: an operator's decisions about a whole node."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from fleet import errors
from fleet.cli import reach, text
from fleet.cli.options import (
    AddressOption,
    OperatorOption,
    StateOption,
    operator_name,
    state_directory,
)
from fleet.cli.output import AsJson, emit
from fleet.cli.standby import standby

app = typer.Typer(no_args_is_help=True)
app.command("standby")(standby)


@app.callback()
def node() -> None:
    """Decide about a whole node."""


@app.command("adopt")
def adopt(
    *,
    node: Annotated[
        str | None, typer.Option("--node", help="Only this node; all when not given.")
    ] = None,
    device: Annotated[
        list[str] | None, typer.Option("--device", help="Only this device; may be repeated.")
    ] = None,
    operator: OperatorOption = None,
    state: StateOption = None,
    address: AddressOption = None,
    as_json: AsJson = False,
) -> None:
    """Record your word that HELD devices are free of any holder; they are DIRTY then."""
    who = operator_name(operator)
    with reach.nodes(state_directory(state), address=address) as nodes:
        if node is not None and node not in nodes:
            raise errors.InputInvalid(
                f"there is no node {node!r}", remedy=f"name one of {', '.join(sorted(nodes))}"
            )
        adopted = [
            (name, view)
            for name, one in nodes.items()
            if node in (None, name)
            for view in one.adopt(devices=tuple(device or ()), operator=who)
        ]

    def render(console: Console) -> None:
        for name, view in adopted:
            console.print(Text.assemble(f"{name}/{view.name}: ", text.coloured(view.state)))
        console.print(f"{len(adopted)} devices adopted, recorded for {who}")

    document = {
        "operator": who,
        "devices": [{"node": name, **view.model_dump(mode="json")} for name, view in adopted],
    }
    emit(document, as_json=as_json, render=render)
