"""Time as something passed in, so that leases and deadlines can be tested without waiting.

`Clock.now` is the wall clock, for what is stored and shown; `Clock.monotonic` never goes back, for
durations within one process. Neither may stand in for the other.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never decreases."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never decreases."""
        return time.monotonic()


class SteadyClock:
    """The wall clock as it was once, carried on by the monotonic one: whoever sets the machine's
    clock changes nothing of what is timed by it (B49).
    """

    def __init__(self, clock: Clock | None = None) -> None:
        """Reads the wall clock, once."""
        self._clock = clock or SystemClock()
        self._offset_s = self._clock.now() - self._clock.monotonic()

    def now(self) -> float:
        """Seconds since the epoch, UTC, as far as was known at the start."""
        return self._offset_s + self._clock.monotonic()

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never decreases."""
        return self._clock.monotonic()


class ManualClock:
    """A clock that moves only when told to; both readings move together."""

    def __init__(self, start: float) -> None:
        """`start` is the first reading of `now`, seconds since the epoch."""
        self._start = start
        self._now = start

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        return self._now

    def monotonic(self) -> float:
        """Seconds since this clock was made."""
        return self._now - self._start

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`. Raises ValueError when that would be backwards."""
        if seconds < 0:
            raise ValueError(f"a clock does not go back by {-seconds} s")
        self._now += seconds
