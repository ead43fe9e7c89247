"""docs/metrics.md, from the catalogue. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fleet.core.state_targets import TARGETS_S
from fleet.metrics.catalogue import METRICS
from fleet.metrics.metric import NODES, Exporter, Kind, Metric, Source

HEAD = """\
# Metrics

Generated from the catalogue in `fleet/metrics`; `make docs` writes it anew. What to do about them
stands in [alerts.md](alerts.md).

- **Labels** have closed sets of values, and names of nodes. No label carries a claim, a pod, a
  device or a run, so the number of series does not grow with use: about {series} for each node that
  a plugin serves (half of them the buckets of one histogram), {coordinator} for the coordinator.
- **Every series is there from the start**, as zero, unless the table says otherwise: the first
  failure is a rise that an alert sees. What is not known is left out, and never zero.
- **`state`** as source means: read from journal, store or archive, the same after any restart.
  **`process`** means: counted since the exporting process started.
- **Old figures are not repeated.** `fleet_node_view_timestamp_seconds` and
  `fleet_coordinator_view_timestamp_seconds` say when the view behind them was taken. A plugin whose
  node has no owner tells the last view for 60 s, and then only when it was taken.

## Where they are

| exporter | where | gone when |
|---|---|---|
| plugin | `/metrics` of `fleet-node-plugin --http` | the process ends |
| node | there as well, and through Ray by the node's actor | nobody owns the node, or both end |
| coordinator | through Ray by the coordinator's actor | two report periods of Ray (20 s) after it |

`fleet coordinate`, the coordinator without Ray, exports nothing: use `fleet status` there.

Through Ray every name begins with `ray_` and everything is a gauge, totals and buckets included:
Ray's own counters cannot tell a zero, begin anew with each worker, and stay for ever after it. For
PromQL that makes no difference. Ray adds labels of its own; one fact may be told by plugin and
actor, so **take the maximum by the metric's own labels first**, then add up:

    sum by (state) (max by (node, state) (fleet_units))

## Scraping

Take the prefix off where Ray is scraped, and rules and dashboards fit both sources. In a scrape
configuration of Prometheus (a PodMonitor calls it `metricRelabelings`):

```yaml
{relabel}```

The plugin's port is on loopback unless `--http` says otherwise. Ray's port is that of
`--metrics-export-port` on every node.
"""
RELABEL = """\
metric_relabel_configs:
  - source_labels: [__name__]
    regex: ray_(fleet_.+)
    target_label: __name__
"""
"""How a scraper takes Ray's prefix off."""
TITLES = {
    Exporter.NODE: "A node",
    Exporter.COORDINATOR: "The coordinator",
    Exporter.PLUGIN: "The node plugin",
}


def reference() -> str:
    """The whole page."""
    node = sum(map(_series, (m for m in METRICS if m.exporter is not Exporter.COORDINATOR)))
    coordinator = sum(map(_series, (m for m in METRICS if m.exporter is Exporter.COORDINATOR)))
    head = HEAD.format(series=node, coordinator=coordinator, relabel=RELABEL)
    return "\n".join([head.rstrip("\n"), *_targets(), *_tables()]) + "\n"


def _series(metric: Metric) -> int:
    """How many series one exporter has of it."""
    buckets = len(metric.bounds) + 3 if metric.kind is Kind.HISTOGRAM else 1
    return buckets * len(list(metric.series("node")))


def _targets() -> Iterator[str]:
    yield "\n## Target times\n"
    yield "`fleet_units_late` counts the units above these. In use and clean have none.\n"
    yield "| state | target |"
    yield "|---|---|"
    for state, target_s in TARGETS_S.items():
        yield f"| {state} | {target_s:g} s |"


def _tables() -> Iterator[str]:
    for exporter, title in TITLES.items():
        yield f"\n## {title}\n"
        yield "| metric | kind | labels | source | what it is |"
        yield "|---|---|---|---|---|"
        for metric in METRICS:
            if metric.exporter is exporter:
                yield _row(metric)


def _row(metric: Metric) -> str:
    labels = "; ".join(_label(name, values) for name, values in metric.labels.items())
    zero = f" ({metric.zero})" if metric.zero else ""
    bounds = ""
    if metric.bounds:
        bounds = f" Bounds: {', '.join(f'{bound:g}' for bound in metric.bounds)}."
    source = "process" if metric.source is Source.PROCESS else "state"
    what = f"{metric.help}{bounds}{zero}"
    return f"| `{metric.name}` | {metric.kind} | {labels or '-'} | {source} | {what} |"


def _label(name: str, values: tuple[str, ...]) -> str:
    if values == NODES:
        return f"`{name}`"
    shown = ", ".join(values) if len(values) <= 12 else f"{len(values)} reason codes"
    return f"`{name}`: {shown}"
