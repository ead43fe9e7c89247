"""Which figures go to Ray, and when."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from ray.util import metrics as ray_metrics

from actors import metrics
from actors.metrics import PERIOD_S, READ_S, Figures, Reporter
from fleet.core import errors
from fleet.metrics.metric import Sample
from fleet.metrics.of_node import samples
from tests.fleet.metrics import views

RAY_REPORTS_S = 10.0
"""Ray's report period, s; it drops a gauge that was not set for two of them."""


class Recording:
    """Reads figures, and counts how often."""

    def __init__(self) -> None:
        self.reads = 0
        self.fails = False

    def __call__(self) -> Iterable[Sample]:
        self.reads += 1
        if self.fails:
            raise errors.StoreUnavailable("away")
        return [Sample("fleet_campaigns", 1, (("state", "running"),))]


def test_figures_are_told_before_ray_drops_them() -> None:
    """B83: Ray forgets what is not told again, so a live process has to tell all of it in time."""
    assert PERIOD_S <= RAY_REPORTS_S


def test_a_node_s_figures_become_gauges() -> None:
    """E4: every sample of a view fits the gauge of its name; a second telling makes none anew."""
    figures = Figures()
    figures.tell(samples(views.node()))
    made = dict(figures._gauges)
    figures.tell(samples(views.node(at=views.NOW + 5)))
    assert figures._gauges == made
    assert "fleet_clean_seconds_bucket" in made
    assert {type(gauge) for gauge in made.values()} == {ray_metrics.Gauge}
    assert made["fleet_units"].info["tag_keys"] == ("node", "state")


def test_a_source_is_read_seldom_and_told_often() -> None:
    """A store that is paid by the read is not asked for every telling."""
    source = Recording()
    reporter = Reporter(source)
    for second in range(0, int(READ_S) + 1, int(PERIOD_S)):
        reporter.step(float(second))
    assert source.reads == 2


def test_what_cannot_be_read_is_not_told_again(caplog: pytest.LogCaptureFixture) -> None:
    """B83: old figures are not repeated as if they were new; the next read is tried in time."""
    source = Recording()
    reporter = Reporter(source)
    reporter.step(0.0)
    source.fails = True
    reporter.step(READ_S)
    assert reporter._told == ()
    assert "the figures are not told" in caplog.text
    source.fails = False
    reporter.step(2 * READ_S)
    assert len(reporter._told) == 1


def test_a_stopped_reporter_ends() -> None:
    """Its thread tells once and goes."""
    source = Recording()
    reporter = Reporter(source)
    reporter.stop()
    reporter._run()
    assert source.reads == 1
    assert metrics.PERIOD_S == PERIOD_S
