"""`fleet sweep`: read the health of every device now."""

from __future__ import annotations

from typing import Literal

import typer
from rich.console import Console
from rich.text import Text

from fleet.cli import reach, text
from fleet.cli.options import AddressOption, StateOption, state_directory
from fleet.cli.output import AsJson, VerbAnswer, emit
from jobs import sweep as job


class SweepAnswer(job.SweepReport, VerbAnswer):
    """What a sweep saw."""

    kind: Literal["sweep"] = "sweep"


def sweep(
    *, state: StateOption = None, address: AddressOption = None, as_json: AsJson = False
) -> None:
    """Tenants are not disturbed. Exit code 1 when a device fails or cannot be read."""
    with reach.nodes(state_directory(state), address=address, looks=True) as nodes:
        report = job.run(nodes)

    def render(console: Console) -> None:
        text.warn(console, simulated=report.simulated)
        for node, device in report.rows():
            place = f"{node}/{device.device}"
            word = "FAILS" if device.failing else "ok"
            console.print(Text.assemble((f"{place}: ", "bold"), word))
            if device.error:
                console.print(Text(f"  could not be read: {device.error}"))
            for finding in device.findings:
                if finding.verdict not in ("pass", "not-applicable"):
                    console.print(Text(f"  {finding.verdict}: {finding.check}: {finding.detail}"))
                    if finding.remedy:
                        console.print(Text(f"      do: {finding.remedy}"))
        for node, error in report.silent.items():
            console.print(Text(f"{node} did not answer: {error}", style="red"))

    emit(SweepAnswer.of(report), as_json=as_json, render=render)
    raise typer.Exit(1 if report.found else 0)
