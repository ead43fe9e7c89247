"""What a lease store on DynamoDB does with its table: read a sheet, decide on it, write it back.

Decisions are made anew on a new reading whenever somebody was faster, so none is ever written on
top of something it has not seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from fleet import errors
from fleet.clock import Clock
from fleet.leases import is_expired
from fleet.model import NO_TOKEN, Lease, Token, UnitId
from fleet.stores import decisions, dynamodb_sheet
from fleet.stores.dynamodb_sheet import (
    HEAD_KEY,
    HISTORY,
    LEASE,
    UNIT,
    Item,
    Sheet,
    StoredHead,
    StoredUnit,
    key_of,
)
from fleet.stores.dynamodb_table import ACTIONS_MAX, Attempts, Table, by_key, new_write
from fleet.stores.dynamodb_watch import Watch

BATCH = 32
"""Requests carried out together at most; what does not fit into a transaction is halved."""

_Q = TypeVar("_Q")
_A = TypeVar("_A")


class Exchange:
    """Sheets of one table, read and written. Safe for threads."""

    def __init__(self, table: Table, clock: Clock) -> None:
        """`clock` orders the history, and measures how long a lease stays unchanged."""
        self.table = table
        self._clock = clock
        self._watch = Watch(clock)
        self._lock = threading.Lock()
        self._count = 0
        self.seen = NO_TOKEN
        """The newest token this process knows to have been issued."""

    def head(self) -> tuple[StoredHead, Token]:
        """The head, and the newest token this process knew before it asked."""
        seen = self.seen
        found = self.table.get(HEAD_KEY)
        if found is None:
            raise decisions.uninitialised()
        stored = dynamodb_sheet.read_head(found)
        self.remember(stored.head.newest)
        return stored, seen

    def read(
        self,
        attempts: Attempts,
        units: Iterable[UnitId] = (),
        keys: Iterable[str] = (),
        *,
        prefixes: Iterable[str] = (),
    ) -> Sheet:
        """Head, units with their leases, leases by key and by the beginning of their key."""
        wanted, named, begun = sorted(set(units)), sorted(set(keys)), list(prefixes)
        while True:
            asked_at, seen = self._clock.monotonic(), self.seen
            asked = [HEAD_KEY, *(key_of(UNIT, one) for one in wanted)]
            items = by_key(self.table.read([*asked, *(key_of(LEASE, one) for one in named)]))
            head = items.pop(("store", "head"), None)
            if head is None:
                raise decisions.uninitialised()
            found = {
                UnitId(sk): dynamodb_sheet.read_unit(item)
                for (pk, sk), item in items.items()
                if pk == UNIT
            }
            rest = {one.lease for one in found.values()} - {"", *named}
            if rest:
                items |= by_key(self.table.read(key_of(LEASE, one) for one in sorted(rest)))
            for prefix in begun:
                items |= by_key(self.table.query(LEASE, prefix=prefix))
            leases = {
                sk: dynamodb_sheet.read_lease(item)
                for (pk, sk), item in items.items()
                if pk == LEASE
            }
            if all(_is_of(unit, known, leases) for unit, known in found.items()):
                stored = dynamodb_sheet.read_head(head)
                ends = self._watch.ends(leases, asked_at)
                return Sheet(stored, leases, found, ends, seen)
            attempts.go_on("a lease changed while it was read")

    def listed(self, prefixes: Iterable[str]) -> list[Lease]:
        """Leases in force, none of them listed with a unit that moved on meanwhile."""
        self.head()
        asked_at = self._clock.monotonic()
        found = {}
        for prefix in prefixes:
            for item in self.table.query(LEASE, prefix=prefix):
                found[item["sk"]["S"]] = dynamodb_sheet.read_lease(item)
            if not prefix:
                self._watch.keep_only(found)
        ends, now = self._watch.ends(found, asked_at), self._clock.now()
        newest: dict[UnitId, Lease] = {}
        for key, stored in found.items():
            lease = replace(stored.lease, expires_at=ends[key])
            for unit in lease.units:
                if unit not in newest or newest[unit].token < lease.token:
                    newest[unit] = replace(lease, units=frozenset({unit}))
        return decisions.gathered(row for row in newest.values() if not is_expired(row, now))

    def each(
        self,
        asked: Sequence[_Q],
        read: Callable[[Sequence[_Q], Attempts], Sheet],
        act: Callable[[Sheet, Sequence[_Q]], list[_A | errors.FleetError]],
    ) -> list[_A | errors.FleetError]:
        """The answers to all, as many in one transaction as fit into it."""
        if not asked:
            self.head()
        answers: list[_A | errors.FleetError] = []
        for start in range(0, len(asked), BATCH):
            some = asked[start : start + BATCH]
            try:
                answers += self.do(partial(read, some), partial(_act_on, act, some))
            except _TooMany as error:
                if len(some) == 1:
                    answers.append(_too_many(error.count))
                    continue
                middle = len(some) // 2
                answers += self.each(some[:middle], read, act)
                answers += self.each(some[middle:], read, act)
        return answers

    def do(self, read: Callable[[Attempts], Sheet], act: Callable[[Sheet], _A]) -> _A:
        """What `act` answers on what was read, once what it changed is written."""
        attempts = self.table.attempts()
        while True:
            sheet = read(attempts)
            answer = act(sheet)
            if self.write(sheet, attempts):
                return answer

    def write(self, sheet: Sheet, attempts: Attempts) -> bool:
        write = new_write()
        mark = self._mark(sheet.entries[-1].at, write) if sheet.entries else None
        actions = sheet.actions(self.table.name, mark or {}, write)
        if len(actions) > ACTIONS_MAX:
            raise _TooMany(len(actions))
        if actions and not self.table.write(actions, attempts, write=write, mark=mark):
            attempts.go_on("another writer was faster")
            return False
        self.remember(sheet.head.newest)
        self._watch.begin(sheet.written(write))
        return True

    def _mark(self, now: float, write: str) -> Item:
        with self._lock:
            self._count += 1
            return key_of(HISTORY, f"{int(now * 1e6):020d} {self._count:08d} {write}")

    def remember(self, newest: Token) -> None:
        with self._lock:
            self.seen = max(self.seen, newest)


class _TooMany(Exception):
    """More items than one transaction takes."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


def _act_on(act: Callable[[Sheet, Sequence[_Q]], _A], asked: Sequence[_Q], sheet: Sheet) -> _A:
    return act(sheet, asked)


def _is_of(unit: UnitId, known: StoredUnit, leases: dict[str, dynamodb_sheet.StoredLease]) -> bool:
    return not known.lease or (known.lease in leases and unit in leases[known.lease].lease.units)


def _too_many(count: int) -> errors.InputInvalid:
    return errors.InputInvalid(
        f"this would change {count} items at once, DynamoDB takes {ACTIONS_MAX}",
        remedy="ask for fewer units at once: up to 48 always fit, one device has a few",
    )
