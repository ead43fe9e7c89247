"""What the figures of a GPU are measured against: goals, and floors below which the check fails.

A goal that is missed is a shortfall, shown and recorded; only below a floor something is wrong with
our code or with the machine. A stand-in has no memory of its own to be fast with: it is not judged.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

RATIO_GOAL, RATIO_FLOOR = 0.85, 0.5
"""A pass against the plain kernel that moves as many bytes."""
COVERAGE_GOAL, COVERAGE_FLOOR = 0.99, 0.98
"""Bytes wiped of total minus reserved."""
TIME_GOAL_S = 0.25
"""Four passes over all memory by the device's clock; stated for a GPU of 141 GB at about 4.3 TB/s,
for which arithmetic gives 0.14 to 0.16 s."""
MET, MISSED, FAILED, NOT_JUDGED = "met", "missed", "failed", "not judged"


@dataclass(frozen=True)
class Goal:
    """One figure: at least `goal`, or with `at_most` no more than it. `floor`: None has none."""

    name: str
    value: float
    goal: float
    floor: float | None = None
    at_most: bool = False
    judged: bool = True

    @property
    def verdict(self) -> str:
        """One of the words above."""
        if not self.judged:
            return NOT_JUDGED
        if self.value <= self.goal if self.at_most else self.value >= self.goal:
            return MET
        if self.floor is not None and self.value < self.floor:
            return FAILED
        return MISSED

    def as_json(self) -> dict[str, Any]:
        """All of it, verdict included."""
        return {**asdict(self), "verdict": self.verdict}

    def __str__(self) -> str:
        side = "at most" if self.at_most else "at least"
        return f"{self.name}: {self.value:.4g}, wanted {side} {self.goal:g}: {self.verdict}"


def ratio(name: str, value: float, *, judged: bool) -> Goal:
    """A pass against its plain kernel."""
    return Goal(f"{name} / plain", value, RATIO_GOAL, RATIO_FLOOR, judged=judged)


def coverage(value: float, *, judged: bool) -> Goal:
    """How much of the memory was wiped."""
    return Goal("coverage", value, COVERAGE_GOAL, COVERAGE_FLOOR, judged=judged)


def gpu_time(seconds: float, *, judged: bool) -> Goal:
    """How long the four passes of a verified wipe took."""
    return Goal("GPU time of a verified wipe, s", seconds, TIME_GOAL_S, at_most=True, judged=judged)
