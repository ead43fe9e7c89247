"""Where instances of ours have lain, and when: whom a fault of one of them concerns (B70).

The driver names an instance by a number that it gives out again, so that a fault logged an hour ago
must not be held against the partition that has its number now. Kept for one boot.

A number nobody has a stay for at that time is somebody else's instance or forgotten: such a fault
concerns the whole accelerator, as does one whose time is not known and whose number has been used
in several places.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleet.core.model import BootId, UnitId, Uuid
from fleet.node.journal.journal import Commit, Journal

_KEY = "stays:"
KEPT = 64
"""Stays kept for each accelerator: those of one number at one place are one."""
MARGIN_S = 10.0
DRIFT = 1e-4
"""How far the clocks of log and node may be apart, s and s per s since boot."""


@dataclass(frozen=True, slots=True)
class Stay:
    """An instance over some units. Times: s since boot; `until` None: still there."""

    gi: int
    units: tuple[UnitId, ...]
    since: float
    until: float | None = None

    def had(self, at_s: float) -> bool:
        """Whether it may have been there at that time of the log's clock."""
        slack_s = MARGIN_S + at_s * DRIFT
        return self.since - slack_s <= at_s and (self.until is None or at_s <= self.until + slack_s)


def begin(commit: Commit, accelerator: Uuid, boot: BootId, stay: Stay) -> None:
    """Keep that an instance of ours is there, with the transaction that records it."""
    found = _read(commit.kept(f"{_KEY}{accelerator}"), boot)
    # One elsewhere with this number is gone, whoever removed it.
    found = [
        replace(one, until=stay.since)
        if one.gi == stay.gi and one.units != stay.units and one.until is None
        else one
        for one in found
    ]
    before = next((one for one in reversed(found) if one.gi == stay.gi), None)
    if before is not None and before.units == stay.units:
        found.remove(before)
        stay = replace(stay, since=before.since)
    _write(commit, accelerator, boot, [*found, stay])


def end(commit: Commit, accelerator: Uuid, boot: BootId, stay: Stay) -> None:
    """Keep when it went, with the transaction that drops its record."""
    found = _read(commit.kept(f"{_KEY}{accelerator}"), boot)
    ended = [
        replace(one, until=stay.until)
        if (one.gi, one.units) == (stay.gi, stay.units) and one.until is None
        else one
        for one in found
    ]
    if ended != found:
        _write(commit, accelerator, boot, ended)


def struck(
    journal: Journal, accelerator: Uuid, boot: BootId, *, gi: int, at_s: float | None
) -> frozenset[UnitId] | None:
    """The units that a fault of instance `gi` at that time concerns; None: all of them."""
    mine = [one for one in _read(journal.meta.get(f"{_KEY}{accelerator}"), boot) if one.gi == gi]
    if at_s is None:
        places = {one.units for one in mine}
        return frozenset(next(iter(places))) if len(places) == 1 else None
    there = [one for one in mine if one.had(at_s)]
    return frozenset(unit for one in there for unit in one.units) if there else None


def _read(kept: str | None, boot: BootId) -> list[Stay]:
    told = json.loads(kept) if kept else {}
    if told.get("boot_id") != boot:
        return []
    return [
        Stay(gi, tuple(UnitId(unit) for unit in units), since, until)
        for gi, units, since, until in told["stays"]
    ]


def _write(commit: Commit, accelerator: Uuid, boot: BootId, found: Sequence[Stay]) -> None:
    rows = [(one.gi, one.units, one.since, one.until) for one in found[-KEPT:]]
    commit.set_meta(f"{_KEY}{accelerator}", json.dumps({"boot_id": boot, "stays": rows}))
