"""Rules of the plugin's figures."""

from __future__ import annotations

import pytest

from fleet.metrics.exposition import rendered
from fleet.metrics.of_plugin import RESULTS, VERBS
from node_plugin.metrics import ClaimFigures


def test_claims_are_counted_by_verb_and_result_only() -> None:
    """B83: ten thousand claims make not one series more than none."""
    figures = ClaimFigures()
    before = [sample.key for sample in figures.samples()]
    for number in range(10_000):
        figures.add("prepare", "done" if number % 2 else "retryable", 0.004)
    page = rendered(figures.samples())
    assert 'fleet_plugin_claims_total{verb="prepare",result="done"} 5000.0' in page
    assert 'fleet_plugin_claims_total{verb="prepare",result="retryable"} 5000.0' in page
    assert [sample.key for sample in figures.samples()] == before
    assert figures.count("prepare", "done") == 5000


def test_every_series_is_there_before_the_first_claim() -> None:
    """B83: the first failure is a rise from zero, which an alert sees, not a series that begins."""
    page = rendered(ClaimFigures().samples())
    for verb in VERBS:
        for result in RESULTS:
            labels = f'{{verb="{verb}",result="{result}"}}'
            assert f"fleet_plugin_claims_total{labels} 0.0" in page
            assert f"fleet_plugin_claim_seconds_count{labels} 0.0" in page


def test_a_histogram_is_cumulative() -> None:
    """Each bucket counts what was as fast or faster; the last counts all, and the sum is true."""
    figures = ClaimFigures()
    for seconds in (0.0005, 0.02, 100.0):
        figures.add("unprepare", "refused", seconds)
    page = rendered(figures.samples())
    labels = 'verb="unprepare",result="refused"'
    for bound, count in (("0.001", 1), ("0.025", 2), ("40", 2), ("+Inf", 3)):
        line = f'fleet_plugin_claim_seconds_bucket{{{labels},le="{bound}"}} {count}.0'
        assert line in page
    assert f"fleet_plugin_claim_seconds_sum{{{labels}}} 100.0205" in page


def test_a_result_that_nobody_documented_is_a_fault() -> None:
    """E4: the catalogue's sets are closed; a new result has to be put there first."""
    with pytest.raises(KeyError):
        ClaimFigures().add("prepare", "shrugged", 0.0)
