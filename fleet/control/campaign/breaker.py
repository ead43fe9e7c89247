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

from fleet.core.settings import CampaignPolicy


class Stance(StrEnum):
    """What the breaker lets through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


SPELLS = 60
"""Parts of the window, so that it costs the same however many devices end within it. Devices leave
it a whole part at a time: when the youngest of the part is as old as the window is long."""


@dataclass(frozen=True, slots=True)
class Spell:
    """Devices that finished within one part of the window. Times are seconds since the epoch."""

    first_at: float
    last_at: float
    finished: int
    failed: int


@dataclass(frozen=True, slots=True)
class Breaker:
    """The breaker after what it has seen. All methods return a new one."""

    policy: CampaignPolicy
    stance: Stance = Stance.CLOSED
    seen: tuple[Spell, ...] = ()
    """Devices finished in the window, oldest first."""
    opened_at: float | None = None

    def record(self, now: float, *, failed: bool) -> Breaker:
        """The breaker after a device finished at `now`."""
        after = replace(self, seen=self._with(now, failed=failed))
        if self.stance is Stance.HALF_OPEN:
            if failed:
                return replace(after, stance=Stance.OPEN, opened_at=now)
            return replace(after, stance=Stance.CLOSED, seen=(), opened_at=None)
        if self.stance is Stance.CLOSED and after.tripped:
            return replace(after, stance=Stance.OPEN, opened_at=now)
        return after

    def _with(self, now: float, *, failed: bool) -> tuple[Spell, ...]:
        window_s = self.policy.breaker_window_s
        seen = [spell for spell in self.seen if spell.last_at > now - window_s]
        if seen and now - seen[-1].first_at < window_s / SPELLS:
            last = seen.pop()
            seen.append(Spell(last.first_at, now, last.finished + 1, last.failed + failed))
        else:
            seen.append(Spell(now, now, 1, int(failed)))
        return tuple(seen)

    @property
    def finished(self) -> int:
        """Devices that finished within the window as of the last one."""
        return sum(spell.finished for spell in self.seen)

    @property
    def failures(self) -> int:
        """Failures within the window as of the last device that finished."""
        return sum(spell.failed for spell in self.seen)

    @property
    def tripped(self) -> bool:
        """Whether count and fraction are both reached."""
        return (
            self.failures >= self.policy.breaker_failures
            and self.failures >= self.policy.breaker_fraction * self.finished
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
        return f"{self.failures} of the last {self.finished} devices failed within {window}"
