"""Numbers, states and times as an operator reads them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from fleet.messages import DeviceView, NodeView, ReasonView

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


def coloured(word: str) -> Text:
    """A state or outcome in its colour; colour is never the only sign."""
    return Text(word, style=COLOURS.get(word, ""))


def size(count: float) -> str:
    """Bytes with a binary unit: ``64.0 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


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


def banner(console: Console, views: Sequence[NodeView]) -> None:
    """Say first when what follows is simulated (promise 10)."""
    if any(view.simulated for view in views):
        console.print(Text(SIMULATED, style="bold black on yellow"))


def reasons(device: DeviceView) -> str:
    """The codes of a device's reasons."""
    return ", ".join(sorted({reason.code for reason in device.reasons})) or "-"


def explain(console: Console, place: str, found: Sequence[ReasonView]) -> None:
    """Each reason with its remedy, one line each."""
    for reason in sorted(found, key=lambda one: (one.code, one.source)):
        lift = "a passed retest lifts it" if reason.liftable else "only an operator lifts it"
        console.print(
            Text.assemble(
                (f"  {place}: ", "bold"),
                f"{reason.code} ({reason.source}; {lift})",
                f": {reason.detail}" if reason.detail else "",
            )
        )
        if reason.remedy:
            console.print(Text(f"      do: {reason.remedy}"))
