"""Virtual time: a clock that stands still between events, and the queue of what is to happen."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

Action = Callable[[], object]
START = 1_800_000_000.25
"""The first moment, seconds since the epoch; off the whole second, as real moments are."""


@dataclass
class Timer:
    """One thing to happen. `cancel` takes it out; what has happened stays so."""

    at: float
    action: Action
    name: str = ""
    cancelled: bool = False

    def cancel(self) -> None:
        """Let it not happen."""
        self.cancelled = True


@dataclass
class Timeline:
    """A `fleet.core.clock.Clock` whose time passes only in `run_until`."""

    start: float = START
    each: list[Callable[[Timer], None]] = field(default_factory=list)
    """Called after every event, such as a checker."""
    happened: int = 0
    _now: float = field(init=False)
    _queue: list[tuple[float, int, Timer]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self._now = self.start

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._now

    def monotonic(self) -> float:
        """Seconds since the start."""
        return self._now - self.start

    def at(self, moment: float, action: Action, name: str = "") -> Timer:
        """Let `action` happen at `moment`, not before now; ties keep the order of the calls."""
        timer = Timer(max(moment, self._now), action, name)
        heapq.heappush(self._queue, (timer.at, next(self._order), timer))
        return timer

    def after(self, seconds: float, action: Action, name: str = "") -> Timer:
        """Let `action` happen `seconds` from now."""
        return self.at(self._now + seconds, action, name)

    def run_until(self, moment: float, done: Callable[[], bool] | None = None) -> bool:
        """Let everything happen up to `moment`; stops as soon as `done` says so, and tells."""
        while self._queue and self._queue[0][0] <= moment:
            at, _, timer = heapq.heappop(self._queue)
            if timer.cancelled:
                continue
            self._now = at
            timer.action()
            self.happened += 1
            for listener in self.each:
                listener(timer)
            if done is not None and done():
                return True
        self._now = max(self._now, moment)
        return done is not None and done()


@dataclass
class Wall:
    """The clock of one machine: it may be set to another time; what has passed it counts right."""

    timeline: Timeline
    ahead_s: float = 0.0

    def now(self) -> float:
        """Seconds since the epoch, as this machine has them."""
        return self.timeline.now() + self.ahead_s

    def monotonic(self) -> float:
        """Seconds since the start."""
        return self.timeline.monotonic()


@dataclass
class Alarm:
    """A step that is taken when it is due, and sooner when woken: never twice for one moment."""

    timeline: Timeline
    step: Callable[[], float]
    """Takes the step; returns when the next is due at the latest (inf: when woken)."""
    name: str = ""
    stopped: bool = False
    _timer: Timer | None = None

    def wake(self, delay_s: float = 0.0) -> None:
        """Step within `delay_s` seconds."""
        self.due(self.timeline.now() + delay_s)

    def due(self, moment: float) -> None:
        """Step at `moment` at the latest."""
        if self.stopped or moment == float("inf"):
            return
        if self._timer is not None and not self._timer.cancelled:
            if self._timer.at <= moment:
                return
            self._timer.cancel()
        self._timer = self.timeline.at(moment, self._fire, self.name)

    def stop(self) -> None:
        """Never again."""
        self.stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        self._timer = None
        if not self.stopped:
            self.due(self.step())
