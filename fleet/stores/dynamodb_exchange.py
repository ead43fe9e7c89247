"""What a lease store on DynamoDB does with its table: read a sheet, decide on it, write it back.

Decisions are made anew on a new reading whenever somebody was faster, so none is ever written on
top of something it has not seen. Which table it is that answers is asked again before it is called
a copy, when its head is none that could follow the one seen last, and twice a minute: a table may
be deleted and restored under its name while a process lives.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.core.leases import is_expired
from fleet.core.model import NO_TOKEN, Lease, Token, UnitId
from fleet.stores import decisions, dynamodb_sheet
from fleet.stores.dynamodb_sheet import (
    HEAD_KEY,
    HISTORY,
    LEASE,
    UNIT,
    Item,
    Sheet,
    StoredHead,
    StoredLease,
    StoredUnit,
    key_of,
)
from fleet.stores.dynamodb_table import ACTIONS_MAX, Attempts, Table, by_key, new_write
from fleet.stores.observation import Observation, Term

BATCH = 32
"""Requests carried out together at most; what does not fit into a transaction is halved."""

_Q = TypeVar("_Q")
_A = TypeVar("_A")


def _term(key: str, stored: StoredLease) -> Term | None:
    """`given` names the write that gave the lease its time."""
    return None if stored.lasts_s is None else Term(stored.lasts_s, f"{key} {stored.given}")


class Exchange:
    """Sheets of one table, read and written. Safe for threads."""

    def __init__(self, table: Table, clock: Clock) -> None:
        """`clock` orders the history, and measures how long a lease stays unchanged."""
        self.table = table
        self._clock = clock
        self._observed = Observation(clock)
        self._lock = threading.Lock()
        self._count = 0
        self._last: tuple[Token, str] | None = None
        self.seen = NO_TOKEN
        """The newest token this process knows to have been issued."""

    def head(self, attempts: Attempts) -> tuple[StoredHead, Token]:
        """The head, and the newest token this process knew before it asked."""
        seen = self.seen
        found = self.table.get(HEAD_KEY, attempts)
        if found is None:
            raise decisions.uninitialised()
        stored = dynamodb_sheet.read_head(found)
        self.remember(stored.head.newest)
        return stored, seen

    def here(self, found: StoredHead, attempts: Attempts) -> str:
        """Which table this head was read from."""
        newest, last = found.head.newest, self._last
        self._last = (newest, found.write)
        follows = last is None or newest > last[0] or found.write == last[1]
        here = self.table.home(attempts, anew=not follows)
        return here if here == found.home else self.table.home(attempts, anew=True)

    def read(
        self,
        attempts: Attempts,
        units: Iterable[UnitId] = (),
        keys: Iterable[str] = (),
        *,
        prefixes: Iterable[str] = (),
        placed: bool = False,
    ) -> Sheet:
        """Head, units with their leases, leases by key with their units, by beginnings of keys.

        A unit that names a lease which is not there, or is without it, is read again: the lease
        was changing. When nothing has changed then, the table was restored amid a transaction, and
        nobody has the unit. `placed`: with the table it was read from.
        """
        wanted, named = sorted(set(units)), sorted(set(keys))
        loose_before: Mapping[UnitId, str] = {}
        while True:
            asked_at, seen = self._clock.monotonic(), self.seen
            first = [HEAD_KEY, *(key_of(UNIT, one) for one in wanted)]
            first += [key_of(LEASE, one) for one in named]
            items = by_key(self.table.read(first, attempts))
            head = items.pop(("store", "head"), None)
            if head is None:
                raise decisions.uninitialised()
            found = _units(items, wanted)
            rest = {one.lease for one in found.values()} - {"", *named}
            items |= self._read(LEASE, rest, attempts)
            for prefix in prefixes:
                items |= by_key(self.table.query(LEASE, attempts, prefix=prefix))
            leases = {
                sk: dynamodb_sheet.read_lease(item)
                for (pk, sk), item in items.items()
                if pk == LEASE
            }
            loose = _loose(found, leases)
            if loose.items() <= loose_before.items():
                theirs = {one for key in named if key in leases for one in leases[key].lease.units}
                theirs -= found.keys()
                found |= _units(self._read(UNIT, theirs, attempts), theirs)
                stored = dynamodb_sheet.read_head(head)
                ends = self._ends(leases, asked_at)
                here = self.here(stored, attempts) if placed else ""
                return Sheet(stored, leases, found, ends, seen, here=here)
            loose_before = loose
            attempts.go_on("a lease changed while it was read")

    def _read(
        self, pk: str, keys: Iterable[str], attempts: Attempts
    ) -> dict[tuple[str, str], Mapping[str, Any]]:
        return by_key(self.table.read((key_of(pk, one) for one in sorted(keys)), attempts))

    def listed(self, prefixes: Iterable[str], *, lapsed: bool = False) -> list[Lease]:
        """Leases in force, or `lapsed` too, none of them with a unit that moved on meanwhile."""
        attempts = self.table.attempts()
        self.head(attempts)
        asked_at = self._clock.monotonic()
        found = {}
        for prefix in prefixes:
            for item in self.table.query(LEASE, attempts, prefix=prefix):
                found[item["sk"]["S"]] = dynamodb_sheet.read_lease(item)
        ends, now = self._ends(found, asked_at), self._clock.now()
        newest: dict[UnitId, Lease] = {}
        for key, stored in found.items():
            lease = replace(stored.lease, expires_at=ends[key])
            for unit in lease.units:
                if unit not in newest or newest[unit].token < lease.token:
                    newest[unit] = replace(lease, units=frozenset({unit}))
        rows = newest.values()
        return decisions.gathered(row for row in rows if lapsed or not is_expired(row, now))

    def each(
        self,
        asked: Sequence[_Q],
        read: Callable[[Sequence[_Q], Attempts], Sheet],
        act: Callable[[Sheet, Sequence[_Q]], list[_A | errors.FleetError]],
        attempts: Attempts,
    ) -> list[_A | errors.FleetError]:
        """The answers to all, as many in one transaction as fit into it.

        What fails after others were answered, such as when the time is over, fails alone: what was
        granted must come to be known.
        """
        if not asked:
            self.head(attempts)
        answers: list[_A | errors.FleetError] = []
        parts = deque(asked[start : start + BATCH] for start in range(0, len(asked), BATCH))
        while parts:
            some = parts.popleft()
            try:
                answers += self.do(partial(read, some), partial(_act_on, act, some), attempts)
            except _TooMany as error:
                if len(some) == 1:
                    answers.append(_too_many(error.count))
                    continue
                middle = len(some) // 2
                parts.extendleft((some[middle:], some[:middle]))
            except errors.FleetError as error:
                if not answers:
                    raise
                answers += [error] * len(some)
                attempts.uncertain = False
        return answers

    def do(
        self,
        read: Callable[[Attempts], Sheet],
        act: Callable[[Sheet], _A],
        attempts: Attempts,
    ) -> _A:
        """What `act` answers on what was read, once what it changed is written."""
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
        asked_at = self._clock.monotonic()
        if actions and not self.table.write(actions, attempts, write=write, mark=mark):
            attempts.go_on("another writer was faster")
            return False
        self.remember(sheet.head.newest)
        if sheet.is_led:
            self._last = (sheet.head.newest, write)
        for key, stored in sheet.written(write).items():
            if stored is not None and (term := _term(key, stored)) is not None:
                self._observed.begin(term.mark, asked_at)  # before anybody else can count
        return True

    def _ends(self, found: Mapping[str, StoredLease], asked_at: float) -> dict[str, float | None]:
        """When each lease that was read ends, on our wall clock."""
        return {
            key: self._observed.seen(one.lease, _term(key, one), asked_at=asked_at).expires_at
            for key, one in found.items()
        }

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


def _units(
    items: Mapping[tuple[str, str], Mapping[str, Any]], asked: Iterable[UnitId]
) -> dict[UnitId, StoredUnit]:
    """The units asked for; one of which there is no item has no lease."""
    found = {UnitId(sk): one for (pk, sk), one in items.items() if pk == UNIT}
    return {
        unit: dynamodb_sheet.read_unit(found[unit]) if unit in found else StoredUnit()
        for unit in asked
    }


def _loose(
    units: Mapping[UnitId, StoredUnit], leases: Mapping[str, StoredLease]
) -> dict[UnitId, str]:
    """Units that name a lease which is not there or does not name them, with its key."""
    return {
        unit: known.lease
        for unit, known in units.items()
        if known.lease
        and (known.lease not in leases or unit not in leases[known.lease].lease.units)
    }


def _too_many(count: int) -> errors.InputInvalid:
    return errors.InputInvalid(
        f"this would change {count} items at once, DynamoDB takes {ACTIONS_MAX}",
        remedy="ask for fewer units at once: up to 48 always fit, one device has a few",
    )
