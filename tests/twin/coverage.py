"""What stories have visited: rows of the two tables, kinds of trouble, and both together.

A triple is (state, event, trouble in force at that node at the time). Rows that no story can take
stand in `UNREACHABLE` with the reason; a row that stands there and is taken fails the run, as does
one that stands nowhere and is never taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fleet.core import claim_states, unit_states
from fleet.core.table import Row, Table
from tests.twin.kinds import KINDS, NONE

TABLES: tuple[Table[Any, Any, Any], ...] = (unit_states.TABLE, claim_states.TABLE)
IN_FORCE_S = 20.0
"""How long trouble counts as in force after it struck."""
Key = tuple[str, int]
"""Name of a table and index of a row in it."""


def named(key: Key) -> str:
    """A row in words."""
    row = next(t for t in TABLES if t.name == key[0]).rows[key[1]]
    facts = f" [{', '.join(sorted(row.requires))}]" if row.requires else ""
    return f"{key[0]} {row.state} --{row.event}--> {row.to}{facts}"


_SWEPT = "the product takes trust from CLEAN and IN_USE only: what is in work is judged by its wipe"
_BARE = "a unit in this state has no open reason: one that gets a reason is QUARANTINED"
_LIFTABLE = "a retest begins with liftable reasons, and a new one ends it; evidence comes first"
_GONE = "a node takes trust only where no worker of its own is left, and says so"
UNREACHABLE: Mapping[tuple[str, str, str, str], str] = {
    ("unit", "DIRTY", "TrustLost", "DIRTY"): _SWEPT,
    ("unit", "DIRTY", "TrustLost", "QUARANTINED"): _SWEPT,
    ("unit", "WIPING", "TrustLost", "DIRTY"): _SWEPT,
    ("unit", "WIPING", "TrustLost", "QUARANTINED"): _SWEPT,
    ("unit", "CHECKING", "TrustLost", "DIRTY"): _SWEPT,
    ("unit", "CHECKING", "TrustLost", "QUARANTINED"): _SWEPT,
    ("unit", "RETESTING", "TrustLost", "QUARANTINED"): _SWEPT,
    ("unit", "CLEAN", "TrustLost", "QUARANTINED"): _GONE,
    ("unit", "DIRTY", "NewBoot", "QUARANTINED"): _BARE,
    ("unit", "WIPING", "NewBoot", "QUARANTINED"): _BARE,
    ("unit", "CHECKING", "NewBoot", "QUARANTINED"): _BARE,
    ("unit", "CLEAN", "NewBoot", "QUARANTINED"): _BARE,
    ("unit", "RETESTING", "RetestPassed", "QUARANTINED"): _LIFTABLE,
    ("claim", "PREPARING", "Orphaned", "UNPREPARING"): "orphans are torn down by Unprepare",
    ("claim", "PREPARED", "Orphaned", "UNPREPARING"): "orphans are torn down by Unprepare",
}
"""By table, state, event and where the row leads."""


def keys() -> list[Key]:
    """All rows of the tables."""
    return [(table.name, index) for table in TABLES for index in range(len(table.rows))]


def excused(key: Key) -> str:
    """Why a row cannot be taken here, "" when it can."""
    row = next(t for t in TABLES if t.name == key[0]).rows[key[1]]
    return UNREACHABLE.get((key[0], str(row.state), str(row.event), str(row.to)), "")


@dataclass
class Weather:
    """Which trouble is in force where; `monotonic` in seconds."""

    monotonic: Callable[[], float]
    where: str = ""
    """The node that acts now."""
    _last: dict[str, tuple[float, str]] = field(default_factory=dict)

    def strike(self, kind: str, where: str) -> None:
        """Trouble struck a node, or "" for all."""
        self._last[where] = (self.monotonic(), kind)

    def in_force(self) -> str:
        """The newest trouble around the node that acts."""
        nothing = (float("-inf"), NONE)
        at, kind = max(self._last.get(self.where, nothing), self._last.get("", nothing))
        return kind if self.monotonic() - at <= IN_FORCE_S else NONE


@dataclass
class Coverage:
    """Counts of one story, or of many."""

    rows: Counter[Key] = field(default_factory=Counter)
    triples: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    """By table, state, event and kind."""
    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, other: Coverage) -> None:
        """Take another's counts in."""
        self.rows.update(other.rows)
        self.triples.update(other.triples)
        self.kinds.update(other.kinds)

    @contextmanager
    def watching(self, weather: Weather) -> Iterator[None]:
        """Count what happens within."""
        watched = [(table, self._observer(table, weather)) for table in TABLES]
        for table, observe in watched:
            table.observers.append(observe)
        try:
            yield
        finally:
            for table, observe in watched:
                table.observers.remove(observe)

    def _observer(
        self, table: Table[Any, Any, Any], weather: Weather
    ) -> Callable[[Row[Any, Any, Any]], object]:
        index = {id(row): number for number, row in enumerate(table.rows)}

        def observe(row: Row[Any, Any, Any]) -> None:
            self.rows[table.name, index[id(row)]] += 1
            self.triples[table.name, str(row.state), str(row.event), weather.in_force()] += 1

        return observe

    # --- what it comes to ---

    def untaken(self) -> list[Key]:
        """Rows that should have been taken, and were not."""
        return [key for key in keys() if not self.rows[key] and not excused(key)]

    def impossible(self) -> list[Key]:
        """Rows that were taken though they are said to be out of reach."""
        return [key for key in keys() if self.rows[key] and excused(key)]

    def unstruck(self) -> list[str]:
        """Kinds of trouble that never struck."""
        return [kind for kind in KINDS if not self.kinds[kind]]

    def lines(self) -> Iterator[str]:
        """The report."""
        every = [key for key in keys() if not excused(key)]
        taken = sum(1 for key in every if self.rows[key])
        pairs = {(key[0], str(row.state), str(row.event)) for key, row in _rows(every)}
        struck = sum(1 for kind in KINDS if self.kinds[kind])
        yield f"rows of the tables taken: {taken} of {len(every)}"
        yield f"kinds of trouble that struck: {struck} of {len(KINDS)}"
        possible = len(pairs) * (len(KINDS) + 1)
        yield f"(state, event, trouble) visited: {len(self.triples)} of {possible} in principle"
        yield from (f"never taken: {named(key)}" for key in self.untaken())
        yield from (f"out of reach, yet taken: {named(key)}" for key in self.impossible())
        yield from (f"never struck: {kind} ({KINDS[kind]})" for kind in self.unstruck())


def _rows(chosen: list[Key]) -> Iterator[tuple[Key, Row[Any, Any, Any]]]:
    for table in TABLES:
        for key in chosen:
            if key[0] == table.name:
                yield key, table.rows[key[1]]
