"""`fleet devices`: every device with its state; one retired for good, or partitioned or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
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
from fleet.core import settings_file
from fleet.core.messages import DeviceView, NodeView
from fleet.core.settings import Settings
from fleet.wiring import plans

app = typer.Typer(invoke_without_command=True)


class DevicesAnswer(VerbAnswer):
    """Every device."""

    kind: Literal["devices"] = "devices"
    simulated: bool
    devices: tuple[DeviceRow, ...]
    retired: dict[str, tuple[str, ...]]
    """UUIDs of devices taken out of the slices for good, by node, hardware that is gone too."""


class RetireAnswer(VerbAnswer):
    """A device that was taken out for good."""

    kind: Literal["devices retire"] = "devices retire"
    node: str
    device: str
    uuid: str
    operator: str
    reason: str
    simulated: bool


class PartitioningAnswer(DecidedDevice):
    """An accelerator after its partitioning was switched."""

    kind: Literal["devices partitioning"] = "devices partitioning"
    on: bool
    operator: str


@app.callback()
def devices(
    context: typer.Context,
    *,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="Settings, where real devices are not found in the usual places.",
        ),
    ] = None,
    state: StateOption = None,
    address: AddressOption = None,
    as_json: AsJson = False,
) -> None:
    """List every device with node, state, reasons and certificate. Exit code 0.

    On a machine with real accelerators and no fleet yet this makes one; nothing is wiped by it.
    """
    if context.invoked_subcommand is not None:
        return
    directory = state_directory(state)
    if address is None:
        settings = settings_file.load(policy) if policy else Settings()
        plans.discover_fleet(directory, settings)
        plans.plan_fleet(directory, settings=settings)
    with reach.nodes(directory, address=address, looks=True) as nodes:
        views = [node.view() for node in nodes.values()]
    answer = DevicesAnswer(
        simulated=any(view.simulated for view in views),
        devices=tuple(DeviceRow.at(view, device) for view in views for device in view.devices),
        retired={view.node: view.retired for view in views if view.retired},
    )
    emit(answer, as_json=as_json, render=lambda console: _render(console, views))


@app.command("retire")
def retire(
    device: Annotated[
        str, typer.Argument(help="Name or UUID; of hardware that is gone already, its UUID.")
    ],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why, in your words.")],
    node: Annotated[
        str | None,
        typer.Option("--node", help="Its node, when its name is on several or it is gone."),
    ] = None,
    operator: OperatorOption = None,
    state: StateOption = None,
    address: AddressOption = None,
    as_json: AsJson = False,
) -> None:
    """Take a device out of the slices for good; refused while it is in use.

    Neither a restart nor the card plugged in again brings it back: `fleet node adopt
    --device DEVICE` does, and then `fleet quarantine clear`.
    """
    who = operator_name(operator)
    with reach.nodes(state_directory(state), address=address) as nodes:
        name = reach.owner(nodes, device, node=node)
        uuid = nodes[name].retire(device, detail=reason, operator=who)
        found = nodes[name].view()

    def render(console: Console) -> None:
        text.banner(console, [found])
        console.print(text.plain(f"{name}/{device} ({uuid}) is retired, recorded for {who}"))

    answer = RetireAnswer(
        node=name,
        device=device,
        uuid=uuid,
        operator=who,
        reason=reason,
        simulated=found.simulated,
    )
    emit(answer, as_json=as_json, render=render)


@app.command("partitioning")
def partitioning(
    device: Annotated[str, typer.Argument(help="Name or UUID of a whole accelerator.")],
    *,
    on: Annotated[bool, typer.Option("--on/--off", help="Into partitions, or one device again.")],
    node: Annotated[
        str | None, typer.Option("--node", help="Its node, when its name is on several.")
    ] = None,
    operator: OperatorOption = None,
    state: StateOption = None,
    address: AddressOption = None,
    as_json: AsJson = False,
) -> None:
    """Switch partitioning (MIG) of an accelerator that nobody has; all of it is DIRTY then.

    It must be CLEAN and healthy to be divided: error counts of its memory are readable only as a
    whole, and are kept as the baseline of its partitions. The driver may reset it.
    """
    who = operator_name(operator)
    with reach.nodes(state_directory(state), address=address) as nodes:
        name, owner = reach.find(nodes, device, node=node)
        view = owner.partition(device, on=on, operator=who)
        found = nodes[name].view()

    def render(console: Console) -> None:
        text.banner(console, [found])
        console.print(
            text.joined(
                f"{name}/{view.name}: {view.partitioning or 'partitioning off'}, ",
                text.coloured(view.state),
                f", recorded for {who}",
            )
        )

    answer = PartitioningAnswer(
        **fields_of(DeviceRow.at(found, view)), on=on, operator=who, simulated=found.simulated
    )
    emit(answer, as_json=as_json, render=render)


def _render(console: Console, views: Sequence[NodeView]) -> None:
    text.banner(console, views)
    table = text.table()
    for column in ("node", "device", "uuid", "memory", "profile", "state", "reasons", "claim"):
        table.add_column(column, justify="right" if column == "memory" else "left")
    table.add_column("certificate")
    for view in views:
        for device in view.devices:
            table.add_row(
                view.node,
                device.name,
                device.uuid,
                text.memory(device.memory_bytes),
                device.profile or "whole",
                text.coloured(device.state),
                _against(view, device),
                device.claim or "-",
                text.digest(device.certificate),
            )
    console.print(table)
    for view in views:
        for device in view.devices:
            if device.partitioning:
                told = f"  {view.node}/{device.name}: {device.partitioning}"
                console.print(text.plain(told))
        text.explain_retired(console, view)


def _against(view: NodeView, device: DeviceView) -> str:
    found = text.reasons(device)
    if not text.is_retired(view, device):
        return found
    return "retired" if found == "-" else f"retired, {found}"
