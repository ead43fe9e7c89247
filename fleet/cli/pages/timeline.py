"""When what was in work: one span per device, one per node, and how many ran at each moment. Pure.

Times are seconds since the epoch. Nodes tell times by their own clocks; a span that would end
before it began, or lie outside the run by more than the clocks can differ, is left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleet.control.campaign.verdict import Verdict, verdict
from fleet.core.messages import DeviceResult

SKEW_MAX_S = 300.0
"""How far, s, a node's clock may be off before its spans are not drawn among the others."""


@dataclass(frozen=True, slots=True)
class Span:
    """One device, or one node, at work."""

    name: str
    begin: float
    end: float
    verdict: Verdict
    devices: int = 1

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything that has times."""

    begin: float
    end: float
    devices: tuple[Span, ...]
    """By begin."""
    untimed: int
    """Results without times that can be drawn: never begun, or told by a clock that is off."""

    @property
    def seconds(self) -> float:
        """Width of the line; never 0."""
        return max(self.end - self.begin, 1e-3)

    def nodes(self, results: Iterable[DeviceResult]) -> tuple[Span, ...]:
        """One span per node of the devices drawn: worst verdict, first begin, last end."""
        home = {place(result): result.node for result in results}
        found: dict[str, list[Span]] = {}
        for span in self.devices:
            found.setdefault(home[span.name], []).append(span)
        order = list(Verdict)
        return tuple(
            Span(
                node,
                min(one.begin for one in spans),
                max(one.end for one in spans),
                max((one.verdict for one in spans), key=order.index),
                len(spans),
            )
            for node, spans in sorted(found.items())
        )

    def at_work(self, buckets: int) -> Sequence[float]:
        """Mean number of devices in work in each of so many equal stretches of time."""
        width = self.seconds / buckets
        found = [0.0] * buckets
        for span in self.devices:
            first = min(int((span.begin - self.begin) / width), buckets - 1)
            last = min(int((span.end - self.begin) / width), buckets - 1)
            for bucket in range(first, last + 1):
                left = max(span.begin, self.begin + bucket * width)
                right = min(span.end, self.begin + (bucket + 1) * width)
                found[bucket] += max(right - left, 0.0) / width
        return found


def place(result: DeviceResult) -> str:
    """How a device is named on a page: node and device."""
    return f"{result.node}/{result.device}"


def timeline(results: Sequence[DeviceResult], begin: float, end: float) -> Timeline:
    """The line of a run that began and ended at these times."""
    spans = [
        Span(place(one), one.started_at, one.ended_at, verdict(one))
        for one in results
        if _is_drawn(one, begin, end)
    ]
    spans.sort(key=lambda span: (span.begin, span.name))
    first = min((span.begin for span in spans), default=begin)
    last = max((span.end for span in spans), default=end)
    return Timeline(min(begin, first), max(end, last), tuple(spans), len(results) - len(spans))


def _is_drawn(one: DeviceResult, begin: float, end: float) -> bool:
    inside = begin - SKEW_MAX_S <= one.started_at and one.ended_at <= end + SKEW_MAX_S
    return inside and 0.0 < one.started_at <= one.ended_at
