"""The whole state of a fleet's leases as one object holds it, as text an operator can read. Pure.

    head.json       epoch and counter, what `adopt` put behind, a suspension, the object's own UID
    leases.jsonl    one line for each lease
    history.jsonl   one line for each thing that happened, the newest last

`home` is the UID of the object the state was made in: one that was deleted and put back from a copy
has another, and grants nothing. The tokens of its leases bear witness against a counter that was
lowered by hand.
"""

from __future__ import annotations

import json
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.core import errors
from fleet.core.model import NO_TOKEN, Holder, Lease, Token, UnitId
from fleet.stores import decisions
from fleet.stores.base import Event, HistoryEntry
from fleet.stores.observation import Observation, Term

HEAD, LEASES, HISTORY = "head.json", "leases.jsonl", "history.jsonl"
FORMAT = 1
HISTORY_KEPT = 300
"""Entries kept: the object is written whole each time. The rest is in the log."""
EXPIRED_KEPT_S = 3600.0
"""How long, s, an expired lease is remembered, so that a late release or renewal is told so."""
BUCKET_LEASES = 128
"""Most leases, on average, of a bucket: what one lease more makes us write and compress anew."""

_Key = tuple[Holder, Token]


@dataclass(slots=True)
class _Bucket:
    """Some of the leases (by a hash of the holder), and their lines as long as they are true."""

    units: dict[_Key, set[UnitId]] = field(default_factory=dict)
    text: str | None = None


@dataclass(slots=True)
class State:
    """Leases by unit, and by holder and token. Changed in place; `changed` says that it was."""

    head: decisions.Head
    home: str
    uid: str
    """UID of the object it was read from."""
    observed: Observation
    """What this process has seen of leases: it alone says which are over."""
    seen: Token = NO_TOKEN
    """The newest token known to have been issued: what the object now says must not be below."""
    evidence: Token = NO_TOKEN
    """The newest token of a lease when it was read."""
    rows: dict[UnitId, tuple[Lease, Term | None]] = field(default_factory=dict)
    """As stored, one entry for each unit; its lease names this unit only."""
    changed: bool = False
    _buckets: list[_Bucket] = field(default_factory=lambda: [_Bucket()])
    _count: int = 0
    """Leases: keys of all buckets."""
    _history: deque[str] = field(default_factory=lambda: deque(maxlen=HISTORY_KEPT))

    @property
    def copied(self) -> bool:
        """Whether the object was put back from a copy after it had been deleted."""
        return self.home != self.uid

    def held(self, holder: Holder, token: Token) -> list[Lease]:
        """What `holder` has under `token`, live or expired, one entry for each unit."""
        units = self._bucket(holder).units.get((holder, token), ())
        return [self.observed.seen(*self.rows[unit]) for unit in sorted(units)]

    def on(self, units: Iterable[UnitId]) -> dict[UnitId, Lease]:
        """What is on these units, live or expired."""
        return {one: self.observed.seen(*self.rows[one]) for one in units if one in self.rows}

    def all(self) -> Iterator[Lease]:
        """Everything, live or expired, one entry for each unit."""
        return (self.observed.seen(*row) for row in self.rows.values())

    def put(self, lease: Lease, now: float) -> None:
        """Store a lease; what was on its units is gone."""
        self.take_in(lease, self.observed.give(lease, now))

    def take_in(self, lease: Lease, term: Term | None) -> None:
        """Store a lease as it was written, with the term it was given then."""
        for unit in lease.units:
            row = Lease(frozenset({unit}), lease.holder, lease.token, lease.expires_at)
            before = self.rows.get(unit)
            if before == (row, term):
                continue
            if before is not None:
                self.drop(unit)
            self.rows[unit] = (row, term)
            self._add(row)
            self.changed = True

    def reinstate(self, lease: Lease, now: float) -> bool | errors.FleetError:
        """Put back what is missing of a lease; see `fleet.stores.base.LeaseStore.reinstate`."""
        put = decisions.reinstate(lease, self.on(lease.units), self.head, now)
        if not isinstance(put, Lease):
            return put or False
        self.put(put, now)
        self.record([decisions.reinstated(put, now)])
        return True

    def drop(self, unit: UnitId) -> None:
        """Remove what is on a unit."""
        row, _ = self.rows.pop(unit)
        bucket, key = self._bucket(row.holder), (row.holder, row.token)
        bucket.text = None
        bucket.units[key].discard(unit)
        if not bucket.units[key]:
            del bucket.units[key]
            self._count -= 1
        self.changed = True

    def _add(self, row: Lease) -> None:
        bucket, key = self._bucket(row.holder), (row.holder, row.token)
        bucket.text = None
        if key not in bucket.units:
            bucket.units[key] = set()
            self._count += 1
        bucket.units[key] |= row.units

    def _bucket(self, holder: Holder) -> _Bucket:
        return self._buckets[zlib.crc32(holder.name.encode()) % len(self._buckets)]

    def _spread(self) -> None:
        """As many buckets as the leases need, give or take a factor of two."""
        wanted = max(1, -(-self._count // BUCKET_LEASES))
        if wanted <= len(self._buckets) <= 4 * wanted:
            return
        rows = [self.rows[unit] for old in self._buckets for units in old.units.values()
                for unit in sorted(units)]  # fmt: skip
        self._buckets = [_Bucket() for _ in range(2 * wanted if wanted > 1 else 1)]
        self._count = 0
        for row, _ in rows:
            self._add(row)

    def lead(self, head: decisions.Head) -> None:
        """Store another head. Raises `StoreUnavailable` rather than lower the last token."""
        if head.newest < self.head.newest:
            raise errors.StoreUnavailable(
                f"the store would go back from {self.head.newest} to {head.newest}"
            )
        self.changed = self.changed or head != self.head
        self.head = head

    def record(self, entries: Iterable[HistoryEntry]) -> None:
        """Add to the history, the oldest first."""
        for entry in entries:
            self._history.append(_line(_entry_to(entry)))
            self.changed = True

    def history(self, limit: int) -> list[HistoryEntry]:
        """The newest entries first."""
        return [_entry_of(json.loads(line)) for line in list(reversed(self._history))[:limit]]

    def floor(self) -> Token | None:
        """What shows, apart from nodes, that this state is not the newest there was."""
        known = max(self.seen, self.evidence)
        if self.copied:
            return max(self.head.newest, known)
        return known if known > self.head.newest else None

    def behind(self, floors: Sequence[Token | None], now: float) -> errors.StoreBehind | None:
        """Why nothing may be granted, if so; a new reason suspends the store."""
        head = self.head
        if head.suspended is not None:
            return decisions.behind(head.newest, head.suspended)
        if self.copied:
            return errors.StoreBehind(
                f"the store's object is a copy of one that was deleted (UID {self.home}):"
                f" it may have issued more than {head.newest}, nothing is granted",
                newest=head.newest,
                floor=self.floor(),
            )
        floor = max(
            (one for one in (decisions.find_behind(floors, head.newest), self.floor()) if one),
            default=None,
        )
        if floor is None:
            return None
        self.lead(replace(head, suspended=floor))
        detail = decisions.suspension(floor)
        self.record([decisions.entry(Event.SUSPENDED, now, token=head.newest, detail=detail)])
        return decisions.behind(head.newest, floor)

    def texts(self) -> dict[str, list[str]]:
        """The state as the object's texts, in pieces; long expired leases are left out."""
        for unit in [
            unit
            for unit, (_, term) in self.rows.items()
            if term is not None and self.observed.over_s(term) > EXPIRED_KEPT_S
        ]:
            self.drop(unit)
        self._spread()
        for bucket in self._buckets:
            if bucket.text is None:
                rows = (
                    [self.rows[one] for one in sorted(units)] for units in bucket.units.values()
                )
                lines = (line for one in rows for line in _lease_lines(one))
                bucket.text = "".join(lines)
        head = {
            "format": FORMAT,
            "epoch": self.head.newest.epoch,
            "counter": self.head.newest.counter,
            "adopted": self.head.adopted,
            "suspended": None if self.head.suspended is None else str(self.head.suspended),
            "home": self.home,
        }
        return {
            HEAD: [json.dumps(head, indent=1)],
            LEASES: [bucket.text or "" for bucket in self._buckets],
            HISTORY: ["".join(self._history)],
        }


def begun(uid: str, newest: Token, now: float, observed: Observation) -> State:
    """The state of a new store in the object `uid`."""
    head = decisions.Head(newest)
    state = State(head, home=uid, uid=uid, observed=observed, changed=True)
    state.record([decisions.entry(Event.INITIALISED, now, token=newest)])
    return state


def read(texts: Mapping[str, str], uid: str, observed: Observation) -> State | None:
    """The state in an object's texts; None when they hold none. Raises `SettingsInvalid`."""
    if HEAD not in texts:
        return None
    try:
        return _read(texts, uid, observed)
    except errors.MALFORMED as error:
        raise unreadable(repr(error)) from error


def unreadable(why: str) -> errors.SettingsInvalid:
    """The answer of a store whose object makes no sense: never that nothing is held."""
    return errors.SettingsInvalid(
        f"the store's object cannot be understood: {why}",
        remedy="put its last good content back and run `fleet store adopt`; without one delete it,"
        " run `fleet store init`, then `fleet store adopt`",
    )


def _read(texts: Mapping[str, str], uid: str, observed: Observation) -> State:
    head = json.loads(texts[HEAD])
    if head["format"] != FORMAT:
        raise ValueError(f"format {head['format']}, this version reads {FORMAT}")
    newest = Token(_whole(head["epoch"]), _whole(head["counter"]))
    suspended = None if head["suspended"] is None else Token.parse(head["suspended"])
    state = State(
        decisions.Head(newest, _whole(head["adopted"]), suspended),
        home=str(head["home"]),
        uid=uid,
        observed=observed,
    )
    for entry in _entries(texts[LEASES]):
        lease = Lease(
            _units(entry["units"]),
            Holder.parse(entry["holder"]),
            Token.parse(entry["token"]),
            None if entry.get("expires_at") is None else float(entry["expires_at"]),
        )
        if any(unit in state.rows for unit in lease.units):
            raise ValueError(f"a unit of {lease.holder} is listed twice")
        state.evidence = max(state.evidence, lease.token)
        state.take_in(lease, _term(entry))
    state.record(_entry_of(entry) for entry in _entries(texts[HISTORY]))
    state.changed = False
    return state


def _term(entry: Mapping[str, Any]) -> Term | None:
    """None: it has no ttl, or was written by a version that stored none."""
    lasts_s, mark = entry.get("lasts_s"), entry.get("mark")
    return None if lasts_s is None or mark is None else Term(float(lasts_s), str(mark))


def _units(found: object) -> frozenset[UnitId]:
    """The units of a lease: one that named none, or others than it did, would be no lease."""
    if not isinstance(found, list) or not found or not all(found):
        raise ValueError(f"{found!r:.60} are no units")
    if not all(isinstance(unit, str) for unit in found):
        raise ValueError(f"{found!r:.60} are no units")
    return frozenset(map(UnitId, found))


def _whole(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"{number!r} is no count")
    return number


def _lease_lines(rows: Sequence[tuple[Lease, Term | None]]) -> Iterator[str]:
    ends: dict[tuple[float | None, Term | None], list[UnitId]] = {}
    for row, term in rows:
        ends.setdefault((row.expires_at, term), []).extend(row.units)
    lease, _ = rows[0]
    for (expires_at, term), units in ends.items():
        one: dict[str, Any] = {"holder": str(lease.holder), "token": str(lease.token)}
        if expires_at is not None:
            one["expires_at"] = expires_at
        if term is not None:
            one |= {"lasts_s": term.lasts_s, "mark": term.mark}
        yield _line({**one, "units": units})


def _entry_to(entry: HistoryEntry) -> dict[str, Any]:
    told = {"holder": entry.holder, "units": list(entry.units), "detail": entry.detail}
    head = {"at": entry.at, "event": str(entry.event), "token": str(entry.token)}
    return {**head, **{key: found for key, found in told.items() if found}}


def _entry_of(found: Mapping[str, Any]) -> HistoryEntry:
    return HistoryEntry(
        float(found["at"]),
        Event(found["event"]),
        str(found.get("holder", "")),
        Token.parse(found["token"]),
        tuple(UnitId(str(unit)) for unit in found.get("units", ())),
        str(found.get("detail", "")),
    )


def _line(found: Mapping[str, Any]) -> str:
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False) + "\n"


def _entries(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        f"[{','.join(line for line in text.split(chr(10)) if line.strip())}]"
    )
    return found
