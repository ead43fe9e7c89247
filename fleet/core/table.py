"""A state table as data: rows of (state, event, required facts) to state. Pure.

The first row whose facts all hold is taken. No row: `IllegalTransition`, and nothing has changed.
Rows are read by the node, by the diagrams in the README and by the exhaustive search, which also
runs them broken on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from fleet.core import errors

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)
F = TypeVar("F", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Row(Generic[S, E, F]):
    """In `state`, `event` leads to `to` when all of `requires` hold."""

    state: S
    event: E
    to: S
    requires: frozenset[F] = frozenset()


@dataclass(frozen=True)
class Table(Generic[S, E, F]):
    """An ordered set of rows; earlier rows win."""

    name: str
    rows: tuple[Row[S, E, F], ...]
    observers: list[Callable[[Row[S, E, F]], object]] = field(
        default_factory=list, compare=False, repr=False
    )
    """Told of each row taken, such as what counts which rows were ever taken; empty in service."""

    def row(self, state: S, event: E, facts: AbstractSet[F]) -> Row[S, E, F]:
        """The row taken. Raises `IllegalTransition` naming state, event and the facts missing."""
        missing: list[frozenset[F]] = []
        for row in self.matching(state, event):
            if row.requires <= facts:
                for observe in self.observers:
                    observe(row)
                return row
            missing.append(row.requires - facts)
        raise errors.IllegalTransition(
            f"{self.name}: {event} is not possible in {state}" + _explain(missing),
            state=state,
            event=event,
        )

    def matching(self, state: S, event: E) -> Iterator[Row[S, E, F]]:
        """All rows for (state, event), in order of precedence."""
        return (row for row in self.rows if row.state == state and row.event == event)

    def accepts(self, state: S, event: E) -> bool:
        """Whether any row exists for (state, event), whatever the facts."""
        return next(self.matching(state, event), None) is not None


def _explain(missing: list[frozenset[F]]) -> str:
    if not missing:
        return ""
    needed = " or ".join(", ".join(sorted(facts)) for facts in missing)
    return f" without: {needed}"
