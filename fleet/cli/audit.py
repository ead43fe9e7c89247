"""`fleet audit`: do leases, nodes and certificates agree."""

from __future__ import annotations

import time

import typer
from rich.console import Console
from rich.text import Text

from fleet.cli import reach, text
from fleet.cli.options import AddressOption, StateOption, state_directory
from fleet.cli.output import AsJson, emit


def audit(
    *, state: StateOption = None, address: AddressOption = None, as_json: AsJson = False
) -> None:
    """Exit code 1 when they do not; every disagreement comes with its remedy."""
    from jobs import audit as job

    directory = state_directory(state)
    with reach.fleet(directory, address=address) as fleet:
        ledgers = None if address is not None else directory
        report = job.compare(job.gather(fleet, ledgers=ledgers, now=time.time()))

    def render(console: Console) -> None:
        if report.simulated:
            console.print(Text(text.SIMULATED, style="bold black on yellow"))
        for finding in report.findings:
            console.print(
                Text.assemble(
                    (f"{finding.trouble}: ", "bold red"), f"{finding.place}: {finding.detail}"
                )
            )
            console.print(Text(f"    do: {finding.remedy}"))
        console.print(
            f"{report.nodes} nodes, {report.devices} devices, {report.leases} leases,"
            f" {report.certificates} certificates: "
            + (f"{len(report.findings)} disagreements" if report.findings else "all agree")
        )

    emit(report.model_dump(mode="json"), as_json=as_json, render=render)
    raise typer.Exit(1 if report.findings else 0)
