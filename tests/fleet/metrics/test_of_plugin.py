"""Rules of the plugin's part of the catalogue."""

from __future__ import annotations

from fleet.metrics.metric import Exporter, Source
from fleet.metrics.of_plugin import BUCKETS_S, PLUGIN_METRICS, RESULTS, VERBS
from node_plugin.dra import ANSWER_S, result_of


def test_the_figures_are_the_processes_own() -> None:
    """A plugin keeps nothing: what it counts begins anew with it, and the catalogue says so."""
    assert {metric.exporter for metric in PLUGIN_METRICS} == {Exporter.PLUGIN}
    assert {metric.source for metric in PLUGIN_METRICS} == {Source.PROCESS}


def test_buckets_reach_to_the_end_of_a_call() -> None:
    """Durations up to all of kubelet's budget can be told apart."""
    assert list(BUCKETS_S) == sorted(BUCKETS_S)
    assert BUCKETS_S[-2] < ANSWER_S


def test_the_results_are_those_the_plugin_gives() -> None:
    """A claim without an error is done."""
    assert result_of(None) in RESULTS
    assert VERBS == ("prepare", "unprepare")
