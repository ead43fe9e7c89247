"""How long this process has seen leases unchanged: what ends a lease without trusting wall clocks.

Safe for threads. Only leases with a ttl are remembered, and only those that are still there.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from fleet.clock import Clock
from fleet.stores.dynamodb_sheet import StoredLease

SKEW_S = 600.0
"""Two clocks that AWS takes signatures of differ by less, s: five minutes each from its own."""


class Watch:
    """When each lease was first seen as it is."""

    def __init__(self, clock: Clock) -> None:
        """`clock` measures; its wall clock only ends what is long over."""
        self._clock = clock
        self._lock = threading.Lock()
        self._since: dict[str, tuple[str, float]] = {}

    def begin(self, written: Mapping[str, StoredLease | None]) -> None:
        """Watch what was just written, and forget what was removed (None)."""
        now = self._clock.monotonic()
        with self._lock:
            for key, stored in written.items():
                if stored is None or stored.lasts_s is None:
                    self._since.pop(key, None)
                elif self._since.get(key, ("", now))[0] != stored.given:
                    self._since[key] = (stored.given, now)

    def keep_only(self, keys: Collection[str]) -> None:
        """Forget all leases but these."""
        with self._lock:
            self._since = {key: seen for key, seen in self._since.items() if key in keys}

    def ends(self, found: Mapping[str, StoredLease], asked_at: float) -> dict[str, float | None]:
        """When each lease that was read ends, on our wall clock; it is over when that has passed.

        `asked_at` is the monotonic time before it was asked for: until then it is known unchanged.
        """
        return {key: self._end(key, stored, asked_at) for key, stored in found.items()}

    def _end(self, key: str, stored: StoredLease, asked_at: float) -> float | None:
        stated, lasts_s = stored.lease.expires_at, stored.lasts_s
        if stated is None or lasts_s is None:
            return None
        now = self._clock.now()
        with self._lock:
            given, since = self._since.get(key, ("", 0.0))
            if given != stored.given:
                since = self._clock.monotonic()
                self._since[key] = (stored.given, since)
        left_s = lasts_s - (asked_at - since)
        if left_s <= 0:
            return min(stated, now)
        if stated > now or stated + SKEW_S <= now:
            return stated
        return now + left_s
