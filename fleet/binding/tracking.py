"""What the coordinator remembers of a claim between two looks: only what is safe to forget.

Operation numbers, pauses and since when something was seen. A coordinator that starts anew begins
with none of it and comes to the same decisions: numbers count up to the newest operation the node
knows, and a pause or a grace period begins again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from fleet.model import Token


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
    failing_since: float | None = None
    why: str = ""
    """The last decision, in words."""

    def under(self, token: Token | None, incarnation: str) -> None:
        """Begin anew under another token; order again what a restarted node may not know of."""
        if token != self.token:
            self.token, self.numbers, self.sent = token, {}, set()
        if incarnation != self.incarnation:
            self.incarnation, self.sent = incarnation, set()

    def rewind(self) -> None:
        """The clock went back: pauses and grace periods begin again."""
        self.refused, self.refused_until = "", 0.0
        self.unused_since = self.failing_since = None

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
