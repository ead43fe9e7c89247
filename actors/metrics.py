"""Figures for the Ray dashboard, Prometheus and Grafana (E4), as `fleet.metrics` has them.

Everything crosses Ray as a gauge, totals and buckets of histograms included. Ray keeps a counter of
a dead worker until its node ends, cannot export a zero and begins anew with every worker; our
totals come from durable state and have to be the same after a restart (case B83). A gauge that is
not set again is gone after two of Ray's report periods (10 s each by default), so whoever stops
telling, a dead actor or a node that was removed, leaves no series behind.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from ray.util.metrics import Gauge

from fleet.metrics import catalogue
from fleet.metrics.metric import Sample

PERIOD_S = 5.0
"""Period, s, in which figures are told: half of Ray's report period, so that none goes missing."""

READ_S = 15.0
"""Period, s, in which a `Reporter` reads anew: its source may be a store that is paid by the read.
"""
LOG = logging.getLogger(__name__)


class Figures:
    """The gauges of one process. For one thread."""

    def __init__(self) -> None:
        self._gauges: dict[str, Gauge] = {}

    def tell(self, samples: Iterable[Sample]) -> None:
        """Set these, and nothing else: what is not among them goes out of Ray by itself."""
        for sample in samples:
            name = sample.name + sample.suffix
            gauge = self._gauges.get(name)
            if gauge is None:
                gauge = self._gauges[name] = Gauge(
                    name,
                    description=catalogue.metric(sample.name).help,
                    tag_keys=tuple(label for label, _ in sample.labels),
                )
            gauge.set(float(sample.value), tags=dict(sample.labels))


class Reporter:
    """Reads figures and tells them, in a thread of its own."""

    def __init__(self, read: Callable[[], Iterable[Sample]]) -> None:
        self._read = read
        self._figures = Figures()
        self._told: tuple[Sample, ...] = ()
        self._read_at = float("-inf")
        self._stopped = threading.Event()

    def start(self) -> None:
        """Run in a daemon thread: it ends with the process."""
        threading.Thread(target=self._run, name="figures", daemon=True).start()

    def stop(self) -> None:
        """Tell nothing more."""
        self._stopped.set()

    def step(self, now: float) -> None:
        """Tell the figures, read anew if it is time to. Raises nothing. `now`: monotonic, s."""
        try:
            if now - self._read_at >= READ_S:
                self._read_at, self._told = now, ()
                self._told = tuple(self._read())
            self._figures.tell(self._told)
        except Exception:
            # What cannot be read is told by nobody; the log names the fault.
            LOG.exception("the figures are not told")

    def _run(self) -> None:
        while True:
            self.step(time.monotonic())
            if self._stopped.wait(PERIOD_S):
                return
