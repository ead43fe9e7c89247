"""Samples in Prometheus' text format, with help and kind from the catalogue. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from fleet.metrics import catalogue
from fleet.metrics.metric import Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def rendered(samples: Iterable[Sample]) -> str:
    """The page a scraper reads: what is not known is left out, not zero.

    Raises `InputInvalid` for a sample that the catalogue does not know.
    """
    families: dict[str, list[Sample]] = {}
    for sample in samples:
        families.setdefault(sample.name, []).append(sample)
    lines: list[str] = []
    for name, found in families.items():
        metric = catalogue.metric(name)
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
        lines += map(_line, found)
    return "\n".join(lines) + "\n"


def _line(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels)
    shown = f"{{{labels}}}" if labels else ""
    return f"{sample.name}{sample.suffix}{shown} {float(sample.value)!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
