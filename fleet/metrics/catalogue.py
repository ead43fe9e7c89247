"""Every metric of the product, as data: docs/metrics.md, exporters and tests draw from it. Pure.

Names are those of the plugin's port. Ray puts ``ray_`` before them; docs/metrics.md says how a
scraper takes it off again, so that rules and dashboards know one name for each fact.
"""

from __future__ import annotations

from collections.abc import Iterable

from fleet.core import errors
from fleet.metrics.metric import Kind, Metric
from fleet.metrics.of_coordinator import COORDINATOR_METRICS
from fleet.metrics.of_node import NODE_METRICS
from fleet.metrics.of_plugin import PLUGIN_METRICS

METRICS: tuple[Metric, ...] = (*NODE_METRICS, *COORDINATOR_METRICS, *PLUGIN_METRICS)
RAY_PREFIX = "ray_"
SERIES_SUFFIXES = ("_bucket", "_sum", "_count")


def by_name(metrics: Iterable[Metric] = METRICS) -> dict[str, Metric]:
    """The metrics by their name."""
    return {metric.name: metric for metric in metrics}


BY_NAME = by_name()


def metric(name: str) -> Metric:
    """The metric of this name. Raises `InputInvalid`."""
    found = BY_NAME.get(name)
    if found is None:
        raise errors.InputInvalid(
            f"there is no metric {name!r}", remedy="docs/metrics.md has them all"
        )
    return found


def of_series(name: str) -> Metric | None:
    """The metric that a series as scraped belongs to, with or without Ray's prefix; None: none."""
    bare = name.removeprefix(RAY_PREFIX)
    if bare in BY_NAME:
        return BY_NAME[bare]
    for suffix in SERIES_SUFFIXES:
        found = BY_NAME.get(bare.removesuffix(suffix)) if bare.endswith(suffix) else None
        if found is not None and found.kind is Kind.HISTOGRAM:
            return found
    return None
