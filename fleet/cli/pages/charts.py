"""Drawings of a report as SVG inside the page: bars over time, curves, histograms. No script.

Sizes are in the drawing's own units; it scales to the width of the page and of the paper. Every bar
says its figures in a title of its own, and no colour is the only sign: the legend is in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fleet.cli.pages.markup import text
from fleet.cli.pages.timeline import Span, Timeline
from fleet.cli.text import duration, rate, visible
from fleet.control.campaign.verdict import Verdict

WIDTH = 900.0
LABEL = 190.0
"""Width of the column of names."""
BAR = 14.0
GAP = 3.0
TICKS = 5
NAME_MAX = 28
"""Characters of a name that fit; the bar's title has all of it."""


def bars(spans: Sequence[Span], line: Timeline) -> Iterator[str]:
    """One bar for each span, named at its left, over the time of the whole line."""
    height = len(spans) * (BAR + GAP)
    yield from _opened(height + 24, "one bar for each, over the time of the run")
    yield from _grid(line, height)
    for number, span in enumerate(spans):
        top = number * (BAR + GAP)
        left, width = _stretch(span, line)
        devices = f", {span.devices} devices" if span.devices > 1 else ""
        said = (
            f"{span.name}: {span.verdict}{devices}, from {duration(span.begin - line.begin)}"
            f" for {duration(span.seconds)}"
        )
        yield (
            f'<text class="name" x="{LABEL - 6:g}" y="{top + BAR - 3:g}">{text(_short(span.name))}'
            f"</text>"
        )
        yield (
            f'<rect class="{span.verdict}" x="{left:.1f}" y="{top:g}" width="{width:.1f}"'
            f' height="{BAR:g}"><title>{text(said)}</title></rect>'
        )
    yield "</svg>"


def curve(values: Sequence[float], line: Timeline, *, what: str) -> Iterator[str]:
    """`values`, one for each equal stretch of the line's time, as steps."""
    height, most = 120.0, max([*values, 1.0])
    yield from _opened(height + 24, what)
    yield from _grid(line, height)
    width = (WIDTH - LABEL) / max(len(values), 1)
    for number, value in enumerate(values):
        tall = height * value / most
        yield (
            f'<rect class="curve" x="{LABEL + number * width:.1f}" y="{height - tall:.1f}"'
            f' width="{width:.1f}" height="{tall:.1f}"><title>{value:.1f}</title></rect>'
        )
    yield f'<text class="name" x="{LABEL - 6:g}" y="12">{text(f"{most:.0f} {what}")}</text>'
    yield "</svg>"


def rate_bars(named: Sequence[tuple[str, float, Verdict]]) -> Iterator[str]:
    """One bar for each name and rate (bytes/s)."""
    height, most = len(named) * (BAR + GAP), max([one for _, one, _ in named], default=0.0)
    yield from _opened(height, "rate of each device")
    for number, (name, found, word) in enumerate(named):
        top = number * (BAR + GAP)
        base, width = top + BAR - 3, (WIDTH - LABEL - 90) * (found / most if most else 0.0)
        yield (
            f'<text class="name" x="{LABEL - 6:g}" y="{base:g}">{text(_short(name))}</text>'
            f'<rect class="{word}" x="{LABEL:g}" y="{top:g}" width="{width:.1f}" height="{BAR:g}">'
            f"<title>{text(f'{name}: {rate(found)}')}</title></rect>"
            f'<text x="{LABEL + width + 6:.1f}" y="{base:g}">{text(rate(found))}</text>'
        )
    yield "</svg>"


def histogram(values: Sequence[float], *, buckets: int = 30) -> Iterator[str]:
    """How many devices have which rate (bytes/s), from the slowest to the fastest."""
    low, high = min(values), max(values)
    step = (high - low) / buckets or 1.0
    counts = [0] * buckets
    for value in values:
        counts[min(int((value - low) / step), buckets - 1)] += 1
    height, most = 120.0, max(counts)
    yield from _opened(height + 24, "devices by rate")
    width = (WIDTH - LABEL) / buckets
    for number, count in enumerate(counts):
        tall = height * count / most
        between = (
            f"{count} devices, {rate(low + number * step)} to {rate(low + (number + 1) * step)}"
        )
        yield (
            f'<rect class="curve" x="{LABEL + number * width:.1f}" y="{height - tall:.1f}"'
            f' width="{width - 1:.1f}" height="{tall:.1f}"><title>{text(between)}</title></rect>'
        )
    yield f'<text class="name" x="{LABEL - 6:g}" y="12">{most} devices</text>'
    yield f'<text x="{LABEL:g}" y="{height + 16:g}">{text(rate(low))}</text>'
    yield f'<text class="last" x="{WIDTH:g}" y="{height + 16:g}">{text(rate(high))}</text></svg>'


def legend(words: Sequence[Verdict]) -> str:
    """What the colours mean."""
    marks = (f'<span class="mark {word}"></span>{text(word)}' for word in words)
    return f'<p class="legend">{" ".join(marks)}</p>'


def _opened(height: float, what: str) -> Iterator[str]:
    yield (
        f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{text(what)}"'
        f' font-size="11">'
    )


def _grid(line: Timeline, height: float) -> Iterator[str]:
    for number in range(TICKS + 1):
        x = LABEL + (WIDTH - LABEL) * number / TICKS
        kind = ' class="last"' if number == TICKS else ""
        yield f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height:g}"/>'
        when = duration(line.seconds * number / TICKS)
        yield f'<text{kind} x="{x:.1f}" y="{height + 16:g}">{text(when)}</text>'


def _stretch(span: Span, line: Timeline) -> tuple[float, float]:
    """Left edge and width; the shortest is still to be seen."""
    scale = (WIDTH - LABEL) / line.seconds
    left = LABEL + (span.begin - line.begin) * scale
    return left, max(min(span.seconds * scale, WIDTH - left), 1.0)


def _short(name: str) -> str:
    shown = visible(name)
    return shown if len(shown) <= NAME_MAX else f"{shown[: NAME_MAX - 1]}…"
