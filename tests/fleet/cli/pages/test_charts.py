"""Drawings of a report: figures in words, nothing outside the drawing, nothing that acts."""

from __future__ import annotations

import re

from fleet.cli.pages import charts
from fleet.cli.pages.timeline import Span, timeline
from fleet.control.campaign.verdict import Verdict
from tests.fleet.cli.pages.records import BEGIN, certified
from tests.fleet.cli.pages.test_certificate import HOSTILE, Parsed

LINE = timeline([certified(n) for n in range(16)], BEGIN, BEGIN + 60)


def rects(lines: list[str]) -> list[tuple[float, float]]:
    """Left edge and width of every bar."""
    found = re.findall(r'<rect[^>]* x="([-\d.]+)"[^>]* width="([-\d.]+)"', "".join(lines))
    return [(float(left), float(width)) for left, width in found]


def test_each_span_is_a_bar_inside_the_drawing() -> None:
    """E2: one bar per device, named, with its figures in its title, and none outside."""
    lines = list(charts.bars(LINE.devices, LINE))
    found = rects(lines)
    assert len(found) == 16
    assert all(left >= charts.LABEL for left, _ in found)
    assert all(left + width <= charts.WIDTH + 1 for left, width in found)
    text = Parsed("".join(lines)).text
    assert "node-0000/gpu-0: done, from 0.0 s for 30 s" in text


def test_hostile_names_stay_names() -> None:
    """A device's name is text in a drawing as well, and no wider than its column."""
    span = Span(HOSTILE, BEGIN, BEGIN + 1, Verdict.FAILED, 3)
    drawn = Parsed("".join(charts.bars([span], LINE)))
    assert drawn.open == []
    assert set(drawn.tags) == {"svg", "line", "text", "rect", "title"}
    assert {name for name, _ in drawn.attributes}.isdisjoint({"onerror", "src", "href"})


def test_curve_histogram_and_rates_show_their_scale() -> None:
    """A drawing without its largest value in words says nothing."""
    curve = Parsed("".join(charts.curve(LINE.at_work(30), LINE, what="devices in work")))
    assert "16 devices in work" in curve.text
    values = sorted(float(n) * 1e9 for n in range(1, 101))
    drawn = Parsed("".join(charts.histogram(values)))
    assert "1.00 GB/s" in drawn.text
    assert "100.00 GB/s" in drawn.text
    assert Parsed("".join(charts.histogram([5e9, 5e9]))).open == []
    bars = list(charts.rate_bars([("a", 2e9, Verdict.DONE), ("b", 1e9, Verdict.DONE)]))
    (_, first), (_, second) = rects(bars)
    assert first == 2 * second


def test_the_legend_is_in_words() -> None:
    """No colour is the only sign."""
    assert "tainted-and-done" in Parsed(charts.legend(list(Verdict))).text
