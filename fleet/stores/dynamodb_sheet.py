"""Part of a lease table as it was read, changed by decisions, and the writes that make it so. Pure.

Items (partition key ``pk``, sort key ``sk``):

    store    head                      epoch and counter, what `adopt` put behind, a suspension
    lease    <holder> <token>          one lease: its units, its end
    unit     <unit>                    the lease it belongs to, if any, and the last token it had
    history  <time> <count> <write>    what one transaction did

Every item that is replaced is guarded by what was read of it, so that a transaction does all of
what was decided, on exactly what it was decided on, or nothing. The unit's last token stays after
release: it bears witness against a counter that went back. A lease has a unit when both say so:
a table restored amid a transaction may have the one without the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.core import errors
from fleet.core.model import NO_TOKEN, Holder, Lease, Token, UnitId
from fleet.stores import decisions
from fleet.stores.base import Event, HistoryEntry

FORMAT = 1
STORE, LEASE, UNIT, HISTORY = "store", "lease", "unit", "history"
"""Partitions. All leases are one, so that they are listed by a query and no scan."""
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
HISTORY_KEPT_S = 90 * 86400
"""How long, s, the table keeps an entry of the history (its time to live)."""

Item = dict[str, Any]
"""An item or a key as the service has it: attribute -> {type: value}."""


@dataclass(frozen=True, slots=True)
class StoredHead:
    """The store as a whole, as it was read."""

    head: decisions.Head
    home: str
    """The table it was made in: a table restored from a backup is another one."""
    write: str
    """The write that left it so, and no other; "": there is none yet."""


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease as it was read."""

    lease: Lease
    lasts_s: float | None
    """How long it was given at its last renewal; None: until it is released."""
    given: str
    """The write that gave it its time; "": the one to come."""
    write: str


@dataclass(frozen=True, slots=True)
class StoredUnit:
    """The sort key of the lease a unit belongs to, "" for none, and its last token."""

    lease: str = ""
    floor: Token = NO_TOKEN


@dataclass(slots=True)
class Sheet:
    """What was read, by sort key; changed in place, and compared with what it was."""

    found: StoredHead
    leases: dict[str, StoredLease] = field(default_factory=dict)
    units: dict[UnitId, StoredUnit] = field(default_factory=dict)
    ends: dict[str, float | None] = field(default_factory=dict)
    """When each lease that was read ends for who reads it."""
    seen: Token = NO_TOKEN
    """The newest token known to have been issued before it was read."""
    here: str = ""
    """The table it was read from; "": not asked."""
    entries: list[HistoryEntry] = field(default_factory=list)
    head: decisions.Head = field(init=False)
    home: str = field(init=False)
    advanced: bool = False
    """Whether the head is written again, also when it is what it was."""
    _leases_were: dict[str, StoredLease] = field(init=False)
    _units_were: dict[UnitId, StoredUnit] = field(init=False)
    _given: set[UnitId] = field(default_factory=set)
    """Written also when they are what they were: only now their lease is there."""

    def __post_init__(self) -> None:
        """What is given is what was read."""
        self.head, self.home = self.found.head, self.found.home
        self._leases_were, self._units_were = dict(self.leases), dict(self.units)

    @property
    def evidence(self) -> Token:
        """The newest token of a unit or lease read."""
        floors = (unit.floor for unit in self._units_were.values())
        tokens = (stored.lease.token for stored in self._leases_were.values())
        return max((*floors, *tokens), default=NO_TOKEN)

    def rows(self) -> list[Lease]:
        """The leases, one entry for each of their units."""
        return [row for key in self.leases for row in self._rows(key)]

    def held(self, holder: Holder, token: Token) -> list[Lease]:
        """What `holder` has under `token`, in force or over, one entry for each unit."""
        return self._rows(lease_key(holder, token))

    def on(self, units: Iterable[UnitId]) -> dict[UnitId, Lease]:
        """The leases of these units, in force or over, each naming this unit only."""
        found = {}
        for unit in units:
            key = self.units.get(unit, StoredUnit()).lease
            if key in self.leases and unit in self.leases[key].lease.units:
                found[unit] = replace(self._seen(key), units=frozenset({unit}))
        return found

    def put(self, lease: Lease, now: float) -> None:
        """Store a lease; its units leave the leases they belonged to."""
        key = lease_key(lease.holder, lease.token)
        before, had = self.leases.get(key), self._units_of(key)
        for unit in lease.units - had:
            known = self.units.get(unit, StoredUnit())
            self._shrink(known.lease, unit)
            self.units[unit] = StoredUnit(key, max(known.floor, lease.token))
            self._given.add(unit)
        units = lease.units | had
        lasts_s = None if lease.expires_at is None else lease.expires_at - now
        if before is None or lasts_s is not None or before.lease.units != units:
            self.leases[key] = StoredLease(replace(lease, units=units), lasts_s, "", "")
            self.ends[key] = lease.expires_at

    def drop(self, holder: Holder, token: Token) -> None:
        """Remove a lease; its units keep their last token."""
        key = lease_key(holder, token)
        for unit in self._units_of(key):
            known = self.units.get(unit, StoredUnit(key, token))
            # A unit that was not read belongs to the lease that names it.
            self._units_were.setdefault(unit, known)
            self.units[unit] = replace(known, lease="")
        self.leases.pop(key, None)

    def written(self, write: str) -> dict[str, StoredLease | None]:
        """The leases that `write` changed, as it left them; None: removed."""
        found: dict[str, StoredLease | None] = {}
        for key in self._leases_were.keys() | self.leases.keys():
            after = self.leases.get(key)
            if after is not self._leases_were.get(key):
                found[key] = after and replace(after, given=after.given or write, write=write)
        return found

    def record(self, entries: Iterable[HistoryEntry]) -> None:
        """Add to the history, the oldest first."""
        self.entries += entries

    def actions(self, table: str, mark: Mapping[str, Any], write: str) -> list[Item]:
        """The items of the transaction named `write`; empty when there is nothing to change.

        `mark` is the key of the history entry, which is written once and never changed: what tells
        whether the transaction was carried out.
        """
        found = [self._put_head(write)] if self.is_led else []
        for key in sorted(self._leases_were.keys() | self.leases.keys()):
            before, after = self._leases_were.get(key), self.leases.get(key)
            if before is not after:
                found.append(_change_lease(key, before, after, write))
        for unit in sorted(self.units):
            was, now = self._units_were.get(unit), self.units[unit]
            if was != now or unit in self._given:
                found.append(_change_unit(unit, was, now))
        if self.entries:
            story = {**mark, **_story(self.entries, write)}
            found.append({"Put": {"Item": story, **_unchanged("")}})
        for action in found:
            next(iter(action.values()))["TableName"] = table
        return found

    @property
    def is_led(self) -> bool:
        """Whether the head is written."""
        return self.advanced or (self.head, self.home) != (self.found.head, self.found.home)

    def _put_head(self, write: str) -> Item:
        if self.head.newest < self.found.head.newest:
            raise errors.StoreUnavailable(
                f"the store would go back from {self.found.head.newest} to {self.head.newest}"
            )
        item = head_item(StoredHead(self.head, self.home, write))
        return {"Put": {"Item": item, **_unchanged(self.found.write)}}

    def _rows(self, key: str) -> list[Lease]:
        units = sorted(self._units_of(key))
        return [replace(self._seen(key), units=frozenset({unit})) for unit in units]

    def _units_of(self, key: str) -> frozenset[UnitId]:
        """The units of a lease that point to it, those not read among them."""
        named = self.leases[key].lease.units if key in self.leases else frozenset()
        return frozenset(one for one in named if self.units.get(one, StoredUnit(key)).lease == key)

    def _seen(self, key: str) -> Lease:
        return replace(self.leases[key].lease, expires_at=self.ends[key])

    def _shrink(self, key: str, unit: UnitId) -> None:
        stored = self.leases.get(key)
        left = frozenset() if stored is None else stored.lease.units - {unit}
        if stored is not None and left:
            self.leases[key] = replace(stored, lease=replace(stored.lease, units=left))
        else:
            self.leases.pop(key, None)


def lease_key(holder: Holder, token: Token) -> str:
    """The sort key of a lease: all of one holder follow each other, by token."""
    return f"{holder} {_sortable(token)}"


def key_of(pk: str, sk: str) -> Item:
    """A key as the service takes it."""
    return {"pk": {"S": pk}, "sk": {"S": sk}}


HEAD_KEY = key_of(STORE, "head")


def head_item(stored: StoredHead) -> Item:
    """The head as an item."""
    head = stored.head
    suspended = {} if head.suspended is None else {"suspended": {"S": str(head.suspended)}}
    return {
        **HEAD_KEY,
        "format": {"N": str(FORMAT)},
        "epoch": {"N": str(head.newest.epoch)},
        "counter": {"N": str(head.newest.counter)},
        "adopted": {"N": str(head.adopted)},
        "home": {"S": stored.home},
        "write": {"S": stored.write},
        **suspended,
    }


def read_head(item: Mapping[str, Any]) -> StoredHead:
    """The head in an item. Raises `SettingsInvalid` when it makes no sense."""
    try:
        _check(f"another format than {FORMAT}", holds=_number(item, "format") == FORMAT)
        newest = Token(_number(item, "epoch"), _number(item, "counter"))
        suspended = Token.parse(item["suspended"]["S"]) if "suspended" in item else None
        head = decisions.Head(newest, _number(item, "adopted"), suspended)
        return StoredHead(head, item["home"]["S"], item["write"]["S"])
    except _UNREADABLE as error:
        raise unreadable("store head", repr(error)) from error


def read_lease(item: Mapping[str, Any]) -> StoredLease:
    """The lease in an item. Raises `SettingsInvalid` when it makes no sense."""
    try:
        _check("units that are no list", holds=isinstance(item["units"]["SS"], list))
        lease = Lease(
            frozenset(UnitId(unit) for unit in item["units"]["SS"]),
            Holder.parse(item["holder"]["S"]),
            Token.parse(item["token"]["S"]),
            float(item["expires_at"]["N"]) if "expires_at" in item else None,
        )
        key = lease_key(lease.holder, lease.token)
        _check("another lease than its key says", holds=key == item["sk"]["S"])
        lasts_s = float(item["lasts_s"]["N"]) if "lasts_s" in item else None
        return StoredLease(lease, lasts_s, item["given"]["S"], item["write"]["S"])
    except _UNREADABLE as error:
        raise unreadable(f"lease {item.get('sk')}", repr(error)) from error


def read_unit(item: Mapping[str, Any]) -> StoredUnit:
    """The unit in an item. Raises `SettingsInvalid` when it makes no sense."""
    try:
        lease = item["lease"]["S"] if "lease" in item else ""
        return StoredUnit(lease, Token.parse(item["floor"]["S"]))
    except _UNREADABLE as error:
        raise unreadable(f"unit {item.get('sk')}", repr(error)) from error


def read_story(item: Mapping[str, Any]) -> list[HistoryEntry]:
    """What one transaction did, the oldest first. Raises `SettingsInvalid`."""
    try:
        return [
            HistoryEntry(
                float(one["at"]),
                Event(one["event"]),
                str(one["holder"]),
                Token.parse(one["token"]),
                tuple(UnitId(str(unit)) for unit in one["units"]),
                str(one["detail"]),
            )
            for one in json.loads(item["entries"]["S"])
        ]
    except _UNREADABLE as error:
        raise unreadable(f"history {item.get('sk')}", repr(error)) from error


def unreadable(what: str, why: str) -> errors.SettingsInvalid:
    """The answer of a table whose items make no sense: never that nothing is held."""
    return errors.SettingsInvalid(
        f"an item of the store's table cannot be understood: {what}: {why}",
        remedy="restore the table to a moment before (point-in-time recovery), name it in"
        " store.table and run `fleet store adopt`",
    )


def _change_lease(
    key: str, before: StoredLease | None, after: StoredLease | None, write: str
) -> Item:
    guard = _unchanged("" if before is None else before.write)
    if after is None:
        return {"Delete": {"Key": key_of(LEASE, key), **guard}}
    lease = after.lease
    item = {
        **key_of(LEASE, key),
        "holder": {"S": str(lease.holder)},
        "token": {"S": str(lease.token)},
        "units": {"SS": sorted(lease.units)},
        "given": {"S": after.given or write},
        "write": {"S": write},
    }
    if lease.expires_at is not None:
        item["expires_at"] = {"N": repr(lease.expires_at)}
        item["lasts_s"] = {"N": repr(after.lasts_s)}
    return {"Put": {"Item": item, **guard}}


def _unchanged(write: str) -> Item:
    """The condition that an item is as `write` left it; "": that there is none."""
    if not write:
        return {"ConditionExpression": "attribute_not_exists(pk)"}
    return {
        "ConditionExpression": "#w = :w",
        "ExpressionAttributeNames": {"#w": "write"},
        "ExpressionAttributeValues": {":w": {"S": write}},
    }


def _change_unit(unit: UnitId, before: StoredUnit | None, after: StoredUnit) -> Item:
    names = {"#l": "lease"}
    values: Item = {}
    guard = "attribute_not_exists(#l)"
    if before is not None and before.lease:
        guard, values = "#l = :was", {":was": {"S": before.lease}}
    if after.lease:
        update = "SET #l = :lease, #f = :floor"
        values[":lease"] = {"S": after.lease}
        values[":floor"] = {"S": _sortable(after.floor)}
        names["#f"] = "floor"
    else:
        update = "REMOVE #l"
    return {
        "Update": {
            "Key": key_of(UNIT, unit),
            "UpdateExpression": update,
            "ConditionExpression": guard,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
        }
    }


def _story(entries: Sequence[HistoryEntry], write: str) -> Item:
    told = [
        {
            "at": one.at,
            "event": str(one.event),
            "holder": one.holder,
            "token": str(one.token),
            "units": list(one.units),
            "detail": one.detail,
        }
        for one in entries
    ]
    return {
        "entries": {"S": json.dumps(told, separators=(",", ":"), ensure_ascii=False)},
        "write": {"S": write},
        "forget_at": {"N": str(int(entries[-1].at) + HISTORY_KEPT_S)},
    }


def _number(item: Mapping[str, Any], name: str) -> int:
    number = int(item[name]["N"])
    if number < 0:
        raise ValueError(f"{name} {number} is no count")
    return number


def _sortable(token: Token) -> str:
    """A token as text that sorts as tokens do."""
    return f"{token.epoch:020d}.{token.counter:020d}"


def _check(otherwise: str, *, holds: bool) -> None:
    if not holds:
        raise ValueError(otherwise)
