"""When a lease with a ttl is over: the only place that reads clocks for leases (B49).

A lease is over once this observer has seen it unchanged for its whole length, on its own monotonic
clock. No wall clock has a say: not the holder's, whose end is stored for people to read, and not
ours, which anybody may set. Every grant and renewal gives a lease a new mark; one that is seen for
the first time has its whole length before it, whenever it was written.

So who holds and who waits never disagree: the holder counts from before its write, an observer from
after it. A process that begins anew waits for as long as the lease lasts, and longer for nothing.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

from fleet.core.clock import Clock
from fleet.core.model import Lease

UNSTATED_S = 600.0
"""Length, s, of a lease that a version wrote which stored none: the longest there was."""
REMEMBERED = 65_536
"""Marks remembered, the newest; one that is forgotten begins anew."""


@dataclass(frozen=True, slots=True)
class Term:
    """How long a lease was given for, s, and the mark of the write that gave it."""

    lasts_s: float
    mark: str


class Observation:
    """What this process has seen of leases. Safe for threads."""

    def __init__(self, clock: Clock, boot: str = "") -> None:
        """`boot`: where all who write the store are processes of one host, its boot id: they share
        one monotonic clock then, and a mark tells when it was made. "": they may not."""
        self._clock = clock
        self._boot = boot
        self._lock = threading.Lock()
        self._since: OrderedDict[str, float] = OrderedDict()

    def give(self, lease: Lease, now: float) -> Term | None:
        """The term of a lease that is about to be written, counted from this moment; `now`: what
        its end was reckoned from. None: it has no ttl.
        """
        if lease.expires_at is None:
            return None
        at = self._clock.monotonic()
        head = f"{self._boot}/{at!r}/" if self._boot else ""
        term = Term(lease.expires_at - now, f"{head}{secrets.token_hex(8)}")
        self.begin(term.mark, at)
        return term

    def begin(self, mark: str, at: float | None = None) -> None:
        """Count from `at`, monotonic; None: from now. A mark that is known counts from before."""
        moment = self._clock.monotonic() if at is None else at
        with self._lock:
            self._first(mark, moment)

    def seen(self, lease: Lease, term: Term | None, *, asked_at: float | None = None) -> Lease:
        """The lease as read, with its end on our own wall clock: not after it, it is over.

        `asked_at`: monotonic time at which the answer was asked for; None: it is of now.
        """
        if lease.expires_at is None:
            return lease
        if term is None:
            mark = f"{lease.holder} {lease.token} {lease.expires_at!r}"
            term = Term(UNSTATED_S, mark)
        at = self._clock.monotonic()
        with self._lock:
            since = self._first(term.mark, at)
        left_s = term.lasts_s - ((at if asked_at is None else asked_at) - since)
        return replace(lease, expires_at=self._clock.now() + left_s)

    def over_s(self, term: Term) -> float:
        """For how long, s, it has been over; negative while it is in force."""
        at = self._clock.monotonic()
        with self._lock:
            return at - self._first(term.mark, at) - term.lasts_s

    def _first(self, mark: str, at: float) -> float:
        """When it was seen first. The lock is held."""
        known = self._since.get(mark)
        if known is None:
            known = self._since[mark] = self._written(mark, at)
            while len(self._since) > REMEMBERED:
                self._since.popitem(last=False)
        self._since.move_to_end(mark)
        return known

    def _written(self, mark: str, at: float) -> float:
        """When it was written, where that is told by our own clock; else `at`."""
        boot, _, rest = mark.partition("/")
        if not self._boot or boot != self._boot:
            return at
        try:
            return min(at, float(rest.partition("/")[0]))
        except ValueError:
            return at
