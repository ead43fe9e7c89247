"""Figures of the plugin about the claims it was asked for: few, bounded, and there from the start.

No label carries a claim, pod or device (case B83), so the number of series does not grow with use.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from fleet.metrics.metric import Labels, Sample
from fleet.metrics.of_plugin import BUCKETS_S, RESULTS, VERBS


@dataclass(slots=True)
class _Durations:
    counts: list[int] = field(default_factory=lambda: [0] * len(BUCKETS_S))
    total_s: float = 0.0
    count: int = 0

    def add(self, seconds: float) -> None:
        for index, bound in enumerate(BUCKETS_S):
            self.counts[index] += seconds <= bound
        self.total_s += seconds
        self.count += 1


class ClaimFigures:
    """What became of claims asked for, by verb and result. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._durations = {(verb, result): _Durations() for verb in VERBS for result in RESULTS}

    def add(self, verb: str, result: str, seconds: float) -> None:
        """Count one claim whose work ended after `seconds`.

        Raises KeyError on a verb or result that the catalogue does not know.
        """
        with self._lock:
            self._durations[verb, result].add(seconds)

    def count(self, verb: str, result: str) -> int:
        """Claims counted so far."""
        with self._lock:
            return self._durations[verb, result].count

    def samples(self) -> tuple[Sample, ...]:
        """All figures as they are now."""
        with self._lock:
            found = [
                ((("verb", verb), ("result", result)), durations)
                for (verb, result), durations in self._durations.items()
            ]
            return (
                *(Sample("fleet_plugin_claims_total", one.count, key) for key, one in found),
                *(sample for key, one in found for sample in _histogram(key, one)),
            )


def _histogram(labels: Labels, found: _Durations) -> Iterator[Sample]:
    name = "fleet_plugin_claim_seconds"
    for bound, count in zip(BUCKETS_S, found.counts, strict=True):
        yield Sample(name, count, (*labels, ("le", f"{bound:g}")), "_bucket")
    yield Sample(name, found.count, (*labels, ("le", "+Inf")), "_bucket")
    yield Sample(name, found.total_s, labels, "_sum")
    yield Sample(name, found.count, labels, "_count")
