"""The final report of a campaign as an operator reads it: everything bad with its remedy."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fleet.cli import text
from fleet.control.campaign.report import ExitReason, RunReport
from fleet.control.campaign.verdict import verdict
from fleet.core.messages import GOOD, DeviceResult, Outcome


def render(console: Console, report: RunReport, *, state: Path) -> None:
    """Print `report`; `state` is where its evidence is."""
    text.warn(console, simulated=report.simulated)
    console.print(_table(report))
    for result in report.devices:
        _explain(console, result)
    _totals(console, report)
    _ending(console, report, state)


def _table(report: RunReport) -> Table:
    table = text.table(title=f"run {report.run}")
    for column in ("node", "device", "verdict", "outcome", "state"):
        table.add_column(column, no_wrap=True)
    for column in ("covered / total", "left out", "seconds", "rate"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("certificate", no_wrap=True)
    for result in report.devices:
        figures = result.bytes
        left_out = figures.reserved + figures.residual
        table.add_row(
            result.node,
            result.device,
            str(verdict(result)),
            text.coloured(result.outcome),
            text.coloured(result.state),
            f"{text.size(figures.covered)} / {text.size(figures.total)}" if figures.total else "-",
            text.size(left_out) if figures.total else "-",
            f"{result.seconds:.2f}" if result.seconds else "-",
            text.rate(result.rate),
            text.digest(result.certificate),
        )
    return table


def _explain(console: Console, result: DeviceResult) -> None:
    place = f"{result.node}/{result.device}"
    if result.outcome in GOOD and not result.findings:
        return
    if not result.findings:
        console.print(text.plain(f"  {place}: {result.outcome}, no reason was given", style="red"))
    for finding in result.findings:
        console.print(
            text.joined(
                (f"  {place}: ", "bold"), f"{finding.verdict}: {finding.check}: {finding.detail}"
            )
        )
        if finding.remedy:
            console.print(text.plain(f"      do: {finding.remedy}"))


def _totals(console: Console, report: RunReport) -> None:
    totals = report.totals
    outcomes = ", ".join(f"{count} {word}" for word, count in totals.verdicts.items())
    figures = totals.bytes
    console.print(
        text.plain(
            f"{totals.devices} devices: {outcomes or 'none'}; "
            f"{text.size(figures.covered)} of {text.size(figures.total)} covered"
            f" ({text.size(figures.reserved)} reserved, {text.size(figures.residual)} residual)"
            f" in {text.duration(report.wall_s)}, {text.rate(totals.rate)} over four passes"
        )
    )
    for note in report.notes:
        console.print(text.plain(f"note: {note}"))


def _ending(console: Console, report: RunReport, state: Path) -> None:
    directory = shlex.quote(str(state))
    if report.exit_reason is not ExitReason.COMPLETE:
        console.print(
            text.plain(f"ended early: {report.exit_reason}: {report.detail}", style="yellow")
        )
        if report.remedy:
            console.print(text.plain(f"do: {report.remedy}"))
    if report.exit_reason in (ExitReason.STOPPED, ExitReason.BREAKER, ExitReason.LIMITS):
        console.print(f"go on with: fleet scrub --resume {report.run} --state {directory}")
    if report.totals.outcomes.get(Outcome.CERTIFIED, 0):
        console.print(
            f"which requirements it answers: fleet report --requirement ID --state {directory}"
            ' (SEC21-05 asks for wipe.reset = "always" and a coordinator)'
        )
        console.print(f"verify the evidence with: fleet evidence verify --state {directory}")
