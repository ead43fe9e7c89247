"""The catalogue of quarantine reasons: what each code means, who may lift it, what to do. Pure.

A reason enters a unit's record only through `make`, so that a code nobody can explain to an
operator, or that no rule knows how to lift, cannot be stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from fleet.core import errors
from fleet.core.model import Reason, Source
from fleet.devices.health import tables


@dataclass(frozen=True, slots=True)
class Entry:
    """One code of the catalogue. `liftable`: a full fresh pass may lift it without an operator."""

    code: str
    text: str
    liftable: bool
    remedy: str
    source: str
    """Document the entry follows."""


CATALOGUE: Mapping[str, Entry] = {
    row["code"]: Entry(**row) for row in tables.rows("reasons", "reason")
}


def entry(code: str) -> Entry:
    """The catalogue's entry. Raises `InputInvalid` naming the nearest code."""
    found = CATALOGUE.get(code)
    if found is None:
        near = get_close_matches(code, CATALOGUE, n=1, cutoff=0.0)
        raise errors.InputInvalid(
            f"there is no quarantine reason {code!r}; the nearest is {near[0]!r}",
            remedy=f"use one of: {', '.join(sorted(CATALOGUE))}",
            code=code,
            nearest=near[0],
        )
    return found


def make(code: str, source: Source, *, detail: str = "", since: float, remedy: str = "") -> Reason:
    """A reason of this code, open since `since` (seconds since the epoch).

    `detail` holds the facts (default: the catalogue's text);
    `remedy` replaces the catalogue's where the caller knows better. Raises `InputInvalid` on an
    unknown code.
    """
    found = entry(code)
    return Reason(
        code=found.code,
        source=source,
        liftable=found.liftable,
        detail=detail or found.text,
        remedy=remedy or found.remedy,
        since=since,
    )
