"""`fleet report`: one run as a page, or does the evidence of every device answer a requirement."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from fleet.cli import archive, reach, run_report
from fleet.cli.evidence import (
    CoordinatorKeysOption,
    DirectoryOption,
    HtmlOption,
    KeysOption,
    open_evidence,
    ring,
    trust,
)
from fleet.cli.options import AddressOption, StateOption, moment, state_directory
from fleet.cli.output import AsJson, VerbAnswer, emit
from fleet.cli.pages import markup
from fleet.cli.pages import requirement as pages_requirement
from fleet.core import errors
from fleet.core.messages import NodeView
from fleet.core.model import UnitId
from fleet.evidence.findings import Demand
from fleet.evidence.judged import judge
from fleet.evidence.requirements import neutral as neutrals
from fleet.evidence.requirements import report as reporting
from fleet.evidence.requirements.mapping import requirement as named
from fleet.evidence.requirements.report import Asked, ComplianceReport, Period

NEUTRAL = "SEC21-05"
"""The requirement whose check reads a record of its own."""

RunArgument = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help="This run, as `fleet runs` lists it.")
]
RequirementOption = Annotated[
    str,
    typer.Option(
        "--requirement",
        metavar="ID",
        help="Instead of a run: which requirement; docs/compliance.md lists them.",
        show_default=False,
    ),
]
EveryOption = Annotated[
    bool, typer.Option("--all", help="Every device with its figures, not one line for many.")
]
CsvOption = Annotated[
    Path | None,
    typer.Option(
        "--csv", metavar="FILE", help="Write a row for each device there.", show_default=False
    ),
]
NeutralOption = Annotated[
    bool,
    typer.Option(
        "--neutral",
        help="Print the record that the check of SEC21-05 reads instead; exit code 0 when it could"
        " be made: the check decides.",
    ),
]
SinceOption = Annotated[
    str,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Only wipes from then on (UTC, like 2026-01-31 or 2026-01-31T12:00:00).",
        show_default=False,
    ),
]
UntilOption = Annotated[
    str,
    typer.Option(
        "--until",
        metavar="TIME",
        help="Only wipes up to then; a date alone means its end.",
        show_default=False,
    ),
]


class RequirementAnswer(ComplianceReport, VerbAnswer):
    """Device by device, whether the evidence answers a requirement."""

    kind: Literal["report requirement"] = "report requirement"


def report(
    run: RunArgument = None,
    *,
    requirement: RequirementOption = "",
    every: EveryOption = False,
    csv: CsvOption = None,
    neutral: NeutralOption = False,
    html: HtmlOption = None,
    state: StateOption = None,
    address: AddressOption = None,
    directory: DirectoryOption = None,
    key: KeysOption = None,
    coordinator_key: CoordinatorKeysOption = None,
    since: SinceOption = "",
    until: UntilOption = "",
    as_json: AsJson = False,
) -> None:
    """With RUN: what it covered, what not and why, when, how fast, with certificates, verified.

    Exit code as the run's own, and 1 where a certificate does not prove what the record says; with
    --html as one page to print. With --requirement exit code 1 when a device has no valid answer,
    with what is missing, devices of one answer together; 2 when it could not run. The devices are
    those of the fleet; with --directory, those its certificates name. Without a period the newest
    wipe of each device must answer, with one every wipe in it. Evidence of simulated devices
    answers nothing.
    """
    if run is None and not requirement:
        raise errors.InputInvalid(
            "nothing is named to report on",
            remedy="write `fleet report RUN` (`fleet runs` lists them), or"
            " `fleet report --requirement ID` (docs/compliance.md lists those)",
        )
    if run is not None and requirement:
        raise errors.InputInvalid(
            "a run and a requirement are two reports", remedy="name one of them"
        )
    for file in (html, csv):
        markup.check_place(file, as_json=as_json)
    if requirement != NEUTRAL and neutral:
        raise errors.InputInvalid(
            "--neutral is the record of one requirement",
            remedy=f"write `fleet report --requirement {NEUTRAL} --neutral`",
        )
    if run is not None:
        if since or until or every or csv:
            raise errors.InputInvalid(
                "--since, --until, --all and --csv are for --requirement",
                remedy="leave them out, or name a requirement instead of a run",
            )
        place = run_report.Place(state, address, directory, trust(key), ring(coordinator_key))
        raise typer.Exit(run_report.tell(run, place, html=html, as_json=as_json))
    wanted = named(requirement)
    period = Period(moment(since), moment(until, end=True))
    # The nodes first: what they have in force meanwhile is in evidence that is read after.
    views = () if directory is not None else _views(state_directory(state), address)
    evidence = judge(
        open_evidence(state, directory, trust(key), ring(coordinator_key)),
        Demand(now=time.time()),
    )
    asked = reporting.known(evidence) if directory is not None else tuple(_devices(views))
    found = reporting.compare(wanted, evidence, asked, period=period)
    if neutral:
        _say_neutral(found, views, state)
        return
    if html is not None:
        markup.put(html, pages_requirement.page(found))
    if csv is not None:
        markup.put(csv, pages_requirement.csv_of(found))
    if any(str(file) == markup.STDOUT for file in (html, csv)):
        raise typer.Exit(found.exit_code)
    emit(
        RequirementAnswer.of(found),
        as_json=as_json,
        render=lambda console: pages_requirement.render(console, found, every=every),
    )
    raise typer.Exit(found.exit_code)


def _say_neutral(found: ComplianceReport, views: Sequence[NodeView], state: Path | None) -> None:
    """Print the record that the check of SEC21-05 reads, and nothing else."""
    claims = {device.uuid: device.claim for view in views for device in view.devices}
    site = archive.chosen(state).site if views else ""
    sys.stdout.write(json.dumps(neutrals.record(found, claims, site=site), indent=2) + "\n")


def _views(state: Path, address: str | None) -> tuple[NodeView, ...]:
    with reach.nodes_alone(state, address=address, looks=True) as nodes:
        return tuple(node.view() for node in nodes.values())


def _devices(views: Sequence[NodeView]) -> Iterator[Asked]:
    for view in views:
        for device in view.devices:
            yield Asked(
                node=view.node,
                uuid=device.uuid,
                name=device.name,
                units=frozenset(UnitId(unit) for unit in device.units),
                simulated=view.simulated,
                state=device.state,
                certificate=device.certificate,
            )
