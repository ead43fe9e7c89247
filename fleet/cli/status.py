"""`fleet status`: is the fleet fit, and if not, what is to be done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import typer
from rich.console import Console
from rich.table import Table

from fleet import bootstrap
from fleet.binding import alive
from fleet.cli import reach, text
from fleet.cli.cluster import is_awaited
from fleet.cli.options import AddressOption, StateOption, state_directory
from fleet.cli.output import AsJson, VerbAnswer, emit, fields_of
from fleet.messages import NodeView
from fleet.model import OUT_OF_SERVICE, State

UNFIT = OUT_OF_SERVICE | {State.DIRTY}
"""A dirty device is not lost, but nobody can have it before it is wiped."""


class NodeRow(NodeView):
    """A node, and how many of its devices are in which state."""

    states: dict[str, int]


class StatusAnswer(VerbAnswer):
    """Whether the fleet is fit, and why not."""

    kind: Literal["status"] = "status"
    simulated: bool
    fit: bool
    nodes: tuple[NodeRow, ...]
    coordinator: alive.Alive | None
    """As the coordinator of this host reported last."""
    coordinator_trouble: tuple[str, ...]


def status(
    *, state: StateOption = None, address: AddressOption = None, as_json: AsJson = False
) -> None:
    """Show each node: states, trouble and remedies. Exit code 1 when a device or node is unfit.

    The coordinator of this host is shown as it reported last.
    """
    directory, now = state_directory(state), time.time()
    with reach.nodes(directory, address=address) as nodes:
        views = [node.view() for node in nodes.values()]
    found = alive.read(directory) if address is None else None
    awaited = address is None and is_awaited(bootstrap.plan_fleet(directory).nodes)
    trouble = tuple(alive.told(found, now, awaited=awaited))
    unfit = any(view.degraded for view in views) or any(
        device.state in UNFIT for view in views for device in view.devices
    )
    answer = StatusAnswer(
        simulated=any(view.simulated for view in views),
        fit=not unfit,
        nodes=tuple(
            NodeRow(
                **fields_of(view), states=dict(Counter(device.state for device in view.devices))
            )
            for view in views
        ),
        coordinator=found,
        coordinator_trouble=trouble,
    )

    def render(console: Console) -> None:
        _render(console, views)
        if line := alive.summary(found, now):
            console.print(text.plain(f"  {line}"))
        for why in trouble:
            console.print(text.plain(f"  {why}", style="yellow"))

    emit(answer, as_json=as_json, render=render)
    raise typer.Exit(1 if unfit else 0)


def _render(console: Console, views: Sequence[NodeView]) -> None:
    text.banner(console, views)
    shown = [
        state for state in State if any(d.state == state for view in views for d in view.devices)
    ]
    table = Table(box=None, pad_edge=False)
    table.add_column("node")
    table.add_column("backend")
    table.add_column("devices", justify="right")
    for state in shown:
        table.add_column(str(state), justify="right")
    table.add_column("outbox", justify="right")
    for view in views:
        counts = Counter(device.state for device in view.devices)
        table.add_row(
            view.node,
            view.backend,
            str(len(view.devices)),
            *(str(counts.get(str(state), 0)) for state in shown),
            str(view.outbox),
        )
    console.print(table)
    for view in views:
        text.explain_retired(console, view)
        for reason in view.degraded:
            console.print(text.plain(f"  {view.node} is degraded: {reason}", style="yellow"))
        for line in text.replication(view.node, view.replication):
            console.print(text.plain(line, style="yellow"))
        for note in view.notes:
            console.print(text.plain(f"  {view.node}: {note}"))
        for device in view.devices:
            text.explain(console, f"{view.node}/{device.name}", device.reasons)
            for line in text.keeper(f"{view.node}/{device.name}", device):
                console.print(text.plain(line, style="yellow"))
            if device.state == State.DIRTY:
                console.print(
                    text.plain(
                        f"  {view.node}/{device.name}: DIRTY, nobody gets it before it is wiped;"
                        " `fleet scrub` does that now, a running node by itself"
                    )
                )
            if device.state == State.HELD:
                console.print(
                    text.plain(
                        f"  {view.node}/{device.name}: HELD, its holder is unknown;"
                        " `fleet node adopt` records that it is free"
                    )
                )
