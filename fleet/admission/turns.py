"""Whose review is judged next: who has cost least so far, and of those the cheapest.

Judging takes processor time with the size of an object, from 0.3 ms to a fifth of a second, and
there is one processor for it. So costly reviews are judged one at a time, with a place left beside
them, and a usual one never waits for more than what is being judged already.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

COSTLY = 2_000
"""Parts of a body (`parts`) from which on its review counts as costly: about 10 ms."""
TOGETHER = 2
"""Reviews judged at once; of the costly ones one less."""
SOURCES_MAX = 1024
"""Sources whose use of the processor is remembered."""
HALVED_S = 10.0
"""Time, s, after which half of what a source has used is forgotten."""


def parts(body: bytes) -> int:
    """What a body costs to read and to judge, at most: lists, objects and entries in it.

    Counted in the text, so that what is too much is never parsed.
    """
    return body.count(b",") + body.count(b"[") + body.count(b"{")


class Abandoned(Exception):
    """Who asked has gone, or had to go."""


@dataclass(slots=True, eq=False)
class _Ticket:
    who: Any
    source: str
    cost: int
    number: int
    abandoned: bool = False


class Turns:
    """The order in which reviews are judged. Safe for threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[_Ticket] = []
        self._judging: list[_Ticket] = []
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._count = 0

    @contextmanager
    def turn(self, who: Any, source: str, cost: int, *, wait_s: float) -> Iterator[None]:
        """While it is the turn of `who`. Raises `Abandoned` when it is not to be any more.

        `source`: who the processor time counts for; `cost`: as `parts` tells.
        """
        ticket = self._waited(who, source, cost, wait_s)
        begun = time.thread_time()
        try:
            yield
        finally:
            with self._changed:
                self._judging.remove(ticket)
                self._spend(source, time.thread_time() - begun)
                self._changed.notify_all()

    def abandon(self, who: Any) -> None:
        """Whoever waits under this name need not any more."""
        with self._changed:
            for ticket in self._waiting:
                if ticket.who is who:
                    ticket.abandoned = True
            self._changed.notify_all()

    def _waited(self, who: Any, source: str, cost: int, wait_s: float) -> _Ticket:
        with self._changed:
            self._count += 1
            ticket = _Ticket(who, source, cost, self._count)
            self._waiting.append(ticket)
            try:
                came = self._changed.wait_for(
                    lambda: ticket.abandoned or self._next() is ticket, timeout=wait_s
                )
                if ticket.abandoned or not came:
                    raise Abandoned
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
            self._judging.append(ticket)
            return ticket

    def _next(self) -> _Ticket | None:
        if len(self._judging) >= TOGETHER:
            return None
        busy = sum(one.cost >= COSTLY for one in self._judging) >= TOGETHER - 1
        able = [one for one in self._waiting if not one.abandoned]
        able = [one for one in able if one.cost < COSTLY] if busy else able
        return min(able, key=self._rank, default=None)

    def _rank(self, ticket: _Ticket) -> tuple[bool, float, int, int]:
        """Usual reviews first; among equals the source that used least, the cheapest, the first."""
        return (ticket.cost >= COSTLY, self._spent(ticket.source), ticket.cost, ticket.number)

    def _spent(self, source: str) -> float:
        used_s, at = self._used.get(source, (0.0, 0.0))
        return float(used_s * 0.5 ** ((time.monotonic() - at) / HALVED_S))

    def _spend(self, source: str, spent_s: float) -> None:
        self._used[source] = (self._spent(source) + spent_s, time.monotonic())
        self._used.move_to_end(source)
        while len(self._used) > SOURCES_MAX:
            self._used.popitem(last=False)
