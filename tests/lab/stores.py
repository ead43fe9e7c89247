"""The stores of leases and runs in memory: for one process that keeps nothing.

They obey the same contract suites as the durable ones and share every decision with them.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.core.leases import AcquireRequest, is_expired
from fleet.core.messages import DeviceResult
from fleet.core.model import Holder, Lease, RunId, Token, UnitId
from fleet.stores import decisions
from fleet.stores.base import (
    HISTORY_KEPT,
    RUNS_KEPT,
    Event,
    HistoryEntry,
    Release,
    Renewal,
    RunRecord,
    RunState,
)
from fleet.stores.observation import Observation, Term


class MemoryLeaseStore:
    """Leases of one process; see `fleet.stores.base.LeaseStore`."""

    def __init__(self, clock: Clock) -> None:
        """What ends a lease with a ttl is `clock`'s monotonic reading."""
        self._clock = clock
        self._lock = threading.Lock()
        self._stored: decisions.Head | None = None
        self._rows: dict[UnitId, Lease] = {}
        self._terms: dict[UnitId, Term | None] = {}
        self._observed = Observation(clock)
        self._history: deque[HistoryEntry] = deque(maxlen=HISTORY_KEPT)

    def init(self) -> Token:
        """Mint the epoch, once."""
        with self._lock:
            if self._stored is None:
                now = self._clock.now()
                token = Token(decisions.mint_epoch(now, secrets.randbits(10), 0), 0)
                self._stored = decisions.Head(token)
                self._record(Event.INITIALISED, now, token=token)
            return self._stored.newest

    def adopt(self, at_least: Token, operator: str) -> Token:
        """Mint a newer epoch and grant again."""
        with self._lock:
            now = self._clock.now()
            self._stored, before = decisions.adopt(
                self._head(), at_least, now, secrets.randbits(10)
            )
            token, detail = self._stored.newest, decisions.adoption(operator, before)
            self._record(Event.ADOPTED, now, token=token, detail=detail)
            return token

    def reinstate(self, leases: Sequence[Lease]) -> list[bool | errors.FleetError]:
        """Take in leases of claims that nodes have in their records."""
        with self._lock:
            self._head()
            return [self._reinstate(lease, self._clock.now()) for lease in leases]

    def _reinstate(self, lease: Lease, now: float) -> bool | errors.FleetError:
        put = decisions.reinstate(lease, self._on(lease.units), self._head(), now)
        if not isinstance(put, Lease):
            return put or False
        self._put(put, now)
        self._history.append(decisions.reinstated(put, now))
        return True

    def newest(self) -> Token:
        """The epoch and the last counter issued."""
        with self._lock:
            return self._head().newest

    def suspended(self) -> Token | None:
        """The floor by which the store was found behind."""
        with self._lock:
            return self._head().suspended

    def learn(self, floor: Token) -> None:
        """Compare with a node's floor."""
        with self._lock:
            newest = self._head().newest
            if (worst := self._behind([floor])) is not None:
                raise decisions.behind(newest, worst)
            self._head().check(floor)

    def acquire(
        self, requests: Sequence[AcquireRequest], *, out_of_service_max: int | None = None
    ) -> list[Lease | errors.FleetError]:
        """Grant each request, or say why not."""
        with self._lock:
            newest = self._head().newest
            floor = self._behind([request.min_token for request in requests])
            if floor is not None:
                return [decisions.behind(newest, floor) for _ in requests]
            now = self._clock.now()
            budget = None
            if out_of_service_max is not None:
                budget = decisions.Budget(self._seen(), out_of_service_max, now)
            return [self._acquire(request, budget, now) for request in requests]

    def _acquire(
        self, request: AcquireRequest, budget: decisions.Budget | None, now: float
    ) -> Lease | errors.FleetError:
        head = self._head()
        grant = decisions.decide(request, self._on(request.units), head, now)
        if isinstance(grant, errors.FleetError):
            return grant
        if budget is not None and (refusal := budget.admit(grant.lease)) is not None:
            return refusal
        lease = grant.lease
        self._put(lease, now)
        if not grant.same:
            self._stored = replace(head, newest=lease.token)
            self._history.extend(decisions.granted(grant, now))
        return lease

    def renew(self, renewals: Sequence[Renewal]) -> list[Lease | errors.FleetError]:
        """Prolong leases."""
        with self._lock:
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
        with self._lock:
            self._head()
            return [self._release(release) for release in releases]

    def _release(self, release: Release) -> bool | errors.FleetError:
        held = self._held(release.holder, release.token)
        refusal = decisions.check_release(release, held)
        if refusal is not None:
            return refusal
        for row in held:
            for unit in row.units:
                del self._rows[unit]
        self._history.extend(decisions.released(release, held, self._clock.now()))
        return bool(held)

    def holder(self, unit: UnitId) -> Lease | None:
        """The lease in force on `unit`, with all its units."""
        with self._lock:
            self._head()
            row = self._on([unit]).get(unit)
            if row is None or is_expired(row, self._clock.now()):
                return None
            return decisions.gathered(self._held(row.holder, row.token))[0]

    def held_by(self, holders: Collection[Holder], *, lapsed: bool = False) -> list[Lease]:
        """The leases in force of these holders, by token."""
        wanted = frozenset(holders)
        with self._lock:
            self._head()
            mine = [row for row in self._seen() if row.holder in wanted]
            now = self._clock.now()
            return decisions.gathered(row for row in mine if lapsed or not is_expired(row, now))

    def leases(self, holder: Holder | None = None) -> list[Lease]:
        """The leases in force, by token."""
        with self._lock:
            self._head()
            now = self._clock.now()
            return decisions.gathered(
                row
                for row in self._seen()
                if not is_expired(row, now) and holder in (None, row.holder)
            )

    def history(self, limit: int) -> list[HistoryEntry]:
        """The newest entries first."""
        with self._lock:
            self._head()
            return list(reversed(self._history))[:limit]

    def _head(self) -> decisions.Head:
        if self._stored is None:
            raise decisions.uninitialised()
        return self._stored

    def _behind(self, floors: Iterable[Token | None]) -> Token | None:
        head = self._head()
        if head.suspended is not None:
            return head.suspended
        floor = decisions.find_behind(floors, head.newest)
        if floor is not None:
            self._stored = replace(head, suspended=floor)
            detail = decisions.suspension(floor)
            self._record(Event.SUSPENDED, self._clock.now(), token=head.newest, detail=detail)
        return floor

    def _held(self, holder: Holder, token: Token) -> list[Lease]:
        return [row for row in self._seen() if (row.holder, row.token) == (holder, token)]

    def _seen(self) -> list[Lease]:
        return list(self._on(self._rows).values())

    def _on(self, units: Iterable[UnitId]) -> dict[UnitId, Lease]:
        terms, rows = self._terms, self._rows
        return {one: self._observed.seen(rows[one], terms[one]) for one in units if one in rows}

    def _put(self, lease: Lease, now: float) -> None:
        term = self._observed.give(lease, now)
        for unit in lease.units:
            self._rows[unit], self._terms[unit] = replace(lease, units=frozenset({unit})), term

    def _record(self, event: Event, at: float, *, token: Token, detail: str = "") -> None:
        self._history.append(decisions.entry(event, at, token=token, detail=detail))


class MemoryRunStore:
    """Campaign runs of one process; see `fleet.stores.base.RunStore`."""

    def __init__(self, clock: Clock) -> None:
        """`clock` dates the end of a run."""
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[str, RunRecord] = {}
        self._keys: dict[str, set[tuple[str, str]]] = {}

    def create(self, record: RunRecord) -> RunRecord:
        """Store a new run."""
        decisions.check_fresh(record)
        with self._lock:
            stored = self._runs.get(record.id)
            if stored is not None:
                if decisions.is_same_run(stored, record):
                    return stored
                raise decisions.taken(record.id)
            self._runs[record.id] = record
            self._keys[record.id] = set()
            for old in self._ordered(RunState.FINISHED)[:-RUNS_KEPT]:
                del self._runs[old.id], self._keys[old.id]
            return record

    def append(self, run: RunId, results: Sequence[DeviceResult]) -> int:
        """Store results; returns how many were new."""
        with self._lock:
            record, keys = self._get(run), self._keys[run]
            fresh = {
                key: result
                for result in results
                if (key := (result.uuid, decisions.result_key(result))) not in keys
            }
            if not fresh:
                return 0
            decisions.check_open(run, record.state)
            newest = {result.uuid: result for result in fresh.values()}
            self._runs[run] = record.model_copy(update={"results": {**record.results, **newest}})
            keys.update(fresh)
            return len(fresh)

    def finish(self, run: RunId, state: RunState, exit_reason: str) -> RunRecord:
        """End a run as STOPPED or FINISHED."""
        with self._lock:
            record = self._get(run)
            decisions.check_finish(run, record.state, state)
            if record.state is not state:
                update = {
                    "state": state,
                    "finished_at": self._clock.now(),
                    "exit_reason": exit_reason,
                }
                self._runs[run] = record.model_copy(update=update)
            return self._runs[run]

    def resume(self, run: RunId) -> RunRecord:
        """Set an unfinished run RUNNING again."""
        with self._lock:
            record = self._get(run)
            decisions.check_open(run, record.state)
            update = {"state": RunState.RUNNING, "finished_at": None, "exit_reason": ""}
            self._runs[run] = record.model_copy(update=update)
            return self._runs[run]

    def state(self, run: RunId) -> RunState:
        """The state alone."""
        with self._lock:
            return self._get(run).state

    def get(self, run: RunId) -> RunRecord:
        """The run with all its results."""
        with self._lock:
            return self._get(run)

    def runs(self, limit: int) -> list[RunRecord]:
        """The newest runs first."""
        with self._lock:
            return list(reversed(self._ordered(*RunState)))[:limit]

    def open_runs(self) -> list[RunId]:
        """Ids of all runs that are RUNNING or STOPPED, oldest first."""
        return [RunId(record.id) for record in self.unfinished()]

    def unfinished(self) -> list[RunRecord]:
        """All runs that are RUNNING or STOPPED, oldest first."""
        with self._lock:
            return self._ordered(RunState.RUNNING, RunState.STOPPED)

    def _get(self, run: RunId) -> RunRecord:
        try:
            return self._runs[run]
        except KeyError:
            raise decisions.unknown(run) from None

    def _ordered(self, *states: RunState) -> list[RunRecord]:
        chosen = (record for record in self._runs.values() if record.state in states)
        return sorted(chosen, key=lambda record: (record.started_at, record.id))
