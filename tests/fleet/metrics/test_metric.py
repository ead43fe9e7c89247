"""Rules of the words of the catalogue."""

from __future__ import annotations

from fleet.metrics.metric import NODES, Exporter, Kind, Metric, Sample


def test_every_combination_of_closed_labels_is_a_series() -> None:
    """B83: the series of a metric are known before anything happens."""
    labels = {"node": NODES, "a": ("x", "y")}
    metric = Metric("fleet_x", Kind.GAUGE, "X.", Exporter.NODE, labels)
    assert list(metric.series("n1")) == [
        (("node", "n1"), ("a", "x")),
        (("node", "n1"), ("a", "y")),
    ]


def test_a_series_is_its_name_and_labels() -> None:
    """Bucket, sum and count of one histogram are series of their own."""
    assert Sample("m", 1, (), "_sum").key != Sample("m", 1, (), "_count").key
    assert Sample("m", 1, (("a", "b"),)).key == Sample("m", 2, (("a", "b"),)).key
