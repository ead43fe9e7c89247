"""`fleet report RUN`: the record from the store, evidence from where it is, a page or a table."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from fleet.cli import reach, text
from fleet.cli.evidence import open_evidence
from fleet.cli.options import state_directory
from fleet.cli.output import VerbAnswer, emit, fields_of
from fleet.cli.pages import markup
from fleet.cli.pages import run as pages_run
from fleet.cli.pages.run_figures import Read, Row, RunFigures, figures, standing
from fleet.control.campaign.verdict import COVERED, Verdict
from fleet.core import errors
from fleet.core.messages import DeviceResult, Moment, MomentOrNone
from fleet.core.model import RunId
from fleet.evidence.findings import Demand
from fleet.evidence.judged import judge
from fleet.evidence.keys import KeyRing
from fleet.evidence.sources import Trust
from fleet.stores.base import RunState


@dataclass(frozen=True, slots=True)
class Place:
    """Where the run and its evidence are, as the options say."""

    state: Path | None
    address: str | None
    directory: Path | None
    keys: Trust | None
    coordinator_keys: KeyRing | None


def tell(run: str, place: Place, *, html: Path | None, as_json: bool) -> int:
    """Write or print the report of `run`; the exit code.

    Raises `RunUnknown`, what the store raises, and `InputInvalid` where a directory named holds no
    evidence. Without one named, evidence that is not here is said so on the page.
    """
    with reach.coordinator(state_directory(place.state), address=place.address) as coordinator:
        record = coordinator.run(RunId(run))
    found = figures(record, _read(place), now=time.time())
    size = None if html is None else markup.put(html, pages_run.render(found))
    if html is not None and str(html) == markup.STDOUT:
        return found.exit_code
    answer = _answer(found, file="" if html is None else str(html), size=size)
    emit(answer, as_json=as_json, render=lambda console: _show(console, found, html))
    return found.exit_code


def _read(place: Place) -> Read:
    if place.address is not None and place.directory is None:
        return Read(why="the nodes are behind Ray; name an export of theirs with --directory")
    try:
        collection = open_evidence(place.state, place.directory, place.keys, place.coordinator_keys)
    except errors.InputInvalid as error:
        if place.directory is not None:
            raise
        return Read(why=error.detail)
    judged = judge(collection, Demand(now=time.time()))
    where = place.directory if place.directory is not None else state_directory(place.state)
    return Read(judged, str(where), notes=tuple(judged.report.notes))


class ResultRow(DeviceResult):
    """What became of a device, and what the evidence says of it."""

    verdict: Verdict
    verified: bool | None
    """Whether its certificate was verified; null: it names none, or no evidence was read."""
    wrong: tuple[str, ...]
    """What is wrong with its certificate."""


class RunReportAnswer(VerbAnswer):
    """One campaign run, held against the evidence."""

    kind: Literal["report run"] = "report run"
    run: str
    simulated: bool
    state: RunState
    exit_reason: str
    exit_code: int
    started_at: Moment
    finished_at: MomentOrNone
    verdicts: dict[Verdict, int]
    covered: int
    """Devices that are covered."""
    unproven: tuple[str, ...] | None
    """Devices called covered whose certificate was not verified; null: no evidence was read."""
    evidence: str
    """Where evidence was read; "": nowhere."""
    devices: tuple[ResultRow, ...]
    file: str = ""
    """The page that was written."""
    bytes: int | None = None


def _answer(found: RunFigures, *, file: str, size: int | None) -> RunReportAnswer:
    record = found.record
    return RunReportAnswer(
        run=record.id,
        simulated=record.simulated,
        state=record.state,
        exit_reason=record.exit_reason,
        exit_code=found.exit_code,
        started_at=record.started_at,
        finished_at=record.finished_at,
        verdicts=dict(found.counts),
        covered=found.covered,
        unproven=tuple(row.place for row in found.unproven) if found.evidence else None,
        evidence=found.evidence,
        devices=tuple(_row(row) for row in found.rows),
        file=file,
        bytes=size,
    )


def _row(row: Row) -> ResultRow:
    proof = row.proof
    return ResultRow(
        **fields_of(row.result),
        verdict=row.verdict,
        verified=None if proof is None else proof.sound,
        wrong=() if proof is None else tuple(proof.wrong),
    )


def _show(console: Console, found: RunFigures, html: Path | None) -> None:
    record = found.record
    text.warn(console, simulated=record.simulated)
    console.print(text.plain(f"run {record.id}: {standing(record)}"))
    table = text.table()
    for column in ("verdict", "devices", "of them proven"):
        table.add_column(column)
    for word, count in found.counts.items():
        proven = sum(
            row.verdict is word and row.proof is not None and row.proof.sound for row in found.rows
        )
        table.add_row(str(word), str(count), str(proven) if word in COVERED else "-")
    console.print(table)
    for gap in found.gaps:
        named = ", ".join(row.place for row in gap.rows[: pages_run.NAMED_MAX])
        more = len(gap.rows) - pages_run.NAMED_MAX
        others = f" and {more} more" if more > 0 else ""
        console.print(text.plain(f"  {gap.verdict}: {gap.check or gap.outcome}: {gap.detail}"))
        console.print(text.plain(f"      {named}{others}"))
        if gap.remedy:
            console.print(text.plain(f"      do: {gap.remedy}"))
    if found.unread:
        console.print(text.plain(f"no evidence was read: {found.unread}", "yellow"))
    for row in found.unproven if found.evidence else ():
        why = "; ".join(row.proof.wrong) if row.proof else "it names no certificate"
        console.print(text.plain(f"  not proven: {row.place}: {why}", "red"))
    if html is not None:
        console.print(text.plain(f"page written to {html}"))
