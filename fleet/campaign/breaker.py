"""The circuit breaker: stops starting when devices fail in numbers. Pure; a value, not a service.

It brakes acts (starts), never the release of devices: what runs finishes, leases go, results are
kept. It opens on a count *and* a fraction within a window, so that three faults among a thousand
devices stop nobody and the first three of three do. Only a person closes it (`resume`), and then
one device at a time proves that things are better. It remembers no backlog: after `resume`, the
campaign looks at the fleet as it is then (case B50).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from fleet.settings import CampaignPolicy


class Stance(StrEnum):
    """What the breaker lets through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class Breaker:
    """The breaker after what it has seen. All methods return a new one."""

    policy: CampaignPolicy
    stance: Stance = Stance.CLOSED
    seen: tuple[tuple[float, bool], ...] = ()
    """Devices finished in the window: (seconds since the epoch, failed)."""
    opened_at: float | None = None

    def record(self, now: float, *, failed: bool) -> Breaker:
        """The breaker after a device finished at `now`."""
        since = now - self.policy.breaker_window_s
        seen = (*(entry for entry in self.seen if entry[0] > since), (now, failed))
        after = replace(self, seen=seen)
        if self.stance is Stance.HALF_OPEN:
            if failed:
                return replace(after, stance=Stance.OPEN, opened_at=now)
            return replace(after, stance=Stance.CLOSED, seen=(), opened_at=None)
        if self.stance is Stance.CLOSED and after.tripped:
            return replace(after, stance=Stance.OPEN, opened_at=now)
        return after

    @property
    def failures(self) -> int:
        """Failures within the window as of the last device that finished."""
        return sum(failed for _, failed in self.seen)

    @property
    def tripped(self) -> bool:
        """Whether count and fraction are both reached."""
        return (
            self.failures >= self.policy.breaker_failures
            and self.failures >= self.policy.breaker_fraction * len(self.seen)
        )

    def resume(self) -> Breaker:
        """A person says go on: half open, with nothing remembered. No effect when closed."""
        if self.stance is Stance.CLOSED:
            return self
        return replace(self, stance=Stance.HALF_OPEN, seen=(), opened_at=None)

    def starts_allowed(self, running: int) -> int | None:
        """How many devices may be started now; None means no limit of ours."""
        if self.stance is Stance.CLOSED:
            return None
        return max(0, 1 - running) if self.stance is Stance.HALF_OPEN else 0

    def explain(self) -> str:
        """Why it is open, for the report."""
        window = f"{self.policy.breaker_window_s:g} s"
        return f"{self.failures} of the last {len(self.seen)} devices failed within {window}"
