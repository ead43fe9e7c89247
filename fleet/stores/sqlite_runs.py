"""Campaign runs in the same SQLite file as the leases; the schema is in `fleet.stores.sqlite`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.core.messages import DeviceResult
from fleet.core.model import RunId
from fleet.core.sqlite import Database, Row
from fleet.stores import decisions, sqlite_rows
from fleet.stores.base import RUNS_KEPT, RunRecord, RunState


def check_host(database: Database, *, recorded: str, ours: str) -> None:
    """Raises `SettingsInvalid` when the file belongs to another host."""
    if recorded != ours:
        raise errors.SettingsInvalid(
            f"the store {database.path} belongs to host {recorded}, this is {ours}",
            remedy="SQLite is for one host: choose a store for clusters, or, if the file was moved"
            " here for good, run `fleet store adopt`",
        )


class SqliteRunStore:
    """Runs in SQLite; see `fleet.stores.base.RunStore`."""

    def __init__(self, database: Database, clock: Clock, *, host: str) -> None:
        """`clock` dates the end of a run; only the store's own `host` may write."""
        self._database = database
        self._clock = clock
        self._host = host

    def create(self, record: RunRecord) -> RunRecord:
        """Store a new run."""
        decisions.check_fresh(record)
        with self._writing():
            added = self._database.execute(
                "INSERT INTO run (id, state, started_at, body) VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                (record.id, record.state, record.started_at, record.model_dump_json()),
            )
            stored = self._get(RunId(record.id))
            if not added and not decisions.is_same_run(stored, record):
                raise decisions.taken(record.id)
            self._database.execute(
                "DELETE FROM run WHERE id IN (SELECT id FROM run WHERE state = ?"
                " ORDER BY started_at DESC, id DESC LIMIT -1 OFFSET ?)",
                (RunState.FINISHED, RUNS_KEPT),
            )
            return stored

    def append(self, run: RunId, results: Sequence[DeviceResult]) -> int:
        """Store results; returns how many were new."""
        with self._writing():
            state = self.state(run)
            added = self._database.execute_many(
                "INSERT INTO result (run, device, key, body) VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                [
                    (run, result.uuid, decisions.result_key(result), result.model_dump_json())
                    for result in results
                ],
            )
            if added > 0:
                decisions.check_open(run, state)
            return max(added, 0)

    def finish(self, run: RunId, state: RunState, exit_reason: str) -> RunRecord:
        """End a run as STOPPED or FINISHED."""
        with self._writing():
            decisions.check_finish(run, self.state(run), state)
            self._database.execute(
                "UPDATE run SET state = ?1, finished_at = ?2, exit_reason = ?3"
                " WHERE id = ?4 AND state <> ?1",
                (state, self._clock.now(), exit_reason, run),
            )
            return self._get(run)

    def resume(self, run: RunId) -> RunRecord:
        """Set an unfinished run RUNNING again."""
        with self._writing():
            decisions.check_open(run, self.state(run))
            self._database.execute(
                "UPDATE run SET state = ?, finished_at = NULL, exit_reason = '' WHERE id = ?",
                (RunState.RUNNING, run),
            )
            return self._get(run)

    def state(self, run: RunId) -> RunState:
        """The state alone."""
        rows = self._database.query("SELECT state FROM run WHERE id = ?", (run,))
        if not rows:
            raise decisions.unknown(run)
        return sqlite_rows.state(rows[0]["state"], run, self._database.path)

    def get(self, run: RunId) -> RunRecord:
        """The run with all its results."""
        return self._get(run)

    def runs(self, limit: int) -> list[RunRecord]:
        """The newest runs first."""
        rows = self._database.query(
            "SELECT * FROM run ORDER BY started_at DESC, id DESC LIMIT ?", (limit,)
        )
        return [self._record(row) for row in rows]

    def open_runs(self) -> list[RunId]:
        """Ids of all runs that are RUNNING or STOPPED, oldest first."""
        return [RunId(row["id"]) for row in self._unfinished()]

    def unfinished(self) -> list[RunRecord]:
        """All runs that are RUNNING or STOPPED, oldest first."""
        return [self._record(row) for row in self._unfinished()]

    def _unfinished(self) -> list[Row]:
        return self._database.query(
            "SELECT * FROM run WHERE state <> ? ORDER BY started_at, id", (RunState.FINISHED,)
        )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._database.transaction():
            for row in self._database.query("SELECT host FROM head"):
                check_host(self._database, recorded=row["host"], ours=self._host)
            yield

    def _get(self, run: RunId) -> RunRecord:
        rows = self._database.query("SELECT * FROM run WHERE id = ?", (run,))
        if not rows:
            raise decisions.unknown(run)
        return self._record(rows[0])

    def _record(self, row: Row) -> RunRecord:
        # The last attempt of a device overrides the earlier ones.
        rows = self._database.query(
            "SELECT device, body FROM result WHERE run = ? ORDER BY sequence", (row["id"],)
        )
        newest = {one["device"]: one["body"] for one in rows}
        return sqlite_rows.record(row, newest, self._database.path)
