"""Enough of PromQL to see which series an expression asks for. Not a parser: names and matchers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleet.metrics import catalogue
from fleet.metrics.metric import NODES, Exporter, Kind

SELECTOR = re.compile(r"\b(fleet_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\bby \(([^)]*)\)")
SCRAPED = frozenset({"instance", "job"})
"""Labels that the scraper adds."""


def faults(expression: str) -> Iterator[str]:
    """What an expression asks for that the catalogue does not have."""
    known = set(SCRAPED)
    for name, matchers in SELECTOR.findall(expression):
        metric = catalogue.of_series(name)
        if metric is None:
            yield f"{name} is not in the catalogue"
            continue
        if metric.kind is Kind.HISTOGRAM and name == metric.name:
            yield f"{name} is a histogram: ask for its buckets, sum or count"
        known |= {*metric.labels, *(("le",) if name.endswith("_bucket") else ())}
        for label, operator, value in MATCHER.findall(matchers):
            if label in SCRAPED:
                continue
            values = metric.labels.get(label)
            if values is None:
                yield f"{name} has no label {label}"
            elif values != NODES:
                unknown = set(value.split("|") if "~" in operator else [value]) - set(values)
                yield from (f"{name}: {label} is never {one}" for one in unknown)
    for labels in GROUPING.findall(expression):
        yield from (f"no metric in it has {one.strip()}" for one in set(labels.split(", ")) - known)


def undoubled(expression: str) -> bool:
    """Whether what two exporters tell is taken once: inside max or min before anything adds up."""
    for found in SELECTOR.finditer(expression):
        metric = catalogue.of_series(found[1])
        if metric is None or metric.exporter is not Exporter.NODE:
            continue
        before = re.sub(r"(rate|increase|changes|last_over_time|time\(\) - )\(?", "", expression)
        selector = re.escape(found[0])
        aggregated = rf"\b(max|min)(?: by \([^)]*\))? ?\([^()]*{selector}"
        if re.search(aggregated, re.sub(r"\s+", " ", before)) is None:
            return False
    return True
