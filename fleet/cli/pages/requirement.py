"""What a requirement is answered with, as lines, as a page to print and as rows for a sheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from fleet.cli import text
from fleet.cli.pages import markup
from fleet.evidence.requirements.report import ComplianceReport, DeviceAnswer, Missing

_MOST_VALUES = 6
"""Values of one figure shown in text; all are in the JSON document."""
_MOST_NAMES = 8
"""Devices named in a group; all are in the page, the sheet and the JSON document."""
COLUMNS = (
    "node", "device", "uuid", "state", "simulated", "answered", "certificates", "verified",
    "answering", "covered_bytes", "total_bytes", "last_wipe", "certificate", "verification",
    "missing", "remedies",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    """Devices that one and the same answer is given for."""

    answered: bool
    missing: tuple[tuple[str, str], ...]
    """What is missing and what to do, once each."""
    devices: tuple[DeviceAnswer, ...]

    def names(self, most: int = _MOST_NAMES) -> str:
        """The devices, the first of them by name."""
        told = [f"{one.node}/{one.device}" for one in self.devices]
        more = f" and {len(told) - most} more" if len(told) > most else ""
        return ", ".join(told[:most]) + more


def groups(found: ComplianceReport) -> list[Group]:
    """What is missing first, the most devices first."""
    of: dict[tuple[bool, tuple[tuple[str, str], ...]], list[DeviceAnswer]] = {}
    for device in found.devices:
        missing = tuple(dict.fromkeys((one.what, one.remedy) for one in device.missing))
        of.setdefault((device.answered, missing), []).append(device)
    made = [Group(*answer, tuple(devices)) for answer, devices in of.items()]
    return sorted(made, key=lambda one: (one.answered, -len(one.devices)))


def verdict(found: ComplianceReport) -> str:
    """How many devices have an answer."""
    if not found.devices:
        return "there is no device: nothing is answered"
    more = f"; of the fleet {len(found.missing)} things are missing" if found.missing else ""
    return f"{found.answered} of {len(found.devices)} devices have a valid answer{more}"


def render(console: Console, found: ComplianceReport, *, every: bool) -> None:
    """The answer for people: a line for each group, or everything of every device."""
    text.warn(console, simulated=found.simulated)
    console.print(text.joined((f"{found.requirement}: ", "bold"), found.title))
    console.print(text.plain(verdict(found), "bold red" if found.exit_code else "bold green"))
    console.print(text.plain(f"source: {found.source}", "dim"))
    if found.since or found.until:
        console.print(text.plain(f"period: {found.since or 'the first'} to {found.until or 'now'}"))
    if every:
        console.print(_table(found))
        for device in found.devices:
            _explain(console, device)
    else:
        for group in groups(found):
            _show(console, group)
    for missing in found.missing:
        _tell(console, "fleet", missing)
    for note in found.notes:
        console.print(text.plain(f"note: {note}", style="dim"))
    if not every:
        console.print(
            text.plain("every device and figure: --all, --csv FILE or --html FILE", "dim")
        )
        return
    for line in found.not_covered:
        console.print(text.plain(f"not covered: {line}"))
    for line in found.operator:
        console.print(text.plain(f"the organisation adds: {line}"))


def _show(console: Console, group: Group) -> None:
    word, style = ("answered", "green") if group.answered else ("NOT answered", "bold red")
    count = len(group.devices)
    console.print(
        text.joined(
            (f"{count} {'device' if count == 1 else 'devices'} {word}: ", style), group.names()
        )
    )
    for what, remedy in group.missing:
        console.print(text.plain(f"  {what}"))
        console.print(text.plain(f"      do: {remedy}"))


def csv_of(found: ComplianceReport) -> str:
    """A row for each device, `COLUMNS` first. Sizes are bytes, times RFC 3339."""
    sheet = io.StringIO()
    writer = csv.writer(sheet, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in found.devices:
        last = one.last
        row: Sequence[object] = (
            one.node, one.device, one.uuid, one.state, one.simulated, one.answered,
            one.certificates, one.verified, one.answering,
            "" if last is None else last.covered_bytes, "" if last is None else last.total_bytes,
            "" if last is None else last.issued_at, "" if last is None else last.certificate,
            "" if last is None else last.verification,
            "; ".join(missing.what for missing in one.missing),
            "; ".join(missing.remedy for missing in one.missing),
        )  # fmt: skip
        writer.writerow([_cell(value) for value in row])
    return sheet.getvalue()


def _cell(value: object) -> str:
    """Text of a cell: what a sheet would take for a formula is marked as text."""
    told = text.visible(str(value))
    return f"'{told}" if told.startswith(("=", "+", "-", "@")) else told


def page(found: ComplianceReport) -> str:
    """The answer as one page to print."""
    mark = "SIMULATED: " if found.simulated else ""
    return markup.document(f"{mark}{found.requirement}: {found.title}", _body(found))


def _body(found: ComplianceReport) -> Iterator[str]:
    yield f"<h1>{markup.text(found.requirement)}: {markup.text(found.title)}</h1>"
    if found.simulated:
        yield '<div class="watermark">SIMULATED</div>'
        yield f'<p class="simulated">{markup.text(text.SIMULATED)}</p>'
    yield f"<p><strong>{markup.text(verdict(found))}</strong></p>"
    yield f"<p>Source: {markup.text(found.source)}</p>"
    if found.since or found.until:
        span = f"{found.since or 'the first'} to {found.until or 'now'}"
        yield f"<p>Period: {markup.text(span)}</p>"
    rows = []
    for group in groups(found):
        missing = "; ".join(f"{what} — {remedy}" for what, remedy in group.missing)
        word = "yes" if group.answered else "NO"
        cells = (str(len(group.devices)), word, missing or "-", group.names(most=10_000))
        rows.append(markup.row(*cells, open_=not group.answered))
    yield "<h2>Answers</h2>"
    yield from markup.table(("devices", "answered", "what is missing", "which"), rows)
    if found.missing:
        yield "<h2>Missing of the fleet</h2>"
        gaps = [markup.row(one.what, one.remedy, open_=True) for one in found.missing]
        yield from markup.table(("what", "what to do"), gaps)
    yield "<h2>Devices</h2>"
    lines = []
    for one in found.devices:
        last = one.last
        size = f"{text.size(last.covered_bytes)} / {text.size(last.total_bytes)}" if last else "-"
        lines.append(
            markup.row(
                one.node,
                one.device,
                one.uuid,
                one.state or "-",
                "yes" if one.answered else "NO",
                size,
                last.issued_at[:19] + "Z" if last else "-",
                last.certificate if last else "-",
                open_=not one.answered,
            )
        )
    head = (
        "node",
        "device",
        "UUID",
        "state",
        "answer",
        "covered / total",
        "last wipe",
        "certificate",
    )
    yield from markup.table(head, lines)
    for title, told in (
        ("Not covered", found.not_covered),
        ("The organisation adds", found.operator),
        ("Notes", found.notes),
    ):
        if told:
            yield f"<h2>{title}</h2><ul>"
            yield from (f"<li>{markup.text(line)}</li>" for line in told)
            yield "</ul>"


def _table(found: ComplianceReport) -> Table:
    table = text.table()
    for column in ("node", "device", "state", "answer"):
        table.add_column(column, no_wrap=True)
    for column in ("certificates", "verified", "answering", "covered / total"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("last wipe", "certificate", "verification"):
        table.add_column(column, no_wrap=True)
    for device in found.devices:
        last = device.last
        size = f"{text.size(last.covered_bytes)} / {text.size(last.total_bytes)}" if last else "-"
        label = " (simulated)" if device.simulated else ""
        table.add_row(
            device.node,
            device.device + label,
            device.state or "-",
            "yes" if device.answered else "NO",
            str(device.certificates),
            str(device.verified),
            str(device.answering),
            size,
            last.issued_at[:19].replace("T", " ") if last else "-",
            text.digest(last.certificate) if last else "-",
            last.verification.partition(":")[0] if last else "-",
        )
    return table


def _explain(console: Console, device: DeviceAnswer) -> None:
    place = f"{device.node}/{device.device}"
    for missing in device.missing:
        _tell(console, place, missing)
    for figure, values in device.figures.items():
        console.print(text.joined((f"  {place}: ", "dim"), f"{figure} = {_shown(values)}"))


def _tell(console: Console, place: str, missing: Missing) -> None:
    about = f" (certificate {text.digest(missing.certificate)})" if missing.certificate else ""
    where = f" at {missing.place}" if missing.place else ""
    console.print(text.joined((f"  {place}: ", "bold red"), f"{missing.what}{about}{where}"))
    console.print(text.plain(f"      do: {missing.remedy}"))


def _shown(values: list[Any]) -> str:
    told = list(dict.fromkeys(_word(value) for value in values))
    more = f", and {len(told) - _MOST_VALUES} more" if len(told) > _MOST_VALUES else ""
    return (", ".join(told[:_MOST_VALUES]) or "-") + more


def _word(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, dict):
        return ", ".join(f"{name}={_word(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        return "; ".join(_word(each) for each in value) or "none"
    return str(value) or '""'
