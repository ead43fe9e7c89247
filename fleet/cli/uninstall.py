"""`fleet uninstall`: everything that is ours anywhere, and its removal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from fleet.cli import reach, text
from fleet.cli.cluster import (
    KubeconfigOption,
    NoClusterOption,
    PolicyOption,
    Surroundings,
    surroundings,
)
from fleet.cli.options import AddressOption, StateOption, state_directory
from fleet.cli.output import AsJson, VerbAnswer, emit
from fleet.control.binding import liveness
from fleet.control.repair import uninstall as repair_uninstall
from fleet.control.repair.facts import Facts
from fleet.control.repair.repair import Hands, Outcome
from fleet.control.repair.survey import gather
from fleet.control.repair.uninstall import Obstacle
from fleet.core import errors
from fleet.core.messages import Message
from fleet.core.model import HolderKind

RETURN_S = 3.0
"""Time, s, after which a coordinator anywhere would have taken its quarantine leases again."""
_QUARANTINES = f"{HolderKind.QUARANTINE}:"

FollowedOption = Annotated[
    bool,
    typer.Option(
        "--plugins-follow",
        help="Plugins, coordinator and store are removed right after: leave slices and leases that"
        " they keep, and do not ask for them to be stopped first.",
    ),
]


class Uninstall(Message):
    """What there is, what stands in the way, what was done."""

    applied: bool
    simulated: bool
    items: tuple[Outcome, ...]
    obstacles: tuple[Obstacle, ...]
    state: str
    """The directory that stays: evidence, keys, journals."""
    notes: tuple[str, ...] = ()


class UninstallAnswer(Uninstall, VerbAnswer):
    """What there is, what stands in the way, what was done."""

    kind: Literal["uninstall"] = "uninstall"


def uninstall(
    *,
    plan: Annotated[bool, typer.Option("--plan", help="List everything; change nothing.")] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Take it away, in order; refused while in use.")
    ] = False,
    followed: FollowedOption = False,
    policy: PolicyOption = None,
    kubeconfig: KubeconfigOption = None,
    no_cluster: NoClusterOption = False,
    state: StateOption = None,
    address: AddressOption = None,
    as_json: AsJson = False,
) -> None:
    """Leaves no hold, finalizer, lease or taint behind. Evidence stays.

    Exit code 0: nothing of ours is left (but the state directory); 1: something is, or stands in
    the way, or could not be looked at; 2: nothing could be looked at.
    """
    if plan == apply:
        raise errors.InputInvalid(
            "say what to do: --plan or --apply", remedy="begin with `fleet uninstall --plan`"
        )
    from jobs import reconcile as job

    directory = state_directory(state)
    around = surroundings(
        directory, address=address, kubeconfig=kubeconfig, policy=policy, no_cluster=no_cluster
    )
    with reach.fleet(directory, address=address, looks=plan) as fleet:
        bench = job.bench(fleet, around)
        facts = gather(bench.sources, time.time())
        obstacles = (
            *repair_uninstall.obstacles(facts, followed=followed),
            *repair_uninstall.around(
                alive=_running(around) if address is None else None,
                now=facts.at,
                unasked=around.unasked,
            ),
        )
        go = apply and not obstacles
        items = _items(facts, bench.hands if go else None, followed=followed)
        if go and any(one.orphan.subject.startswith(_QUARANTINES) for one in items):
            time.sleep(RETURN_S)
            obstacles = repair_uninstall.returned(items, tuple(fleet.coordinator.leases()))
    report = Uninstall(
        applied=go,
        simulated=any(view.simulated for view in facts.views.values()),
        items=items,
        obstacles=obstacles,
        state=str(directory),
        notes=job.notes(facts, around.unasked),
    )
    emit(
        UninstallAnswer.of(report),
        as_json=as_json,
        render=lambda console: _render(console, report, directory, wanted=apply),
    )
    left = bool(obstacles) or any(not one.done for one in items)
    raise typer.Exit(2 if job.blind(facts) else int(left))


def _running(around: Surroundings) -> liveness.Alive | None:
    """The coordinator of the cluster, if one reported."""
    if around.cluster is None:
        return None
    return liveness.read(around.cluster, around.settings.store.namespace).found


def _items(facts: Facts, hands: Hands | None, *, followed: bool) -> tuple[Outcome, ...]:
    """What there is, taken away by `hands`; None: left as it is."""
    if hands is not None:
        return repair_uninstall.remove(facts, hands, followed=followed)
    found = repair_uninstall.everything(facts, followed=followed)
    return tuple(Outcome(orphan=one, done=False) for one in found)


def _render(console: Console, report: Uninstall, directory: Path, *, wanted: bool) -> None:
    text.warn(console, simulated=report.simulated)
    for one in report.items:
        word, colour = ("gone", "green") if one.done else ("there", "yellow")
        place = f"{one.orphan.node}: " if one.orphan.node else ""
        console.print(text.joined((f"{word}: ", colour), f"{place}{one.orphan.what}"))
        if one.detail:
            console.print(text.plain(f"    stays: {one.detail}", style="red"))
            console.print(text.joined(("    do: ", "bold"), one.orphan.command))
    _show_obstacles(console, report.obstacles)
    for note in report.notes:
        console.print(text.plain(f"note: {note}", style="yellow"))
    left = sum(not one.done for one in report.items)
    console.print(
        text.plain(
            f"{left} of {len(report.items)} things are there; evidence, keys and journals stay in"
            f" {directory}: keep them as long as somebody may ask, then delete the directory"
        )
    )
    if wanted and report.obstacles and not report.applied:
        console.print(text.plain("nothing was changed", style="bold"))


def _show_obstacles(console: Console, obstacles: Sequence[Obstacle]) -> None:
    for obstacle in obstacles:
        console.print(text.joined(("in the way: ", "red"), obstacle.what))
        console.print(text.joined(("    do: ", "bold"), obstacle.remedy))
