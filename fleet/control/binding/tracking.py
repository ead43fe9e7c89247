"""What the coordinator remembers of a claim between two looks: only what is safe to forget.

Operation numbers, pauses and since when something was seen. A coordinator that starts anew begins
with none of it and comes to the same decisions: numbers count up to the newest operation the node
knows, and a pause or a grace period begins again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from fleet.control.binding.decisions import BUSY_S
from fleet.core.model import Token

LEAP_S = 60.0
"""A longer time, s, between two steps is a clock that was set, or a sleep: nobody watched."""
UNDOING_MAX_S = 8.0
"""Longest pause, s, before leases that could not be given back are tried again."""
STUCK_S = 25.0
"""Time, s, in which those elsewhere are left alone, for what the claim needs now."""


@dataclass
class Watch:
    """Time, s, that we have watched for: what the clock says, without its leaps."""

    seconds: float = 0.0
    _at: float | None = None

    def step(self, now: float) -> None:
        """It is `now`, seconds since the epoch of a clock that anybody may set."""
        passed_s = 0.0 if self._at is None else now - self._at
        if 0.0 <= passed_s <= LEAP_S:
            self.seconds += passed_s
        self._at = now


@dataclass
class Track:
    """One claim."""

    token: Token | None = None
    """The lease's token that the operations below are for."""
    incarnation: str = ""
    """The node's, when they were sent."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Number of the newest operation by device UUID."""
    sent: set[str] = field(default_factory=set)
    """UUIDs of devices whose newest operation was taken in by the node."""
    refused: str = ""
    refused_until: float = 0.0
    unused_since: float | None = None
    """By the time watched, as the next ones."""
    pending_since: float | None = None
    left_s: float = 0.0
    """Time, s, that it had left then; see `Facts.left_s`."""
    ordered_since: dict[str, float] = field(default_factory=dict)
    """Since when the newest operation is in work, by device UUID."""
    pledged_since: float = 0.0
    pledge: str = ""
    """The pledge seen on it last, as it is written."""
    allocation: object = None
    """What it was given, and when."""
    followed: bool = True
    """Whether it was given that while we watched."""
    failing_since: float | None = None
    undoing_s: float = 0.0
    """Pause, s, after leases that could not be given back; 0.0: they could."""
    stuck: frozenset[Token] = frozenset()
    """Tokens of leases that could not be given back when that was tried last."""
    stuck_since: float = 0.0
    why: str = ""
    """The last decision, in words."""
    told: str = ""
    """What its owners were told that it waits for."""

    def under(self, token: Token | None, incarnation: str) -> None:
        """Begin anew under another token; order again what a restarted node may not know of."""
        if token != self.token:
            self.token, self.numbers, self.sent = token, {}, set()
            self.ordered_since = {}
        if incarnation != self.incarnation:
            self.incarnation, self.sent = incarnation, set()
            self.ordered_since = {}

    def rewind(self) -> None:
        """The clock went back: pauses and grace periods begin again."""
        self.refused, self.refused_until = "", 0.0
        self.unused_since = self.failing_since = None

    def taken_in(self, uuid: str, watched_s: float) -> None:
        """The node has the newest operation about a device."""
        self.sent.add(uuid)
        self.ordered_since.setdefault(uuid, watched_s)

    def left(self, tokens: Iterable[Token], watched_s: float) -> None:
        """Leases of these tokens could not be given back."""
        self.stuck, self.stuck_since = frozenset(tokens), watched_s
        pause_s = min(UNDOING_MAX_S, max(BUSY_S, 2 * self.undoing_s))
        self.undoing_s = pause_s if self.stuck else 0.0

    def is_stuck(self, token: Token, watched_s: float) -> bool:
        """Whether it is too early to try this one again."""
        return token in self.stuck and watched_s - self.stuck_since < STUCK_S

    def given(self, allocation: object) -> None:
        """It was given this; another allocation than before is one that we saw come."""
        if self.allocation is not None and allocation != self.allocation:
            self.followed, self.pending_since = True, None
        self.allocation = allocation

    def pledged(self, text: str, watched_s: float) -> float:
        """How long, s, this very pledge has been seen on it."""
        if text != self.pledge:
            self.pledge, self.pledged_since = text, watched_s
        return watched_s - self.pledged_since

    def operation(self, uid: str, uuid: str) -> str:
        """Name of the newest operation about a device."""
        return f"claim/{uid}/{self.token}/{uuid}/{self.numbers.get(uuid, 0)}"


class Agenda:
    """Which claims are to be looked at when. Times are seconds of one clock; the earliest wins."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._queue: list[tuple[float, str]] = []

    def at(self, uid: str, when: float) -> None:
        """Look at `uid` at `when`, unless it is due earlier anyway."""
        known = self._due.get(uid)
        if known is None or when < known:
            self._due[uid] = when
            heapq.heappush(self._queue, (when, uid))

    def again(self, uids: Iterable[str], now: float) -> None:
        """Look at all of these now."""
        for uid in uids:
            self.at(uid, now)

    def take(self, now: float, limit: int) -> list[str]:
        """At most `limit` claims that are due, the longest overdue first."""
        found: list[str] = []
        while self._queue and self._queue[0][0] <= now and len(found) < limit:
            when, uid = heapq.heappop(self._queue)
            if self._due.get(uid) == when:
                del self._due[uid]
                found.append(uid)
        return found

    def rewind(self, now: float) -> None:
        """The clock went back: everything that was due some time is due now."""
        self._queue = [(now, uid) for uid in self._due]
        self._due = dict.fromkeys(self._due, now)
