"""Rows of the SQLite store as what they stand for, read strictly.

Whoever may open the file may change a row. One that makes no sense is an error that names it: it is
never passed over, for a lease that was passed over would be granted to somebody else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fleet.core import sqlite
from fleet.core.messages import DeviceResult
from fleet.core.model import Holder, Lease, Token, UnitId
from fleet.core.sqlite import Row
from fleet.stores import decisions
from fleet.stores.base import Event, HistoryEntry, RunRecord, RunState
from fleet.stores.observation import Term

REMEDY = (
    "put the file's last good copy back and run `fleet store adopt`; without one move it away, run"
    " `fleet store init`, then `fleet store adopt`"
)


@contextmanager
def understood(path: Path, what: str) -> Iterator[None]:
    """What cannot be read inside is `Corrupt`, naming `what`."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise sqlite.Corrupt(
            f"{what} in {path} cannot be understood: {error}", remedy=REMEDY, path=str(path)
        ) from error


def head(row: Row, path: Path) -> tuple[decisions.Head, str]:
    """The store as a whole, and its host. Raises `sqlite.Corrupt`."""
    with understood(path, "the head"):
        epoch, counter, adopted, suspended, host = row
        floor = None if suspended is None else Token.parse(suspended)
        if adopted < 0:
            raise ValueError(f"{adopted} is no epoch")
        return decisions.Head(_token(epoch, counter), adopted, floor), host


def lease(row: Row, path: Path) -> tuple[Lease, Term | None]:
    """A lease on one unit as it is stored. Raises `sqlite.Corrupt`."""
    unit, holder, epoch, counter, expires_at, lasts_s, mark = row
    with understood(path, f"the lease on {unit!r}"):
        held = Holder.parse(holder)
        term = None if lasts_s is None or mark is None else Term(lasts_s, mark)
        return Lease(frozenset({UnitId(unit)}), held, _token(epoch, counter), expires_at), term


def entry(row: Row, path: Path) -> HistoryEntry:
    """One thing that happened. Raises `sqlite.Corrupt`."""
    with understood(path, "the history"):
        return HistoryEntry(
            row["at"],
            Event(row["event"]),
            row["holder"],
            Token.parse(row["token"]),
            tuple(UnitId(unit) for unit in json.loads(row["units"])),
            row["detail"],
        )


def state(text: str, run: str, path: Path) -> RunState:
    """Where a run stands. Raises `sqlite.Corrupt`."""
    with understood(path, f"run {run}"):
        return RunState(text)


def record(row: Row, results: Mapping[str, str], path: Path) -> RunRecord:
    """A run with the newest result of each device. Raises `sqlite.Corrupt`."""
    with understood(path, f"run {row['id']}"):
        return RunRecord.model_validate_json(row["body"]).model_copy(
            update={
                "state": RunState(row["state"]),
                "finished_at": row["finished_at"],
                "exit_reason": row["exit_reason"],
                "results": {
                    device: DeviceResult.model_validate_json(body)
                    for device, body in results.items()
                },
            }
        )


def _token(epoch: int, counter: int) -> Token:
    if epoch < 0 or counter < 0:
        raise ValueError(f"{epoch}.{counter} is no token")
    return Token(epoch, counter)
