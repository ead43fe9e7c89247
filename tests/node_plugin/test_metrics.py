"""Rules of the plugin's figures."""

from __future__ import annotations

from node_plugin.metrics import ClaimFigures, Family, Sample, gauge, rendered


def test_claims_are_counted_by_verb_and_result_only() -> None:
    """B83: ten thousand claims make no more series than one of each kind."""
    figures = ClaimFigures()
    for number in range(10_000):
        figures.add("prepare", "done" if number % 2 else "retryable", 0.004)
    page = rendered(figures.families())
    assert 'fleet_plugin_claims_total{verb="prepare",result="done"} 5000' in page
    assert 'fleet_plugin_claims_total{verb="prepare",result="retryable"} 5000' in page
    assert len(page.splitlines()) < 30


def test_a_histogram_is_cumulative() -> None:
    """Each bucket counts what was as fast or faster; the last counts all, and the sum is true."""
    figures = ClaimFigures()
    for seconds in (0.0005, 0.02, 100.0):
        figures.add("unprepare", "done", seconds)
    page = rendered(figures.families())
    assert 'fleet_plugin_claim_seconds_bucket{verb="unprepare",le="0.001"} 1' in page
    assert 'fleet_plugin_claim_seconds_bucket{verb="unprepare",le="0.025"} 2' in page
    assert 'fleet_plugin_claim_seconds_bucket{verb="unprepare",le="40"} 2' in page
    assert 'fleet_plugin_claim_seconds_bucket{verb="unprepare",le="+Inf"} 3' in page
    assert 'fleet_plugin_claim_seconds_sum{verb="unprepare"} 100.0205' in page


def test_what_is_unknown_is_left_out() -> None:
    """B83: a gauge nobody set is absent, not zero."""
    assert rendered([gauge("age", "Age.", None)]) == "\n"
    assert rendered([gauge("up", "Up.", value=True)]).endswith("up 1.0\n")


def test_label_values_are_escaped() -> None:
    """A quote, a backslash or a line break in a value does not break the page."""
    family = Family("f", "gauge", "F.", (Sample(1, (("a", 'x"\\\n'),)),))
    assert rendered([family]).splitlines()[-1] == r'f{a="x\"\\\n"} 1'
