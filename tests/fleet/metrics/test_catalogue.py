"""Rules that every metric keeps."""

from __future__ import annotations

import re

import pytest

from fleet.core import errors
from fleet.metrics.catalogue import BY_NAME, METRICS, metric, of_series
from fleet.metrics.metric import NODES, Kind, Metric

BASE_UNITS = {"", "bytes", "seconds"}
GROWING = {"claim", "pod", "device", "uuid", "uid", "run", "namespace", "operation_id"}


@pytest.mark.parametrize("one", METRICS, ids=lambda one: one.name)
def test_a_metric_is_named_after_what_it_is(one: Metric) -> None:
    """Names end with their unit, counters with _total; help is a sentence."""
    assert re.fullmatch(r"fleet_[a-z]+(_[a-z]+)*", one.name)
    assert (one.kind is Kind.COUNTER) == one.name.endswith("_total")
    assert one.unit in BASE_UNITS
    bare = one.name.removesuffix("_total")
    if one.unit:
        assert re.search(rf"_{one.unit}(_|$)", bare), "the unit is in the name"
    assert one.help.endswith(".")
    assert bool(one.bounds) == (one.kind is Kind.HISTOGRAM)


@pytest.mark.parametrize("one", METRICS, ids=lambda one: one.name)
def test_no_label_grows_with_use(one: Metric) -> None:
    """B83: values of a label are a closed set, the names of nodes, or selectors of the settings."""
    assert not GROWING.intersection(one.labels)
    for label, values in one.labels.items():
        assert (values == NODES) == (label in ("node", "nodes"))
        assert len(values) == len(set(values)) < 50


def test_a_node_has_a_bounded_number_of_series() -> None:
    """B83: a fleet of a thousand nodes stays below a quarter of a million series."""
    series = sum(
        len(list(one.series("n"))) * (len(one.bounds) + 3) for one in METRICS if one.bounds
    )
    series += sum(len(list(one.series("n"))) for one in METRICS if not one.bounds)
    assert series < 400


def test_a_name_is_there_once() -> None:
    """One name, one meaning."""
    assert len(BY_NAME) == len(METRICS)


def test_a_series_leads_to_its_metric() -> None:
    """With Ray's prefix and as part of a histogram; a gauge has no buckets."""
    assert of_series("ray_fleet_units") is metric("fleet_units")
    assert of_series("fleet_clean_seconds_bucket") is metric("fleet_clean_seconds")
    assert of_series("fleet_units_bucket") is None
    with pytest.raises(errors.InputInvalid):
        metric("fleet_nothing")
