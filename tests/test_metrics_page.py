"""Rules of docs/metrics.md."""

from __future__ import annotations

import re

import yaml  # type: ignore[import-untyped] # ships no types

from fleet.metrics.catalogue import METRICS
from tests.metrics_page import RELABEL, reference


def test_every_metric_has_one_row() -> None:
    """E4: what is exported is documented, and what is documented is exported."""
    rows = re.findall(r"^\| `(fleet_\w+)` \|", reference(), re.MULTILINE)
    assert sorted(rows) == sorted(metric.name for metric in METRICS)


def test_the_scraper_s_lines_take_ray_s_prefix_off() -> None:
    """The lines on the page are a scrape configuration, and leave Ray's own names alone."""
    assert RELABEL in reference()
    (rule,) = yaml.safe_load(RELABEL)["metric_relabel_configs"]
    matched = re.fullmatch(rule["regex"], "ray_fleet_units")
    assert matched is not None
    assert matched[1] == "fleet_units"
    assert re.fullmatch(rule["regex"], "ray_tasks") is None
    assert rule["target_label"] == "__name__"
