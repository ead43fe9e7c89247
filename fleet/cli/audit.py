"""`fleet audit`: do leases, nodes, certificates and claims agree."""

from __future__ import annotations

import time
from typing import Literal

import typer
from rich.console import Console
from rich.text import Text

from fleet.cli import reach, text
from fleet.cli.cluster import KubeconfigOption, NoClusterOption, PolicyOption, surroundings
from fleet.cli.options import AddressOption, StateOption, state_directory
from fleet.cli.output import AsJson, VerbAnswer, emit
from jobs.audit import AuditReport


class AuditAnswer(AuditReport, VerbAnswer):
    """Where the sources disagree."""

    kind: Literal["audit"] = "audit"


def audit(
    *,
    kubeconfig: KubeconfigOption = None,
    no_cluster: NoClusterOption = False,
    policy: PolicyOption = None,
    state: StateOption = None,
    address: AddressOption = None,
    as_json: AsJson = False,
) -> None:
    """Exit code 1 when they do not agree or one of them could not be asked; 2 when none could.

    Every disagreement comes with its remedy. Where the fleet serves no cluster the part about
    claims is left out, and that is said; with --address only --no-cluster says that there is none.
    """
    from jobs import audit as job

    directory = state_directory(state)
    around = surroundings(
        directory, address=address, kubeconfig=kubeconfig, policy=policy, no_cluster=no_cluster
    )
    looking = job.Looking(
        ledgers=None if address is not None else directory,
        cluster=around.cluster,
        namespace=around.settings.store.namespace,
        marks=around.marks,
        settle_s=around.settings.kubernetes.binding_timeout_s,
        unasked=around.unasked,
        awaited=around.has_waiting,
    )
    with reach.fleet(directory, address=address, looks=True) as fleet:
        report = job.compare(job.gather(fleet, looking, now=time.time()))

    def render(console: Console) -> None:
        text.warn(console, simulated=report.simulated)
        for finding in report.findings:
            console.print(
                Text.assemble(
                    (f"{finding.trouble}: ", "bold red"), f"{finding.place}: {finding.detail}"
                )
            )
            console.print(Text(f"    do: {finding.remedy}"))
        for note in report.skipped:
            console.print(text.plain(f"note: {note}", style="yellow"))
        console.print(
            f"{report.nodes} nodes, {report.devices} devices, {report.leases} leases,"
            f" {report.certificates} certificates: "
            + (f"{len(report.findings)} disagreements" if report.findings else "all agree")
        )

    emit(AuditAnswer.of(report), as_json=as_json, render=render)
    raise typer.Exit(report.exit_code)
