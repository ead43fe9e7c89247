"""One campaign run as a page to print: what was covered, what not and why, when, how fast, proof.

It is read by people who have neither the command nor the fleet. The same page serves 16 devices and
10,000: what a reader has to decide about stands on top, drawings draw devices while they can be
told apart and nodes or sums beyond that; long lists are folded away complete, never cut in silence.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from fleet.cli import text
from fleet.cli.pages import charts
from fleet.cli.pages import run_figures as runs
from fleet.cli.pages.markup import document, folded, row, table
from fleet.cli.pages.markup import text as marked
from fleet.cli.pages.run_figures import Gap, Row, RunFigures
from fleet.cli.pages.timeline import Span
from fleet.control.campaign.verdict import COVERED, WORDS, Verdict

DRAWN_MAX = 64
"""Bars that can be told apart on one page; more are summed up."""
NAMED_MAX = 24
"""Devices named where a reason concerns many; all of them are in the table of devices."""
BUCKETS = 120
_HEAD = (
    "device",
    "UUID",
    "",
    "outcome",
    "state",
    "covered / total",
    "seconds",
    "rate",
    "certificate",
    "entry",
    "chain",
    "verification",
)


def render(found: RunFigures) -> str:
    """The page. Never raises for what a record or a certificate says."""
    record = found.record
    title = f"Scrub run {record.id}"
    body = [
        '<div class="watermark">SIMULATED</div>' if record.simulated else "",
        f"<h1>{marked(title)}</h1>",
        f'<p class="simulated">{marked(text.SIMULATED)}</p>' if record.simulated else "",
        *_verdict(found),
        *_facts(found),
        *_coverage(found),
        *_gaps(found),
        *_timeline(found),
        *_rates(found),
        *_nodes(found),
        *_devices(found),
        *_proof(found),
    ]
    return document(f"SIMULATED: {title}" if record.simulated else title, body)


# --- sections -------------------------------------------------------------------------------------


def _verdict(found: RunFigures) -> Iterator[str]:
    total, covered = found.devices, found.covered
    hidden = len(found.rows) - total
    whole = total and covered == len(found.rows) and not (found.evidence and found.unproven)
    kind = "whole" if whole else "broken"
    yield f'<div class="verdict {kind}">{covered} of {total} devices are covered by this run.'
    others = [f"{count} {word}" for word, count in found.counts.items() if word not in COVERED]
    if hidden:
        yield f"{hidden} nodes showed no device at all: what is on them is unknown."
    if others:
        yield f"Not covered: {marked(', '.join(others))}."
    if not total:
        yield "No device is on record: nothing is proven."
    if found.evidence and found.unproven:
        yield f"{len(found.unproven)} certificates do not prove it: see the last column below."
    elif found.evidence and covered:
        yield "Every certificate named here was found and verified."
    elif covered:
        yield "No evidence was read for this page: it tells the record, and proves nothing."
    yield "</div>"


def _facts(found: RunFigures) -> Iterator[str]:
    record, figures = found.record, found.bytes
    end = record.finished_at
    speed = figures.covered * 4 / found.wall_s if found.wall_s > 0 else 0.0
    selection = str(record.plan.get("select") or "every device")
    yield "<h2>The run</h2>"
    rows = [
        row("run", record.id),
        row("where it stands", runs.standing(record)),
        row("from", _moment(record.started_at)),
        row("to", _moment(end) if end is not None else "-"),
        row("took", text.duration(found.wall_s)),
        row("selection", selection),
        row(
            "bytes covered", f"{figures.covered} of {figures.total} ({text.size(figures.covered)})"
        ),
        row("reserved by drivers, not covered", text.size(figures.reserved)),
        row("residual, not covered", text.size(figures.residual)),
        row("rate of the whole run, four passes", text.rate(speed)),
        row("devices at once, at most", record.policy.get("max_parallel", "-")),
    ]
    yield from table(("what", ""), rows)


def _coverage(found: RunFigures) -> Iterator[str]:
    yield "<h2>Coverage</h2>"
    total = max(len(found.rows), 1)
    rows = [
        row(word, count, f"{100 * count / total:.1f} %", WORDS[word], open_=word not in COVERED)
        for word, count in found.counts.items()
    ]
    yield from table(("", "devices", "share", "meaning"), rows)


def _gaps(found: RunFigures) -> Iterator[str]:
    yield "<h2>Not covered, and findings</h2>"
    if not found.gaps:
        yield "<p>Nothing was found, and no device was left out.</p>"
        return
    rows = [
        row(
            gap.verdict,
            gap.outcome,
            len(gap.rows),
            gap.check or "-",
            gap.detail or "-",
            gap.remedy or "-",
            _named(gap),
            open_=gap.verdict not in COVERED,
        )
        for gap in found.gaps
    ]
    head = ("", "outcome", "devices", "found", "detail", "what to do", "where")
    yield from table(head, rows, kind="gaps")


def _named(gap: Gap) -> str:
    names = [one.place for one in gap.rows[:NAMED_MAX]]
    more = len(gap.rows) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _timeline(found: RunFigures) -> Iterator[str]:
    line = found.timeline
    yield "<h2>Timeline</h2>"
    if not line.devices:
        yield "<p>No device has times on record.</p>"
        return
    yield from charts.curve(line.at_work(BUCKETS), line, what="devices in work")
    yield charts.legend(list(found.counts))
    if len(line.devices) <= DRAWN_MAX:
        yield from charts.bars(line.devices, line)
    else:
        nodes = line.nodes([one.result for one in found.rows])
        drawn = _longest(nodes)
        said = "each node" if len(drawn) == len(nodes) else f"the {len(drawn)} slowest nodes"
        yield f"<p>One bar for {said} of {len(nodes)}, from its first device to its last.</p>"
        yield from charts.bars(drawn, line)
    if line.untimed:
        yield f"<p>{line.untimed} results have no times and are not drawn.</p>"


def _longest(nodes: Sequence[Span]) -> Sequence[Span]:
    kept = sorted(nodes, key=lambda span: -span.seconds)[:DRAWN_MAX]
    return sorted(kept, key=lambda span: (span.begin, span.name))


def _rates(found: RunFigures) -> Iterator[str]:
    yield "<h2>Rates</h2>"
    values = runs.rates(found.rows)
    if not values:
        yield "<p>No device told a rate.</p>"
        return
    told = [one for one in found.rows if one.result.rate > 0]
    yield "<p>Bytes covered times four passes, per second of the passes.</p>"
    if len(told) <= DRAWN_MAX:
        yield from charts.rate_bars([(one.place, one.result.rate, one.verdict) for one in told])
    else:
        yield from charts.histogram(values)
    parts = (("slowest", 0.0), ("5 %", 0.05), ("median", 0.5), ("95 %", 0.95), ("fastest", 1.0))
    rows = [row(name, text.rate(runs.quantile(values, part))) for name, part in parts]
    yield from table(("", "rate"), rows)
    if len(told) > DRAWN_MAX:
        slow = sorted(told, key=lambda one: (one.result.rate, one.place))[:NAMED_MAX]
        yield f"<p>The {len(slow)} slowest:</p>"
        yield from table(
            ("device", "UUID", "rate"),
            [row(one.place, one.result.uuid, text.rate(one.result.rate)) for one in slow],
        )


def _nodes(found: RunFigures) -> Iterator[str]:
    counted = runs.by_node(found.rows)
    words = [word for word in Verdict if word in found.counts]
    rows = [
        row(
            node,
            sum(counts.values()),
            *(counts[word] for word in words),
            open_=any(counts[word] for word in words if word not in COVERED),
        )
        for node, counts in counted.items()
    ]
    yield "<h2>Nodes</h2>"
    lines = list(table(("node", "devices", *words), rows))
    troubled = [one for one in rows if one.startswith('<tr class="open">')]
    if len(rows) <= DRAWN_MAX:
        yield from lines
        return
    yield f"<p>{len(rows)} nodes; on {len(troubled)} a device is not covered.</p>"
    if troubled:
        yield from folded(
            f"the {len(troubled)} nodes with devices that are not covered",
            table(("node", "devices", *words), troubled),
        )
    yield from folded(f"all {len(rows)} nodes", lines)


def _devices(found: RunFigures) -> Iterator[str]:
    yield "<h2>Devices and certificates</h2>"
    yield "<p>Entry: number in the node's ledger. Chain: which wipe of its memory this is, and the"
    yield "certificate before it by its first characters.</p>"
    if len(found.rows) <= DRAWN_MAX:
        yield from table(_HEAD, map(_device, found.rows), kind="wide")
        return
    by_node: dict[str, list[Row]] = {}
    for one in found.rows:
        by_node.setdefault(one.result.node, []).append(one)
    open_ = [one for one in found.rows if one.verdict not in COVERED]
    if open_:
        yield from folded(
            f"the {len(open_)} devices that are not covered",
            table(_HEAD, map(_device, open_), kind="wide"),
        )
    yield f"<p>All {len(found.rows)} devices, by node:</p>"
    for node, some in sorted(by_node.items()):
        done = sum(one.verdict in COVERED for one in some)
        yield from folded(
            f"{node}: {done} of {len(some)} covered", table(_HEAD, map(_device, some), kind="wide")
        )


def _device(one: Row) -> str:
    told, proof = one.result, one.proof
    figures = told.bytes
    chain = "-"
    if proof is not None and proof.entry:
        before = ", ".join(text.digest(digest) for digest in proof.previous)
        chain = f"{proof.chain}, after {before}" if before else "1, the first"
    return row(
        one.place,
        told.uuid,
        one.verdict,
        told.outcome,
        told.state,
        f"{figures.covered} / {figures.total}" if figures.total else "-",
        f"{told.seconds:.2f}" if told.seconds else "-",
        text.rate(told.rate),
        told.certificate or "-",
        proof.entry if proof is not None and proof.entry else "-",
        chain,
        _checked(one),
        open_=one.verdict not in COVERED or (proof is not None and not proof.sound),
    )


def _checked(one: Row) -> str:
    if one.proof is None:
        return "not read" if one.result.certificate else "-"
    return "; ".join(one.proof.wrong) or "verified"


def _proof(found: RunFigures) -> Iterator[str]:
    yield "<h2>Proof</h2>"
    if found.evidence:
        keys = sorted({one.proof.key_id for one in found.rows if one.proof and one.proof.key_id})
        yield f"<p>Read from {marked(found.evidence)} and verified while this page was made, with"
        yield f"keys {', '.join(f'<code>{marked(key)}</code>' for key in keys) or 'none'}.</p>"
        for note in found.notes:
            yield f"<p>Note: {marked(note)}</p>"
    else:
        yield f"<p>No evidence was read: {marked(found.unread or 'none was named')}.</p>"
    yield "<p>To verify it again: <code>fleet evidence export DIR</code>, then"
    yield "<code>fleet evidence verify --directory DIR --key FILE</code> with a public key you got"
    yield "another way; <code>fleet evidence show DIGEST --html FILE</code> prints one certificate"
    yield "with its whole chain and the commands for openssl.</p>"


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
