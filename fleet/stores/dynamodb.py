"""The stores of a cluster in one DynamoDB table: durable beyond any machine, for many processes.

1. A grant is one transaction: the head (epoch and counter), every unit, the lease, the leases it
   replaces and what the history keeps of it, each guarded by what was read. Epoch and counter are
   never lowered; renewals and releases leave the head alone.
2. A lease with a ttl ends when this process has seen it unchanged for as long as it was given, on
   its own monotonic clock, whatever wall clocks say (`fleet.stores.observation`).
3. A table that is older than what this process has seen, whose units had newer tokens than its
   counter, or that was restored from a backup (it is another table then), grants nothing until
   `fleet store adopt`. One that is missing is never made anew but by `fleet store init`.
4. A holder that asks again for part of its lease renews all of it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.core.leases import AcquireRequest, is_expired
from fleet.core.model import Holder, Lease, Token, UnitId
from fleet.stores import aws, decisions, dynamodb_creation, dynamodb_sheet
from fleet.stores.base import HISTORY_KEPT, Event, HistoryEntry, Release, Renewal
from fleet.stores.dynamodb_exchange import Exchange
from fleet.stores.dynamodb_runs import DynamodbRunStore
from fleet.stores.dynamodb_sheet import HEAD_KEY, HISTORY, Sheet, StoredHead, lease_key
from fleet.stores.dynamodb_table import Attempts, Patience, Table

HOLDERS_ASKED = 16
"""Up to so many holders are asked for one by one; for more, all leases are read."""

_Answers = list[Lease | errors.FleetError]


@dataclass(frozen=True, slots=True)
class DynamodbStores:
    """Both stores of one table."""

    leases: DynamodbLeaseStore
    runs: DynamodbRunStore

    @property
    def initialised(self) -> bool:
        """Whether the store has an epoch."""
        return self.leases.initialised

    def close(self) -> None:
        """Nothing is held between calls but connections, which end with the client."""


def open_dynamodb_stores(
    place: aws.Place, name: str, *, clock: Clock, patience: Patience
) -> DynamodbStores:
    """The stores in table `name`; sends nothing. One that is new grants nothing before `init`."""
    # Three silent requests fit into the time a call has.
    table = Table(aws.dynamodb(place, timeout_s=patience.timeout_s / 3), name, patience)
    return DynamodbStores(DynamodbLeaseStore(table, clock), DynamodbRunStore(table, clock))


class DynamodbLeaseStore:
    """Leases in a DynamoDB table; see `fleet.stores.base.LeaseStore`."""

    def __init__(self, table: Table, clock: Clock) -> None:
        """`clock` dates what is written, and measures how long a lease stays unchanged."""
        self._table = table
        self._clock = clock
        self._exchange = Exchange(table, clock)
        self._granting = threading.Lock()

    @property
    def initialised(self) -> bool:
        """Whether the store has an epoch."""
        try:
            return self._table.get(HEAD_KEY, self._table.attempts()) is not None
        except errors.SettingsInvalid as error:
            if error.fields.get("absent"):
                return False
            raise

    def init(self) -> Token:
        """Make the table if there is none, and mint the epoch, once."""
        dynamodb_creation.make(self._table)
        return self.begin()

    def begin(self) -> Token:
        """Mint the epoch in a table that is there, once."""
        attempts = self._table.attempts()
        while True:
            # Looked at again where others have items: somebody may have made it this moment.
            empty = dynamodb_creation.is_empty(self._table, attempts)
            found = self._table.get(HEAD_KEY, attempts)
            if found is not None:
                newest = dynamodb_sheet.read_head(found).head.newest
                self._exchange.remember(newest)
                return newest
            if not empty:
                raise dynamodb_creation.occupied(self._table)
            now = self._clock.now()
            epoch = decisions.mint_epoch(now, secrets.randbits(10), self._exchange.seen.epoch)
            head = decisions.Head(Token(epoch, 0))
            home = self._table.home(attempts, anew=True)
            sheet = Sheet(StoredHead(head, home, ""))
            sheet.advanced = True
            sheet.record([decisions.entry(Event.INITIALISED, now, token=head.newest)])
            self._exchange.write(sheet, attempts)

    def adopt(self, at_least: Token, operator: str) -> Token:
        """Mint a newer epoch, take a restored table for the original, and grant again."""
        self._table.forget_home()
        read = partial(self._exchange.read, placed=True)

        def act(sheet: Sheet) -> Token:
            now = self._clock.now()
            known = max(at_least, self._exchange.seen)
            sheet.head, before = decisions.adopt(sheet.head, known, now, secrets.randbits(10))
            sheet.home = sheet.here
            newest, detail = sheet.head.newest, decisions.adoption(operator, before)
            sheet.record([decisions.entry(Event.ADOPTED, now, token=newest, detail=detail)])
            return newest

        return self._exchange.do(read, act, self._table.attempts())

    def reinstate(self, leases: Sequence[Lease]) -> list[bool | errors.FleetError]:
        """Take in leases of claims that nodes have in their records.

        Raises `StoreUnavailable` also when some are in already: whoever goes on has all of them.
        """

        def act(sheet: Sheet, asked: Sequence[Lease]) -> list[bool | errors.FleetError]:
            now = self._clock.now()
            return [_reinstate(sheet, lease, now) for lease in asked]

        def read(asked: Sequence[Lease], attempts: Attempts) -> Sheet:
            units = {unit for lease in asked for unit in lease.units}
            keys = [lease_key(lease.holder, lease.token) for lease in asked]
            return self._exchange.read(attempts, units, keys)

        with self._alone() as attempts:
            answers = self._exchange.each(leases, read, act, attempts)
        for answer in answers:
            if isinstance(answer, errors.StoreUnavailable):
                raise answer
        return answers

    def newest(self) -> Token:
        """The epoch and the last counter issued."""
        return self._exchange.head(self._table.attempts())[0].head.newest

    def suspended(self) -> Token | None:
        """The floor by which the store was found behind."""
        attempts = self._table.attempts()
        found, seen = self._exchange.head(attempts)
        if found.head.suspended is None and found.home != self._exchange.here(found, attempts):
            return max(found.head.newest, seen)
        return found.head.suspended or (seen if seen > found.head.newest else None)

    def learn(self, floor: Token) -> None:
        """Compare with a node's floor. Writes only when it must suspend."""

        def act(sheet: Sheet) -> errors.FleetError | None:
            refusal = self._behind(sheet, [floor])
            if refusal is not None:
                return refusal
            try:
                sheet.head.check(floor)
            except errors.FleetError as error:
                return error
            return None

        read = partial(self._exchange.read, placed=True)
        refusal = self._exchange.do(read, act, self._table.attempts())
        if refusal is not None:
            raise refusal

    def acquire(
        self, requests: Sequence[AcquireRequest], *, out_of_service_max: int | None = None
    ) -> list[Lease | errors.FleetError]:
        """Grant each request, or say why not."""

        def read(asked: Sequence[AcquireRequest], attempts: Attempts) -> Sheet:
            units = {unit for request in asked for unit in request.units}
            kinds = [] if out_of_service_max is None else sorted(decisions.BUDGETED)
            prefixes = [f"{kind}:" for kind in kinds]
            return self._exchange.read(attempts, units, prefixes=prefixes, placed=True)

        def act(sheet: Sheet, asked: Sequence[AcquireRequest]) -> _Answers:
            now = self._clock.now()
            refusal = self._behind(sheet, [request.min_token for request in asked])
            if refusal is not None:
                return [refusal for _ in asked]
            budget = None
            if out_of_service_max is not None:
                budget = decisions.Budget(sheet.rows(), out_of_service_max, now)
            return [_acquire(sheet, request, budget, now) for request in asked]

        with self._alone() as attempts:
            return self._exchange.each(requests, read, act, attempts)

    def renew(self, renewals: Sequence[Renewal]) -> list[Lease | errors.FleetError]:
        """Prolong leases."""

        def act(sheet: Sheet, asked: Sequence[Renewal]) -> _Answers:
            now = self._clock.now()
            answers: _Answers = []
            for renewal in asked:
                held = sheet.held(renewal.holder, renewal.token)
                answer = decisions.prolong(renewal, held, now)
                if isinstance(answer, Lease):
                    sheet.put(answer, now)
                answers.append(answer)
            return answers

        return self._exchange.each(renewals, self._read_named, act, self._table.attempts())

    def release(self, releases: Sequence[Release]) -> list[bool | errors.FleetError]:
        """Give leases back; whether anything was held."""

        def act(sheet: Sheet, asked: Sequence[Release]) -> list[bool | errors.FleetError]:
            now = self._clock.now()
            return [_release(sheet, release, now) for release in asked]

        return self._exchange.each(releases, self._read_named, act, self._table.attempts())

    def holder(self, unit: UnitId) -> Lease | None:
        """The lease in force on `unit`, with all its units."""
        sheet = self._exchange.read(self._table.attempts(), [unit])
        if unit not in sheet.on([unit]):
            return None
        rows = [row for row in sheet.rows() if not is_expired(row, self._clock.now())]
        return next(iter(decisions.gathered(rows)), None)

    def held_by(self, holders: Collection[Holder], *, lapsed: bool = False) -> list[Lease]:
        """The leases in force of these holders, by token."""
        wanted = frozenset(holders)
        few = len(wanted) <= HOLDERS_ASKED
        prefixes = [f"{holder} " for holder in sorted(wanted)] if few else [""]
        found = self._exchange.listed(prefixes, lapsed=lapsed)
        return [lease for lease in found if lease.holder in wanted]

    def leases(self, holder: Holder | None = None) -> list[Lease]:
        """The leases in force, by token."""
        return self._exchange.listed([""]) if holder is None else self.held_by([holder])

    def history(self, limit: int) -> list[HistoryEntry]:
        """The newest entries first, by the clocks of who wrote them."""
        attempts = self._table.attempts()
        self._exchange.head(attempts)
        found: list[HistoryEntry] = []
        wanted = min(limit, HISTORY_KEPT)
        most = min(wanted, 1000)
        for item in self._table.query(HISTORY, attempts, newest_first=True, limit=most):
            found += reversed(dynamodb_sheet.read_story(item))
            if len(found) >= wanted:
                break
        return found[:wanted]

    @contextmanager
    def _alone(self) -> Iterator[Attempts]:
        """One of our threads at a time: of two at the head the service would cancel one."""
        attempts = self._table.attempts()
        while not self._granting.acquire(timeout=attempts.left_s):
            attempts.go_on("other grants of this process were under way")
        try:
            yield attempts
        finally:
            self._granting.release()

    def _read_named(self, asked: Sequence[Renewal | Release], attempts: Attempts) -> Sheet:
        keys = [lease_key(one.holder, one.token) for one in asked]
        return self._exchange.read(attempts, keys=keys)

    def _behind(self, sheet: Sheet, floors: Sequence[Token | None]) -> errors.StoreBehind | None:
        """Why nothing may be granted, if so; a new reason suspends the store."""
        head = sheet.head
        if head.suspended is not None:
            return decisions.behind(head.newest, head.suspended)
        if sheet.home != sheet.here:
            return errors.StoreBehind(
                f"table {self._table.name} was restored or copied from {sheet.home}: it may have"
                f" issued more than {head.newest}, nothing is granted",
                newest=head.newest,
                floor=max(head.newest, sheet.evidence),
            )
        floor = decisions.find_behind([*floors, sheet.evidence, sheet.seen], head.newest)
        if floor is None:
            return None
        now = self._clock.now()
        sheet.head = replace(head, suspended=floor)
        detail = decisions.suspension(floor)
        sheet.record([decisions.entry(Event.SUSPENDED, now, token=head.newest, detail=detail)])
        return decisions.behind(head.newest, floor)


def _acquire(
    sheet: Sheet, request: AcquireRequest, budget: decisions.Budget | None, now: float
) -> Lease | errors.FleetError:
    grant = decisions.decide(request, sheet.on(request.units), sheet.head, now)
    if isinstance(grant, errors.FleetError):
        return grant
    if budget is not None and (refusal := budget.admit(grant.lease)) is not None:
        return refusal
    sheet.put(grant.lease, now)
    if not grant.same:
        sheet.head = replace(sheet.head, newest=grant.lease.token)
        sheet.record(decisions.granted(grant, now))
    return grant.lease


def _reinstate(sheet: Sheet, lease: Lease, now: float) -> bool | errors.FleetError:
    put = decisions.reinstate(lease, sheet.on(lease.units), sheet.head, now)
    if not isinstance(put, Lease):
        return put or False
    sheet.put(put, now)
    sheet.advanced = True
    sheet.record([decisions.reinstated(put, now)])
    return True


def _release(sheet: Sheet, release: Release, now: float) -> bool | errors.FleetError:
    held = sheet.held(release.holder, release.token)
    refusal = decisions.check_release(release, held)
    if refusal is not None:
        return refusal
    sheet.drop(release.holder, release.token)
    sheet.record(decisions.released(release, held, now))
    return bool(held)
