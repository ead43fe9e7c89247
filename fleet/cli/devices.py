"""`fleet devices`: every device with its state."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from fleet.cli import reach, text
from fleet.cli.options import AddressOption, StateOption, state_directory
from fleet.cli.output import AsJson, emit
from fleet.messages import NodeView


def devices(
    *, state: StateOption = None, address: AddressOption = None, as_json: AsJson = False
) -> None:
    """List every device with node, state, reasons and certificate. Exit code 0."""
    with reach.nodes(state_directory(state), address=address) as nodes:
        views = [node.view() for node in nodes.values()]
    document = {
        "simulated": any(view.simulated for view in views),
        "devices": [
            {"node": view.node, **device.model_dump(mode="json")}
            for view in views
            for device in view.devices
        ],
    }
    emit(document, as_json=as_json, render=lambda console: _render(console, views))


def _render(console: Console, views: Sequence[NodeView]) -> None:
    text.banner(console, views)
    table = Table(box=None, pad_edge=False)
    for column in ("node", "device", "uuid", "memory", "profile", "state", "reasons", "claim"):
        table.add_column(column, justify="right" if column == "memory" else "left")
    table.add_column("certificate")
    for view in views:
        for device in view.devices:
            table.add_row(
                view.node,
                device.name,
                device.uuid,
                text.size(device.memory_bytes),
                device.profile or "whole",
                text.coloured(device.state),
                text.reasons(device),
                device.claim or "-",
                text.digest(device.certificate),
            )
    console.print(table)
