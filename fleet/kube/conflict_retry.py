"""A write that others may race with: read, decide, write, and decide again when a guard failed.

The decision is made anew from what the server holds now, never repeated from an older reading
(B5). After an answer that leaves open whether the write was carried out, the server is read before
anything else is tried. Nothing else is retried: a refused body stays refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import sleep
from typing import TypeVar

from fleet.core import errors
from fleet.kube.base import Cluster, Object

Body = TypeVar("Body")

ATTEMPTS = 5
CONFLICT_PAUSE_S = 0.02
"""First pause, s, after a conflict, doubled each time: somebody else has just succeeded."""

UNAVAILABLE_PAUSE_S = 0.1
"""First pause, s, after no answer, doubled each time."""

PAUSE_MAX_S = 2.0


@dataclass(frozen=True, slots=True)
class Settled:
    """How it ended: `found` is the object as last read or as the last write returned it."""

    found: Object
    writes: int
    """Writes sent; 0: nothing needed to be done."""
    confirmed: bool
    """Whether the last write was answered. False with `writes` > 0: its answer was lost, and a
    later reading needed nothing more."""


def settle(
    cluster: Cluster,
    read: Callable[[Cluster], Object],
    decide: Callable[[Object], Body | None],
    write: Callable[[Cluster, Body], Object],
    *,
    attempts: int = ATTEMPTS,
    pause: Callable[[float], None] = sleep,
) -> Settled:
    """Bring the object that `read` returns to where `decide` returns None. Bounded.

    `decide` is pure: the body to write, or None when nothing is needed. `write` must carry a guard
    (resourceVersion) or be idempotent. Errors: after `attempts` writes the last `ApiConflict` or
    `ApiUnavailable` (field ``uncertain``: whether a write may have been carried out); all other
    errors of `read` and `write` at once.
    """
    writes = 0
    uncertain = False
    last: errors.ApiConflict | errors.ApiUnavailable | None = None
    for attempt in range(attempts):
        if last is not None:
            pause(_pause(last, attempt))
        try:
            found = read(cluster)
        except errors.ApiUnavailable as error:
            last = error
            continue
        body = decide(found)
        if body is None:
            return Settled(found, writes, confirmed=not uncertain)
        writes += 1
        try:
            return Settled(write(cluster, body), writes, confirmed=True)
        except errors.ApiConflict as error:
            last, uncertain = error, False
        except errors.ApiUnavailable as error:
            last, uncertain = error, True
    raise _given_up(last, uncertain=uncertain)


def _pause(last: errors.ApiConflict | errors.ApiUnavailable, attempt: int) -> float:
    if isinstance(last, errors.ApiConflict):
        return min(PAUSE_MAX_S, CONFLICT_PAUSE_S * 2.0 ** (attempt - 1))
    stated_s = float(last.fields.get("retry_after_s", 0.0))
    return min(PAUSE_MAX_S, max(stated_s, UNAVAILABLE_PAUSE_S * 2.0 ** (attempt - 1)))


def _given_up(
    last: errors.ApiConflict | errors.ApiUnavailable | None, *, uncertain: bool
) -> errors.FleetError:
    if last is None:
        return errors.InputInvalid("settle needs at least one attempt")
    kind = type(last)
    return kind(last.detail, remedy=last.remedy, **(last.fields | {"uncertain": uncertain}))
