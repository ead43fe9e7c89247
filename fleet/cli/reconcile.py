"""`fleet reconcile`: take away what was left behind and belongs to nobody."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from fleet.cli import reach, text
from fleet.cli.cluster import KubeconfigOption, NoClusterOption, PolicyOption, surroundings
from fleet.cli.options import AddressOption, StateOption, state_directory
from fleet.cli.output import AsJson, VerbAnswer, emit
from jobs.reconcile import Reconciliation

if TYPE_CHECKING:
    from fleet.control.repair.repair import Outcome


class ReconcileAnswer(Reconciliation, VerbAnswer):
    """What a repair found and did."""

    kind: Literal["reconcile"] = "reconcile"


def reconcile(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    kubeconfig: KubeconfigOption = None,
    no_cluster: NoClusterOption = False,
    policy: PolicyOption = None,
    state: StateOption = None,
    address: AddressOption = None,
    as_json: AsJson = False,
) -> None:
    """Without proof nothing is touched.

    Exit code 1 when something is left, would be done, or could not be looked at; 2 when nothing
    could be looked at, or the cluster is not the one that the state directory belongs to.
    """
    from jobs import reconcile as job

    directory = state_directory(state)
    around = surroundings(
        directory, address=address, kubeconfig=kubeconfig, policy=policy, no_cluster=no_cluster
    )
    with reach.fleet(directory, address=address, looks=dry_run) as fleet:
        report = job.run(job.bench(fleet, around), now=time.time(), dry_run=dry_run)
    emit(ReconcileAnswer.of(report), as_json=as_json, render=partial(_render, report))
    raise typer.Exit(report.exit_code)


def _render(report: Reconciliation, console: Console) -> None:
    text.warn(console, simulated=report.simulated)
    for outcome in report.outcomes:
        _explain(console, outcome, dry_run=report.dry_run)
    for node, error in report.silent.items():
        console.print(
            text.plain(f"{node} does not answer, all of it was left: {error}", style="red")
        )
    for note in report.notes:
        console.print(text.plain(f"note: {note}", style="yellow"))
    done = sum(outcome.done for outcome in report.outcomes)
    word = "would be looked at" if report.dry_run else f"{done} taken away"
    if begun := sum(outcome.begun for outcome in report.outcomes):
        word += f", {begun} teardowns begun"
    count = len(report.outcomes)
    said = f"{count} left behind: {word}" if count else "nothing was left behind"
    if report.blind:
        said = "nothing could be looked at: whether something was left behind is not known"
    elif report.unseen:
        said = f"{count} found left behind: {word}; more may be, not all could be looked at"
    console.print(text.plain(said))


def _explain(console: Console, outcome: Outcome, *, dry_run: bool) -> None:
    one = outcome.orphan
    word, colour = ("gone", "green") if outcome.done else ("left", "red")
    if outcome.begun:
        word, colour = "teardown begun", "yellow"
    if dry_run and one.proven:
        word, colour = "to do", "yellow"
    place = f"{one.node}: " if one.node else ""
    console.print(text.joined((f"{word}: ", colour), f"{place}{one.what}"))
    console.print(text.plain(f"    why: {one.why}"))
    console.print(text.plain(f"    fix: {one.fix}"))
    if not outcome.done:
        if outcome.detail and outcome.detail != one.why:
            console.print(text.plain(f"    stays: {outcome.detail}"))
        console.print(text.joined(("    do: ", "bold"), one.command))
