"""`fleet status`: is the fleet fit, and if not, what is to be done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import typer
from rich.console import Console

from fleet.cli import reach, text
from fleet.cli.cluster import KubeconfigOption, PolicyOption, coordinator_signs
from fleet.cli.options import AddressOption, StateOption, state_directory
from fleet.cli.output import AsJson, VerbAnswer, emit, fields_of
from fleet.control.binding import liveness
from fleet.core import errors
from fleet.core.messages import Moment, NodeView
from fleet.core.model import OUT_OF_SERVICE, State
from fleet.evidence import dsse
from fleet.wiring import plans as wiring_plans
from fleet.wiring.plans import NodePlan

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
    verdict: str
    """Fit or unfit, why and since when, in one line."""
    unfit_since: Moment = 0.0
    """When the first device that is out of service now was taken out; null: none, or not told."""
    nodes: tuple[NodeRow, ...]
    coordinator: liveness.Alive | None
    """As the coordinator reported last; null: none has, or it is not known."""
    coordinator_trouble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """What the first line says."""

    devices: int
    nodes: int
    unfit: Counter[str]
    """Devices out of service, by state."""
    causes: Counter[str]
    """Codes of the reasons against them, by how many have them."""
    degraded: tuple[str, ...]
    """Nodes that are degraded, each with its first reason."""
    trouble: tuple[str, ...]
    since: float
    """When the first of them was taken out; 0.0: none is, or nobody tells."""
    unasked: bool = False
    """Whether no node was asked, but the coordinator alone."""

    @property
    def fit(self) -> bool:
        """Whether there are devices, and nothing is wrong."""
        wrong = self.unfit or self.degraded or self.trouble
        return (bool(self.devices) or self.unasked) and not wrong

    def line(self) -> str:
        """The line."""
        if self.unasked:
            if self.trouble:
                return f"UNFIT: {self.trouble[0]}"
            return "the coordinator steps; no node was asked: with --address, or on a node"
        if not self.devices:
            return "UNFIT: there is no device"
        whole = f"{_count(self.devices, 'device')} on {_count(self.nodes, 'node')}"
        if self.fit:
            return f"FIT: {whole}, all in service"
        since = f" since {dsse.stamp(self.since)}" if self.since else ""
        parts = []
        if self.unfit:
            states = ", ".join(f"{count} {state}" for state, count in self.unfit.most_common())
            why = ", ".join(f"{code} x{count}" for code, count in self.causes.most_common(3))
            total = sum(self.unfit.values())
            parts.append(f"{total} of {whole}: {states}{f' ({why})' if why else ''}")
        parts += self.degraded[:1]
        if len(self.degraded) > 1:
            parts.append(f"and {len(self.degraded) - 1} more nodes degraded")
        parts += self.trouble[:1]
        return f"UNFIT{since}: {'; '.join(parts)}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def judge(views: Sequence[NodeView], trouble: Sequence[str], *, unasked: bool = False) -> Judged:
    """Whether the fleet of these views is fit; `unasked`: as of `Judged`."""
    devices = [device for view in views for device in view.devices]
    out = [device for device in devices if device.state in UNFIT]
    return Judged(
        devices=len(devices),
        nodes=len(views),
        unfit=Counter(str(device.state) for device in out),
        causes=Counter(code for one in out for code in {reason.code for reason in one.reasons}),
        degraded=tuple(
            f"{view.node} is degraded: {view.degraded[0]}" for view in views if view.degraded
        ),
        trouble=tuple(trouble),
        since=min((device.since for device in out if device.since), default=0.0),
        unasked=unasked,
    )


def status(
    *,
    state: StateOption = None,
    address: AddressOption = None,
    kubeconfig: KubeconfigOption = None,
    policy: PolicyOption = None,
    as_json: AsJson = False,
) -> None:
    """Show each node: states, trouble and remedies, and whether the coordinator steps.

    Exit code 1 when a device or node is unfit, or the coordinator is gone, does not step or lacks a
    right. With --kubeconfig where no node is: the coordinator alone.
    """
    directory = state_directory(state)
    plans = _plans(directory, needed=kubeconfig is None) if address is None else ()
    views: list[NodeView] = []
    if plans or address is not None:
        with reach.nodes(directory, address=address, looks=True) as nodes:
            views = [node.view() for node in nodes.values()]
    asked = coordinator_signs(plans, address=address, kubeconfig=kubeconfig, policy=policy)
    signs, awaited = asked
    now = time.time()
    trouble = tuple(liveness.told(signs, now, awaited=awaited))
    # Who waits for no coordinator is as fit without one: then that is said, and is no verdict.
    counts = signs.found is not None or awaited
    judged = judge(views, trouble if counts else (), unasked=not (plans or address))
    unfit = not judged.fit
    answer = StatusAnswer(
        simulated=any(view.simulated for view in views),
        fit=judged.fit,
        verdict=judged.line(),
        unfit_since=judged.since,
        nodes=tuple(
            NodeRow(
                **fields_of(view), states=dict(Counter(device.state for device in view.devices))
            )
            for view in views
        ),
        coordinator=signs.found,
        coordinator_trouble=trouble,
    )

    def render(console: Console) -> None:
        text.banner(console, views)
        console.print(text.plain(judged.line(), "bold green" if judged.fit else "bold red"))
        _render(console, views)
        if line := liveness.summary(signs, now):
            console.print(text.plain(f"  {line}"))
        for why in trouble:
            console.print(text.plain(f"  {why}", style="yellow"))

    emit(answer, as_json=as_json, render=render)
    raise typer.Exit(1 if unfit else 0)


def _plans(directory: Path, *, needed: bool) -> Sequence[NodePlan]:
    """The nodes of the fleet here. Raises `DriverAbsent` where there is none and one is needed."""
    try:
        return wiring_plans.plan_fleet(directory).nodes
    except errors.DriverAbsent:
        if needed:
            raise
        return ()


def _render(console: Console, views: Sequence[NodeView]) -> None:
    shown = [
        state for state in State if any(d.state == state for view in views for d in view.devices)
    ]
    table = text.table()
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
        for one in view.lost:
            text.explain_lost(console, view, one)
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
