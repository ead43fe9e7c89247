"""The words of the metric catalogue: what a metric is, and one value of it. Pure.

Values of a label come from closed sets, with one exception: names of nodes, which are as many as
the fleet has. No label carries a claim, a pod, a device or a run, so that the number of series does
not grow with use (case B83).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product

NODES: tuple[str, ...] = ()
"""Stands for an open set of label values: the names of the fleet's nodes."""
SELECTORS: tuple[str, ...] = ()
"""Stands for the other one: the selectors of several coordinators."""
Labels = tuple[tuple[str, str], ...]
"""Names and values of labels, in the catalogue's order."""


class Kind(StrEnum):
    """How a metric's values are to be read."""

    GAUGE = "gauge"
    COUNTER = "counter"
    """Only rises, until its source begins anew."""
    HISTOGRAM = "histogram"
    """Counts by upper bound, their number and their sum."""


class Exporter(StrEnum):
    """Who tells a metric's values."""

    NODE = "node"
    """The node's actor through Ray, and its plugin: both from the view of the journal's owner."""
    COORDINATOR = "coordinator"
    """The coordinator's actor, through Ray."""
    PLUGIN = "plugin"
    """The node plugin, about itself."""


class Source(StrEnum):
    """Where a value comes from, so what a restart does to it."""

    STATE = "state"
    """Durable state: journal, store or archive. A restart changes nothing."""
    PROCESS = "process"
    """The exporting process: counters begin at zero with it."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of the catalogue."""

    name: str
    kind: Kind
    help: str
    exporter: Exporter
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Values by label; `NODES` and `SELECTORS` where the set is open."""
    source: Source = Source.STATE
    unit: str = ""
    """``bytes``, ``seconds``, ``bytes per second``; "" for a number of things or a truth."""
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram, in its unit."""
    zero: str = ""
    """Why not every series is there from the start; "" where it is."""

    def series(self, node: str = "") -> Iterator[Labels]:
        """The labels of every series that exists from the start, on `node`."""
        sets = [values if values != NODES else (node,) for values in self.labels.values()]
        for values in product(*sets):
            yield tuple(zip(self.labels, values, strict=True))


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one series now."""

    name: str
    value: float
    labels: Labels = ()
    suffix: str = ""
    """``_bucket``, ``_sum`` or ``_count`` of a histogram."""

    @property
    def key(self) -> tuple[str, Labels]:
        """What tells this series from all others."""
        return self.name + self.suffix, self.labels
