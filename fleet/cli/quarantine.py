"""`fleet quarantine`: what is out of service, and an operator's decisions about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import typer
from rich.console import Console

from fleet.cli import reach, text
from fleet.cli.options import (
    AddressOption,
    OperatorOption,
    StateOption,
    operator_name,
    state_directory,
)
from fleet.cli.output import AsJson, DecidedDevice, DeviceRow, VerbAnswer, emit, fields_of
from fleet.core.messages import DeviceView, NodeView, ReasonView

app = typer.Typer(no_args_is_help=True)

DeviceArgument = Annotated[str, typer.Argument(help="Name or UUID of the device.")]
NodeOption = Annotated[
    str | None,
    typer.Option("--node", help="Node of the device, when its name is on several."),
]


class QuarantineAnswer(VerbAnswer):
    """The devices with reasons against them."""

    kind: Literal["quarantine list"] = "quarantine list"
    simulated: bool
    devices: tuple[DeviceRow, ...]


class QuarantineDecision(DecidedDevice):
    """The device after reasons were added or lifted."""

    kind: Literal["quarantine"] = "quarantine"


@app.command("list")
def list_devices(
    *, state: StateOption = None, address: AddressOption = None, as_json: AsJson = False
) -> None:
    """List the devices with reasons against them, and who keeps those that should be free.

    With remedies. Exit code 0.
    """
    with reach.nodes(state_directory(state), address=address, looks=True) as nodes:
        views = [node.view() for node in nodes.values()]
    answer = QuarantineAnswer(
        simulated=any(view.simulated for view in views),
        devices=tuple(
            DeviceRow.at(view, device).model_copy(update={"replaced": closed})
            for view in views
            for device, closed in _with_reasons(view)
        ),
    )
    emit(answer, as_json=as_json, render=lambda console: _render(console, views))


@app.command("add")
def add(
    device: DeviceArgument,
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why, in your words.")],
    node: NodeOption = None,
    operator: OperatorOption = None,
    state: StateOption = None,
    address: AddressOption = None,
    as_json: AsJson = False,
) -> None:
    """Take a device out of service until an operator decides otherwise."""
    with reach.nodes(state_directory(state), address=address) as nodes:
        _, owner = reach.find(nodes, device, node=node)
        view = owner.quarantine_add(device, detail=reason, operator=operator_name(operator))
        found = owner.view()
    _show(found, view, as_json=as_json)


@app.command("clear")
def clear(
    device: DeviceArgument,
    *,
    reason: Annotated[
        str, typer.Option("--reason", help="Why you decide so, in your words; kept on record.")
    ],
    code: Annotated[
        list[str] | None, typer.Option("--code", help="Lift this reason only; may be repeated.")
    ] = None,
    node: NodeOption = None,
    operator: OperatorOption = None,
    state: StateOption = None,
    address: AddressOption = None,
    as_json: AsJson = False,
) -> None:
    """Lift reasons by your decision, on the record; the device is DIRTY then and must be wiped.

    Without --code those that are against it now; one that is found meanwhile stays.
    """
    with reach.nodes(state_directory(state), address=address) as nodes:
        _, owner = reach.find(nodes, device, node=node)
        before = next(d for d in owner.view().devices if device in (d.uuid, d.name))
        codes = tuple(code or sorted({one.code for one in before.reasons}))
        view = before
        if codes:  # none named would be all there are by then, which nobody has seen
            view = owner.quarantine_clear(
                before.uuid, codes=codes, operator=operator_name(operator), detail=reason
            )
        found = owner.view()
    left = {one.code for one in view.reasons}
    lifted = [one for one in before.reasons if one.code in codes and one.code not in left]
    retired = text.is_retired(found, view)
    _show(found, view, lifted, retired=retired, as_json=as_json)


def _show(
    of: NodeView,
    view: DeviceView,
    lifted: Sequence[ReasonView] = (),
    *,
    retired: bool = False,
    as_json: bool,
) -> None:
    node = of.node

    def render(console: Console) -> None:
        text.banner(console, [of])
        console.print(text.joined(f"{node}/{view.name}: ", text.coloured(view.state)))
        for one in lifted:
            told = f": {one.detail}" if one.detail else ""
            console.print(text.plain(f"  lifted: {one.code} ({one.source}){told}"))
        text.explain(console, f"{node}/{view.name}", view.reasons)
        if retired:
            back = text.taken_back(node, view.name)
            console.print(text.plain(f"  it stays retired, and is offered to nobody: {back}"))

    answer = QuarantineDecision(**fields_of(DeviceRow.at(of, view)), simulated=of.simulated)
    emit(answer, as_json=as_json, render=render)


def _render(console: Console, views: Sequence[NodeView]) -> None:
    text.banner(console, views)
    if not any(_with_reasons(view) for view in views):
        console.print("no device has a reason against it")
    for view in views:
        for device, closed in _with_reasons(view):
            console.print(
                text.joined(
                    f"{view.node}/{device.name} ({device.uuid}): ",
                    text.coloured(device.state),
                    f", closed: {closed}" if closed else "",
                )
            )
            text.explain(console, f"{view.node}/{device.name}", device.reasons)
            for line in text.keeper(f"{view.node}/{device.name}", device):
                console.print(text.plain(line))


def _with_reasons(view: NodeView) -> list[tuple[DeviceView, str]]:
    """Devices with reasons or kept by somebody, those that are not there any more too; and why
    theirs are closed."""
    there = [(device, "") for device in view.devices]
    lost = [(one.device, one.closed) for one in view.lost]
    return [found for found in (*there, *lost) if found[0].reasons or found[0].kept_by]
