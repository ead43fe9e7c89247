"""`fleet report`: one run as a page, or does the evidence of every device answer a requirement."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from fleet import errors
from fleet.cli import markup, reach, run_reporting, text
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
from fleet.compliance import report as reporting
from fleet.compliance.mapping import requirement as named
from fleet.compliance.report import Asked, ComplianceReport, DeviceAnswer, Missing, Period
from fleet.evidence.findings import Demand
from fleet.evidence.judged import judge
from fleet.model import UnitId

_MOST_VALUES = 6
"""Values of one figure shown in text; all are in the JSON document."""

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
    with what is missing; 2 when it could not run. The devices are those of the fleet; with
    --directory, those its certificates name. Without a period the newest wipe of each device must
    answer, with one every wipe in it. Evidence of simulated devices answers nothing.
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
    markup.check_place(html, as_json=as_json)
    if run is not None:
        if since or until:
            raise errors.InputInvalid("--since and --until are for --requirement")
        place = run_reporting.Place(state, address, directory, trust(key), ring(coordinator_key))
        raise typer.Exit(run_reporting.tell(run, place, html=html, as_json=as_json))
    if html is not None:
        raise errors.InputInvalid("--html is for a run", remedy="name one of `fleet runs`")
    wanted = named(requirement)
    period = Period(moment(since), moment(until, end=True))
    # The nodes first: what they have in force meanwhile is in evidence that is read after.
    asked = None if directory is not None else tuple(_devices(state_directory(state), address))
    evidence = judge(
        open_evidence(state, directory, trust(key), ring(coordinator_key)),
        Demand(now=time.time()),
    )
    asked = reporting.known(evidence) if asked is None else asked
    found = reporting.compare(wanted, evidence, asked, period=period)
    emit(
        RequirementAnswer.of(found), as_json=as_json, render=lambda console: _render(console, found)
    )
    raise typer.Exit(found.exit_code)


def _devices(state: Path, address: str | None) -> Iterator[Asked]:
    with reach.nodes_alone(state, address=address) as nodes:
        views = [node.view() for node in nodes.values()]
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


# --- printing -------------------------------------------------------------------------------------


def _render(console: Console, found: ComplianceReport) -> None:
    text.warn(console, simulated=found.simulated)
    console.print(text.joined((f"{found.requirement}: ", "bold"), found.title))
    console.print(text.plain(f"source: {found.source}", "dim"))
    if found.since or found.until:
        console.print(text.plain(f"period: {found.since or 'the first'} to {found.until or 'now'}"))
    console.print(_table(found))
    for device in found.devices:
        _explain(console, device)
    for missing in found.missing:
        _tell(console, "fleet", missing)
    for note in found.notes:
        console.print(text.plain(f"note: {note}", style="dim"))
    for line in found.not_covered:
        console.print(text.plain(f"not covered: {line}"))
    for line in found.operator:
        console.print(text.plain(f"the organisation adds: {line}"))
    if not found.devices:
        console.print(text.plain("there is no device: nothing is answered", "bold red"))
        return
    style = "bold red" if found.exit_code else "bold green"
    total = len(found.devices)
    more = f"; of the fleet {len(found.missing)} things are missing" if found.missing else ""
    told = f"{found.answered} of {total} devices have a valid answer{more}"
    console.print(text.plain(told, style))


def _table(found: ComplianceReport) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("node", "device", "state", "answer"):
        table.add_column(column, no_wrap=True)
    for column in ("certificates", "verified", "answering", "covered / total"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("last wipe", "certificate", "verification"):
        table.add_column(column, no_wrap=True)
    for device in found.devices:
        last = device.last
        size = f"{text.size(last.covered_bytes)} / {text.size(last.total_bytes)}" if last else "-"
        label = " (simulated)" if device.simulated else ""
        table.add_row(
            device.node,
            device.device + label,
            device.state or "-",
            "yes" if device.answered else "NO",
            str(device.certificates),
            str(device.verified),
            str(device.answering),
            size,
            last.issued_at[:19].replace("T", " ") if last else "-",
            text.digest(last.certificate) if last else "-",
            last.verification.partition(":")[0] if last else "-",
        )
    return table


def _explain(console: Console, device: DeviceAnswer) -> None:
    place = f"{device.node}/{device.device}"
    for missing in device.missing:
        _tell(console, place, missing)
    for figure, values in device.figures.items():
        console.print(text.joined((f"  {place}: ", "dim"), f"{figure} = {_shown(values)}"))


def _tell(console: Console, place: str, missing: Missing) -> None:
    about = f" (certificate {text.digest(missing.certificate)})" if missing.certificate else ""
    where = f" at {missing.place}" if missing.place else ""
    console.print(text.joined((f"  {place}: ", "bold red"), f"{missing.what}{about}{where}"))
    console.print(text.plain(f"      do: {missing.remedy}"))


def _shown(values: list[Any]) -> str:
    told = list(dict.fromkeys(_word(value) for value in values))
    more = f", and {len(told) - _MOST_VALUES} more" if len(told) > _MOST_VALUES else ""
    return (", ".join(told[:_MOST_VALUES]) or "-") + more


def _word(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, dict):
        return ", ".join(f"{name}={_word(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        return "; ".join(_word(each) for each in value) or "none"
    return str(value) or '""'
