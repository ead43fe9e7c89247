"""Numbers, states, times and words from outside as an operator reads them.

Process names, an operator's reasons, claim uids and errors are written by others. None of them may
move the cursor, forge a line or turn the reading order round: `fleet.core.terminal` is the one
place that decides how such characters look, and every console of ours (`fleet.cli.output`) goes
through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleet.core import terminal
from fleet.core.messages import DeviceView, LostDevice, NodeView, ReasonView, Replication
from fleet.core.model import State
from fleet.evidence import dsse

COLOURS = {
    "CLEAN": "green",
    "certified": "green",
    "IN_USE": "cyan",
    "in-use": "cyan",
    "QUARANTINED": "red",
    "quarantined": "red",
    "failed": "red",
    "unreachable": "red",
    "HELD": "yellow",
    "held": "yellow",
    "DIRTY": "yellow",
    "interrupted": "yellow",
}
SIMULATED = "SIMULATED devices: files on this machine, no accelerator was touched"
_PLAIN = terminal.PLAIN
visible = terminal.visible


def plain(value: str, style: str = "") -> Text:
    """A line of text; nothing in `value` is taken for markup or reaches the terminal as a control.

    Rich's own `Text` drops some controls silently, so what comes from outside goes through here.
    """
    return Text(visible(value), style=style)


def joined(*parts: str | Text | tuple[str, str]) -> Text:
    """One line of several parts: plain, styled already, or (text, style)."""
    line = Text()
    for part in parts:
        line.append_text(part if isinstance(part, Text) else _part(part))
    return line


def _part(part: str | tuple[str, str]) -> Text:
    return plain(part) if isinstance(part, str) else plain(*part)


def shown(found: Text) -> Text:
    """`found` with `visible` characters only, its styles on the same words as before."""
    if _PLAIN.fullmatch(found.plain):
        return found
    line = found.blank_copy()
    for piece in found.divide(range(1, len(found.plain))):
        letter = piece.blank_copy(visible(piece.plain))
        for span in piece.spans:
            letter.stylize(span.style)
        line.append_text(letter)
    return line


def coloured(word: str) -> Text:
    """A state or outcome in its colour; colour is never the only sign."""
    return plain(word, COLOURS.get(word, ""))


def size(count: float) -> str:
    """Bytes with a binary unit: ``64.0 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def memory(count: float) -> str:
    """As `size`; a device of which nobody tells how much memory it has says so."""
    return size(count) if count else "unknown"


def rate(bytes_per_s: float) -> str:
    """Bytes per second, decimal as vendors quote it; "-" when unknown."""
    return f"{bytes_per_s / 1e9:.2f} GB/s" if bytes_per_s else "-"


def duration(seconds: float) -> str:
    """Seconds as ``12 s``, ``3 min 05 s`` or ``2 h 10 min``."""
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def digest(value: str) -> str:
    """The first characters of a certificate digest, enough to find it; "-" for none."""
    return value.removeprefix("sha256:")[:12] or "-"


def banner(console: Console, views: Iterable[NodeView]) -> None:
    """Say first when what follows is simulated (promise 10)."""
    warn(console, simulated=any(view.simulated for view in views))


def warn(console: Console, *, simulated: bool) -> None:
    """The line itself, where something other than the nodes' views tells."""
    if simulated:
        console.print(plain(SIMULATED, "bold black on yellow"))


def table(*columns: str, title: str = "") -> Table:
    """A table as every verb shows one: words and spaces, no lines."""
    return Table(*columns, box=None, pad_edge=False, title=title or None, title_justify="left")


def listed(console: Console, views: Iterable[NodeView]) -> tuple[int, int]:
    """One line for each device of these views; how many there are, and how many are HELD."""
    count = held = 0
    for view in views:
        for device in view.devices:
            count, held = count + 1, held + (device.state == State.HELD)
            console.print(
                joined(
                    f"  {view.node}/{device.name}  {device.uuid}  ",
                    memory(device.memory_bytes),
                    "  ",
                    coloured(device.state),
                )
            )
    return count, held


def reasons(device: DeviceView) -> str:
    """The codes of a device's reasons."""
    return ", ".join(sorted({reason.code for reason in device.reasons})) or "-"


def is_retired(view: NodeView, device: DeviceView) -> bool:
    """Whether an operator took the device, or the accelerator it is part of, out for good."""
    return device.uuid in view.retired or device.accelerator in view.retired


def taken_back(node: str, device: str) -> str:
    """The decision that ends a retirement."""
    return f"`fleet node adopt --node {node} --device {device}`, then `fleet quarantine clear`"


def explain_retired(console: Console, view: NodeView) -> None:
    """Each retired device of a node, present or gone, with what takes it back."""
    named = {device.uuid: device.name for device in view.devices}
    for uuid in view.retired:
        name = named.get(uuid, f"{uuid} (not there any more)")
        console.print(
            joined(
                (f"  {view.node}/{name}: ", "bold"),
                "retired: it is offered to nobody, for good; ",
                f"{taken_back(view.node, named.get(uuid, uuid))} takes it back",
            )
        )


def explain_lost(console: Console, view: NodeView, lost: LostDevice) -> None:
    """A device that is not there any more: what is open against it, or why nothing is."""
    place = f"{view.node}/{lost.device.name}"
    if lost.device.uuid in view.retired:
        return
    if not lost.closed:
        explain(console, place, lost.device.reasons)
        return
    codes = ", ".join(sorted({one.code for one in lost.device.reasons})) or "nothing"
    told = f"closed: {lost.closed}; {codes} was open against {lost.device.uuid}"
    console.print(joined((f"  {place}: ", "bold"), told))


def explain(console: Console, place: str, found: Sequence[ReasonView]) -> None:
    """Each reason with its remedy, one line each."""
    for reason in sorted(found, key=lambda one: (one.code, one.source)):
        lift = "a passed retest lifts it" if reason.liftable else "only an operator lifts it"
        console.print(
            joined(
                (f"  {place}: ", "bold"),
                f"{reason.code} ({reason.source}; {lift})",
                f": {reason.detail}" if reason.detail else "",
            )
        )
        if reason.remedy:
            console.print(plain(f"      do: {reason.remedy}"))


def keeper(place: str, device: DeviceView) -> Iterator[str]:
    """Who keeps a device from being wiped or repaired, with what to do; nothing for nobody."""
    if device.kept_by:
        yield f"  {place}: kept by {device.kept_by}"
        yield (
            "      do: end that pod (`kubectl delete pod`) or process; nothing is killed for you,"
            " and a pod with an extended resource is not evicted by the device's taint"
        )


def replication(owner: str, found: Replication | None) -> Iterator[str]:
    """Lines about copies of evidence that are not in the archive; none when all are."""
    if found is None or (found.backlog == 0 and not found.error):
        return
    since = f", the oldest of {dsse.stamp(found.oldest_at)}" if found.oldest_at else ""
    many = "unknown how many" if found.backlog is None else found.backlog
    what = f"{many} not in the archive {found.archive}".rstrip()
    yield f"  {owner}: evidence: {what}{since}"
    if found.error:
        yield f"    {found.error}"
    for why in found.aside:
        yield f"    set aside: {why}"
