"""The stores in one SQLite file: durable, for many processes of one host.

More than one host with SQLite is a settings error: the file carries the identity of its host, and
another host is refused until an operator moves the store there with `fleet store adopt`.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.core.leases import AcquireRequest, is_expired
from fleet.core.model import Holder, Lease, Token, UnitId
from fleet.core.sqlite import Database, Row, Schema, open_database
from fleet.stores import decisions, sqlite_rows
from fleet.stores.base import HISTORY_KEPT, Event, HistoryEntry, Release, Renewal
from fleet.stores.observation import Observation
from fleet.stores.sqlite_runs import SqliteRunStore, check_host

TIMEOUT_S = 10.0
"""How long a call waits for other processes: hundreds of durable commits."""

SCHEMA = Schema(
    application_id=0x666C5354,  # "flST"
    steps=(
        """
CREATE TABLE head (
  only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
  epoch INTEGER NOT NULL,
  counter INTEGER NOT NULL,
  host TEXT NOT NULL,
  adopted INTEGER NOT NULL DEFAULT 0,
  suspended TEXT
) STRICT;
CREATE TABLE lease (
  unit TEXT PRIMARY KEY,
  holder TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  counter INTEGER NOT NULL,
  expires_at REAL
) STRICT, WITHOUT ROWID;
CREATE INDEX lease_by_holder ON lease (holder, epoch, counter);
CREATE TABLE history (
  id INTEGER PRIMARY KEY,
  at REAL NOT NULL,
  event TEXT NOT NULL,
  holder TEXT NOT NULL,
  token TEXT NOT NULL,
  units TEXT NOT NULL,
  detail TEXT NOT NULL
) STRICT;
CREATE TABLE run (
  id TEXT PRIMARY KEY,
  state TEXT NOT NULL,
  started_at REAL NOT NULL,
  finished_at REAL,
  exit_reason TEXT NOT NULL DEFAULT '',
  body TEXT NOT NULL
) STRICT;
CREATE INDEX run_by_start ON run (started_at, id);
CREATE TABLE result (
  sequence INTEGER PRIMARY KEY,
  run TEXT NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  device TEXT NOT NULL,
  key TEXT NOT NULL,
  body TEXT NOT NULL,
  UNIQUE (run, device, key)
) STRICT;
""",
        """
ALTER TABLE lease ADD COLUMN lasts_s REAL;
ALTER TABLE lease ADD COLUMN mark TEXT;
""",
    ),
)
"""`lease` has one row for each unit; rows of one holder and token are one lease. What ends one with
a ttl is `lasts_s`, seen unchanged under its `mark` (`fleet.stores.observation`); `expires_at` is
for people. `head` has the
last token issued, which only ever grows, and the floor that suspended the store, if any."""


@dataclass(frozen=True, slots=True)
class Stores:
    """Both stores of one file."""

    leases: SqliteLeaseStore
    runs: SqliteRunStore
    database: Database

    @property
    def initialised(self) -> bool:
        """Whether the store has an epoch."""
        return bool(self.database.query("SELECT 1 FROM head"))

    def close(self) -> None:
        """Close the file."""
        self.database.close()


def open_stores(
    path: Path,
    *,
    clock: Clock,
    timeout_s: float = TIMEOUT_S,
    host: str | None = None,
    boot: str = "",
) -> Stores:
    """Open, or make, the store file at `path`; a new one grants nothing before `init`.

    `host` is who we are (`host_identity` by default). `boot`: the boot id, where `clock` is the
    machine's own; see `fleet.stores.observation`. Raises as `fleet.core.sqlite.open_database`.
    """
    database = open_database(path, schema=SCHEMA, timeout_s=timeout_s)
    ours = host or host_identity()
    return Stores(
        SqliteLeaseStore(database, clock, host=ours, boot=boot),
        SqliteRunStore(database, clock, host=ours),
        database,
    )


def store_path(state: Path) -> Path:
    """The store's file in a state directory."""
    return state / "coordinator" / "store.db"


def host_identity() -> str:
    """The machine id, or the host name where there is none."""
    try:
        machine = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    return machine or socket.gethostname()


class SqliteLeaseStore:
    """Leases in SQLite; see `fleet.stores.base.LeaseStore`."""

    def __init__(self, database: Database, clock: Clock, *, host: str, boot: str = "") -> None:
        """`host` is recorded by `init` and compared ever after; `boot` as of `open_stores`."""
        self._observed = Observation(clock, boot)
        self._database = database
        self._clock = clock
        self._host = host

    def init(self) -> Token:
        """Mint the epoch, once."""
        with self._database.transaction():
            if not self._database.query("SELECT 1 FROM head"):
                now = self._clock.now()
                token = Token(decisions.mint_epoch(now, secrets.randbits(10), 0), 0)
                self._database.execute(
                    "INSERT INTO head (only_row, epoch, counter, host) VALUES (1, ?, ?, ?)",
                    (token.epoch, token.counter, self._host),
                )
                self._record([decisions.entry(Event.INITIALISED, now, token=token)])
            return self._head().newest

    def adopt(self, at_least: Token, operator: str) -> Token:
        """Mint a newer epoch, take the store to this host, and grant again."""
        with self._database.transaction():
            old, _ = self._read_head()
            now = self._clock.now()
            new, before = decisions.adopt(old, at_least, now, secrets.randbits(10))
            token = new.newest
            self._advance(old.newest, token)
            self._database.execute(
                "UPDATE head SET host = ?, adopted = ?, suspended = NULL",
                (self._host, new.adopted),
            )
            detail = decisions.adoption(operator, before)
            self._record([decisions.entry(Event.ADOPTED, now, token=token, detail=detail)])
            return token

    def reinstate(self, leases: Sequence[Lease]) -> list[bool | errors.FleetError]:
        """Take in leases of claims that nodes have in their records."""
        with self._database.transaction():
            head, now = self._head(), self._clock.now()
            answers: list[bool | errors.FleetError] = []
            for lease in leases:
                put = decisions.reinstate(lease, self._rows(lease.units), head, now)
                if isinstance(put, Lease):
                    self._put(put, now)
                    self._record([decisions.reinstated(put, now)])
                answers.append(put if isinstance(put, errors.FleetError) else put is not None)
            return answers

    def newest(self) -> Token:
        """The epoch and the last counter issued."""
        return self._head().newest

    def suspended(self) -> Token | None:
        """The floor by which the store was found behind."""
        return self._head().suspended

    def learn(self, floor: Token) -> None:
        """Compare with a node's floor. Writes only when it must suspend."""
        head = self._head()
        suspended = head.suspended
        if suspended is None and decisions.find_behind([floor], head.newest) is not None:
            with self._database.transaction():
                head = self._head()
                suspended = self._behind([floor], head)
        if suspended is not None:
            raise decisions.behind(head.newest, suspended)
        head.check(floor)

    def acquire(
        self, requests: Sequence[AcquireRequest], *, out_of_service_max: int | None = None
    ) -> list[Lease | errors.FleetError]:
        """Grant each request, or say why not."""
        with self._database.transaction():
            start = head = self._head()
            floor = self._behind([request.min_token for request in requests], head)
            if floor is not None:
                return [decisions.behind(head.newest, floor) for _ in requests]
            now = self._clock.now()
            budget = None
            if out_of_service_max is not None:
                budget = decisions.Budget(self._budgeted(), out_of_service_max, now)
            answers: list[Lease | errors.FleetError] = []
            entries: list[HistoryEntry] = []
            for request in requests:
                current = self._rows(request.units)
                grant = decisions.decide(request, current, head, now)
                if isinstance(grant, errors.FleetError):
                    answers.append(grant)
                    continue
                if budget is not None and (refusal := budget.admit(grant.lease)) is not None:
                    answers.append(refusal)
                    continue
                self._put(grant.lease, now)
                answers.append(grant.lease)
                if not grant.same:
                    head = replace(head, newest=grant.lease.token)
                    entries += decisions.granted(grant, now)
            self._advance(start.newest, head.newest)
            self._record(entries)
            return answers

    def renew(self, renewals: Sequence[Renewal]) -> list[Lease | errors.FleetError]:
        """Prolong leases."""
        with self._database.transaction():
            self._head()
            now = self._clock.now()
            answers = []
            for renewal in renewals:
                held = self._held(renewal.holder, renewal.token)
                answer = decisions.prolong(renewal, held, now)
                if isinstance(answer, Lease):
                    self._put(answer, now)
                answers.append(answer)
            return answers

    def release(self, releases: Sequence[Release]) -> list[bool | errors.FleetError]:
        """Give leases back; whether anything was held."""
        with self._database.transaction():
            self._head()
            now = self._clock.now()
            answers: list[bool | errors.FleetError] = []
            entries: list[HistoryEntry] = []
            for release in releases:
                held = self._held(release.holder, release.token)
                refusal = decisions.check_release(release, held)
                if refusal is not None:
                    answers.append(refusal)
                    continue
                removed = self._database.execute(
                    "DELETE FROM lease WHERE holder = ? AND epoch = ? AND counter = ?",
                    (str(release.holder), release.token.epoch, release.token.counter),
                )
                answers.append(removed > 0)
                entries += decisions.released(release, held, now)
            self._record(entries)
            return answers

    def holder(self, unit: UnitId) -> Lease | None:
        """The lease in force on `unit`, with all its units."""
        self._head()
        row = self._rows([unit]).get(unit)
        if row is None or is_expired(row, self._clock.now()):
            return None
        return next(iter(decisions.gathered(self._held(row.holder, row.token))), None)

    def held_by(self, holders: Collection[Holder], *, lapsed: bool = False) -> list[Lease]:
        """The leases in force of these holders, by token."""
        self._head()
        rows = self._database.query(
            "SELECT * FROM lease WHERE holder IN (SELECT value FROM json_each(?))",
            (json.dumps(sorted({str(holder) for holder in holders})),),
        )
        return decisions.gathered(map(self._lease, rows)) if lapsed else self._in_force(rows)

    def leases(self, holder: Holder | None = None) -> list[Lease]:
        """The leases in force, by token."""
        self._head()
        rows = self._database.query(
            "SELECT * FROM lease WHERE ?1 IS NULL OR holder = ?1",
            (None if holder is None else str(holder),),
        )
        return self._in_force(rows)

    def _in_force(self, rows: Iterable[Row]) -> list[Lease]:
        now = self._clock.now()
        leases = map(self._lease, rows)
        return decisions.gathered(row for row in leases if not is_expired(row, now))

    def _lease(self, row: Row) -> Lease:
        return self._observed.seen(*sqlite_rows.lease(row, self._database.path))

    def history(self, limit: int) -> list[HistoryEntry]:
        """The newest entries first."""
        self._head()
        rows = self._database.query(
            "SELECT at, event, holder, token, units, detail FROM history ORDER BY id DESC LIMIT ?",
            (limit,),
        )
        return [sqlite_rows.entry(row, self._database.path) for row in rows]

    def _head(self) -> decisions.Head:
        head, host = self._read_head()
        check_host(self._database, recorded=host, ours=self._host)
        return head

    def _read_head(self) -> tuple[decisions.Head, str]:
        self._database.check_place()  # also of who only reads: what is there now decides
        rows = self._database.query("SELECT epoch, counter, adopted, suspended, host FROM head")
        if not rows:
            raise decisions.uninitialised()
        return sqlite_rows.head(rows[0], self._database.path)

    def _behind(self, floors: Iterable[Token | None], head: decisions.Head) -> Token | None:
        if head.suspended is not None:
            return head.suspended
        floor = decisions.find_behind(floors, head.newest)
        if floor is not None:
            self._database.execute("UPDATE head SET suspended = ?", (str(floor),))
            now, detail = self._clock.now(), decisions.suspension(floor)
            self._record([decisions.entry(Event.SUSPENDED, now, token=head.newest, detail=detail)])
        return floor

    def _advance(self, newest: Token, to: Token) -> None:
        if to == newest:
            return
        changed = self._database.execute(
            "UPDATE head SET epoch = ?, counter = ? WHERE epoch = ? AND counter = ?",
            (to.epoch, to.counter, newest.epoch, newest.counter),
        )
        if changed != 1:
            raise errors.StoreUnavailable(f"the store moved on from {newest} by itself")

    def _rows(self, units: Iterable[UnitId]) -> dict[UnitId, Lease]:
        rows = self._database.query(
            "SELECT * FROM lease WHERE unit IN (SELECT value FROM json_each(?))",
            (json.dumps(sorted(units)),),
        )
        return {UnitId(row["unit"]): self._lease(row) for row in rows}

    def _held(self, holder: Holder, token: Token) -> list[Lease]:
        rows = self._database.query(
            "SELECT * FROM lease WHERE holder = ? AND epoch = ? AND counter = ?",
            (str(holder), token.epoch, token.counter),
        )
        return [self._lease(row) for row in rows]

    def _budgeted(self) -> list[Lease]:
        asked = "SELECT * FROM lease WHERE holder >= ? AND holder < ?"
        kinds = [(f"{kind}:", f"{kind};") for kind in sorted(decisions.BUDGETED)]
        return [self._lease(row) for kind in kinds for row in self._database.query(asked, kind)]

    def _put(self, lease: Lease, now: float) -> None:
        term = self._observed.give(lease, now)
        given = (term.lasts_s, term.mark) if term is not None else (None, None)
        token = (lease.token.epoch, lease.token.counter)
        end = (str(lease.holder), *token, lease.expires_at, *given)
        self._database.execute_many(
            "INSERT OR REPLACE INTO lease VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(unit, *end) for unit in sorted(lease.units)],
        )

    def _record(self, entries: Sequence[HistoryEntry]) -> None:
        if not entries:
            return
        self._database.execute_many(
            "INSERT INTO history (at, event, holder, token, units, detail)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            [
                (one.at, one.event, one.holder, str(one.token), json.dumps(one.units), one.detail)
                for one in entries
            ],
        )
        self._database.execute(
            "DELETE FROM history WHERE id <= (SELECT max(id) FROM history) - ?", (HISTORY_KEPT,)
        )
