"""`fleet evidence losses` and `admin-access`: claims that ended with a device out of service, and
claims that looked into devices, as nodes signed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from fleet.cli import text
from fleet.cli.options import StateOption, state_directory
from fleet.cli.output import AsJson, VerbAnswer, emit
from fleet.core import errors
from fleet.evidence import layout, losses


class LossesAnswer(VerbAnswer):
    """Data-loss records, as they were signed."""

    kind: Literal["evidence losses"] = "evidence losses"
    losses: tuple[dict[str, Any], ...]
    """Statements of the predicate that docs/compliance.md describes, each with its digest."""


class AdminAccessAnswer(VerbAnswer):
    """Records of claims that looked into devices of others, as they were signed."""

    kind: Literal["evidence admin-access"] = "evidence admin-access"
    looks: tuple[dict[str, Any], ...]


def list_losses(
    claim: Annotated[
        str, typer.Option("--claim", metavar="UID", help="Only of this claim.", show_default=False)
    ] = "",
    node: Annotated[
        str, typer.Option("--node", metavar="NODE", help="Only this node.", show_default=False)
    ] = "",
    state: StateOption = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List data-loss records: claims after which a device was not proven clean.

    Signatures are judged by `fleet evidence verify`, here they are not.
    """
    found = [one for one in _records(state_directory(state), node, claim) if not one.looked]
    rows = [{**one.envelope.predicate, "digest": one.digest} for one in found]
    emit(LossesAnswer(losses=tuple(rows)), as_json=as_json, render=partial(_render, rows))


def list_looks(
    claim: Annotated[
        str, typer.Option("--claim", metavar="UID", help="Only of this claim.", show_default=False)
    ] = "",
    node: Annotated[
        str, typer.Option("--node", metavar="NODE", help="Only this node.", show_default=False)
    ] = "",
    state: StateOption = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List claims that looked into devices of others with adminAccess.

    Each was recorded before its containers could start. Signatures are judged by `fleet evidence
    verify`, here they are not.
    """
    found = [one for one in _records(state_directory(state), node, claim) if one.looked]
    rows = [{**one.envelope.predicate, "digest": one.digest} for one in found]
    emit(AdminAccessAnswer(looks=tuple(rows)), as_json=as_json, render=partial(_render_looks, rows))


def _render_looks(rows: list[dict[str, Any]], console: Console) -> None:
    if not rows:
        console.print("no claim looked into a device")
        return
    table = text.table("recorded", "node", "claim", "device", "given")
    for row in rows:
        given = "read-only" if row["read_only"] else "for reading and writing"
        for device in row["devices"]:
            mark = "SIMULATED " if row["simulated"] else ""
            cells = (row["recorded_at"], row["node"], _named(row), mark + device["uuid"], given)
            table.add_row(*(Text(str(cell), overflow="fold") for cell in cells))
    console.print(table)


def _named(row: dict[str, Any]) -> str:
    return f"{row['claim']['namespace']}/{row['claim']['name']} {row['claim']['uid']}"


def _records(state: Path, node: str, claim: str) -> Iterator[losses.Record]:
    names = layout.nodes(state)
    if node and node not in names:
        raise errors.InputInvalid(
            f"there is no node {node} in {state}",
            remedy=f"name one of {', '.join(names) or 'none'}, or another --state",
        )
    for name in names:
        for found in losses.LossLog(layout.losses_directory(state, name)).records():
            if (not node or name == node) and (not claim or found.claim == claim):
                yield found


def _render(rows: list[dict[str, Any]], console: Console) -> None:
    if not rows:
        console.print("no data-loss records")
        return
    table = text.table("recorded", "node", "claim", "device", "reasons")
    for row in rows:
        for device in row["devices"]:
            mark = "SIMULATED " if row["simulated"] else ""
            codes = ", ".join(reason["code"] for reason in device["reasons"]) or "not known"
            cells = (row["recorded_at"], row["node"], _named(row), mark + device["uuid"], codes)
            table.add_row(*(Text(str(cell), overflow="fold") for cell in cells))
    console.print(table)
