"""`fleet runs`: campaign runs, from the store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

import typer
from rich.console import Console

from fleet.cli import reach, text
from fleet.cli.options import AddressOption, StateOption, state_directory
from fleet.cli.output import AsJson, VerbAnswer, emit
from fleet.core.model import RunId
from fleet.stores.base import RunRecord, RunState


class RunsAnswer(VerbAnswer):
    """Campaign runs, newest first."""

    kind: Literal["runs"] = "runs"
    simulated: bool
    runs: tuple[RunRecord, ...]


class RunAnswer(RunRecord, VerbAnswer):
    """One campaign run with its results."""

    kind: Literal["run"] = "run"


def runs(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Show this run with its results.")
    ] = None,
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Runs to list.")] = 20,
    state: StateOption = None,
    address: AddressOption = None,
    as_json: AsJson = False,
) -> None:
    """Newest first; with RUN its results. Exit code 0."""
    with reach.coordinator(state_directory(state), address=address) as coordinator:
        if run is not None:
            record = coordinator.run(RunId(run))
            emit(
                RunAnswer.of(record),
                as_json=as_json,
                render=lambda console: _show(console, record),
            )
            return
        records = coordinator.runs(limit)
    simulated = any(record.simulated for record in records)
    answer = RunsAnswer(simulated=simulated, runs=tuple(records))
    emit(answer, as_json=as_json, render=lambda console: _list(console, records))


def _list(console: Console, records: Sequence[RunRecord]) -> None:
    if not records:
        console.print("no run is on record")
        return
    text.warn(console, simulated=any(record.simulated for record in records))
    mixed = len({record.simulated for record in records}) > 1
    table = text.table()
    for column in ("run", "started (UTC)", "state", "results", "why it ended"):
        table.add_column(column)
    for record in records:
        table.add_row(
            record.id + _devices(record) * mixed,
            _moment(record.started_at),
            str(record.state),
            _outcomes(record),
            record.exit_reason or "-",
        )
    console.print(table)


def _show(console: Console, record: RunRecord) -> None:
    text.warn(console, simulated=record.simulated)
    console.print(
        text.plain(
            f"run {record.id}: {record.state}, started {_moment(record.started_at)} UTC;"
            f" {_outcomes(record)}"
        )
    )
    table = text.table()
    for column in ("node", "device", "outcome", "state", "covered", "certificate"):
        table.add_column(column)
    for result in sorted(record.results.values(), key=lambda one: (one.node, one.device)):
        table.add_row(
            result.node,
            result.device,
            text.coloured(result.outcome),
            text.coloured(result.state),
            text.size(result.bytes.covered),
            text.digest(result.certificate),
        )
    console.print(table)
    if record.state is not RunState.FINISHED:
        console.print(f"go on with: fleet scrub --resume {record.id}")


def _devices(record: RunRecord) -> str:
    return " (simulated)" if record.simulated else " (real)"


def _outcomes(record: RunRecord) -> str:
    counts = Counter(str(result.outcome) for result in record.results.values())
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "none"


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))
