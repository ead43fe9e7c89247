"""Figures of the plugin in Prometheus' text format: few, bounded, and never older than they look.

No label carries a claim, pod or device (case B83), so the number of series does not grow with use.
What is not known is left out instead of being reported as zero.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    40.0,
)
"""Upper bounds, s: from an answer out of the journal to all of kubelet's budget."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a family, with its labels in order."""

    value: float
    labels: tuple[tuple[str, str], ...] = ()
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of one name."""

    name: str
    kind: str
    """``counter``, ``gauge`` or ``histogram``."""
    help: str
    samples: tuple[Sample, ...]


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
        self._results: dict[tuple[str, str], int] = {}
        self._durations: dict[str, _Durations] = {}

    def add(self, verb: str, result: str, seconds: float) -> None:
        """Count one claim whose work ended after `seconds`."""
        with self._lock:
            key = (verb, result)
            self._results[key] = self._results.get(key, 0) + 1
            self._durations.setdefault(verb, _Durations()).add(seconds)

    def count(self, verb: str, result: str) -> int:
        """Claims counted so far."""
        with self._lock:
            return self._results.get((verb, result), 0)

    def families(self) -> tuple[Family, ...]:
        """All figures as they are now."""
        with self._lock:
            results = tuple(
                Sample(count, (("verb", verb), ("result", result)))
                for (verb, result), count in sorted(self._results.items())
            )
            durations = tuple(
                sample
                for verb, found in sorted(self._durations.items())
                for sample in _histogram(verb, found)
            )
        return (
            Family("fleet_plugin_claims_total", "counter", "Claims by verb and result.", results),
            Family(
                "fleet_plugin_claim_seconds",
                "histogram",
                "Time from kubelet's call to the end of the work on one claim.",
                durations,
            ),
        )


def _histogram(verb: str, found: _Durations) -> Iterable[Sample]:
    own = ("verb", verb)
    for bound, count in zip(BUCKETS_S, found.counts, strict=True):
        yield Sample(count, (own, ("le", f"{bound:g}")), "_bucket")
    yield Sample(found.count, (own, ("le", "+Inf")), "_bucket")
    yield Sample(found.total_s, (own,), "_sum")
    yield Sample(found.count, (own,), "_count")


def gauge(name: str, help_text: str, value: float | None) -> Family:
    """A gauge without labels; no sample where the value is unknown. A truth counts as 1 or 0."""
    samples = () if value is None else (Sample(float(value)),)
    return Family(name, "gauge", help_text, samples)


def rendered(families: Sequence[Family]) -> str:
    """The page a scraper reads. Families without samples are left out."""
    lines: list[str] = []
    for family in families:
        if not family.samples:
            continue
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
        for sample in family.samples:
            labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels)
            lines.append(
                f"{family.name}{sample.suffix}{'{' + labels + '}' if labels else ''}"
                f" {sample.value!r}"
            )
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
