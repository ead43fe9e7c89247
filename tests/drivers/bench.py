"""What the agent adds to the driver's own calls, on stand-ins whose calls take next to no time.

``python -m tests.drivers.bench [devices]`` prints a table. Everything goes the way of the node: the
driver in one child for each device, wipes by workers of the spawner. What is left of a wipe without
its passes is ours: the worker's start is shown apart, because a spare has it done beforehand.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fleet.core.model import Accelerator
from fleet.devices.remote import RemoteBackend
from tests.drivers.host import Host
from tests.gpu import working
from tests.gpu.working import Wiped

DEVICES = 8
MIB = 1 << 20
TOTAL, RESERVED = 8 * MIB, 64 * 1024
LIMIT_S = 0.5
"""Time, s, that the agent may add for each device (issue 5)."""
WIPE_S = 60.0


@dataclass
class Figures:
    """Seconds for each device, by what was done."""

    rows: dict[str, list[float]] = field(default_factory=dict)

    def add(self, what: str, seconds: float) -> None:
        """One device more."""
        self.rows.setdefault(what, []).append(seconds)

    def median(self, what: str) -> float:
        """Of all devices."""
        return statistics.median(self.rows[what])

    @property
    def added_s(self) -> float:
        """Inventory, one reading, one look for holders and a wipe without passes and start."""
        names = ("inventory", "readings", "processes", "wipe without its passes")
        return sum(self.median(name) for name in names)


def machine(root: Path, devices: int) -> Host:
    """A machine with so many GPUs, as large as a server's in all but memory."""
    made = Host(root)
    for _ in range(devices):
        made.add_gpu(total=TOTAL, reserved=RESERVED, context_bytes=0, nvlinks=18)
    (root / "kmsg").touch()
    return made


def settings(host: Host) -> dict[str, Any]:
    """Of the back end."""
    return {
        "root": str(host.hardware_root),
        "kernel_log": str(host.root / "kmsg"),
        "identities": str(host.root / "cards.json"),
    }


def timed(act: Callable[[], object]) -> float:
    """How long it takes, s."""
    began = time.monotonic()
    act()
    return time.monotonic() - began


def asked(backend: RemoteBackend, into: Figures) -> Sequence[Accelerator]:
    """Inventory, readings and holders; the first of each starts a child, the next ones count."""
    into.add("inventory, first", timed(backend.inventory))
    found: list[Accelerator] = []
    seconds = timed(lambda: found.extend(backend.inventory()))
    for one in found:
        into.add("inventory", seconds / len(found))
        into.add("readings, first", timed(partial(backend.readings, one.uuid)))
        into.add("readings", timed(partial(backend.readings, one.uuid)))
        into.add("processes", timed(partial(backend.processes, one.uuid)))
    return found


def wiped(host: Host, one: Accelerator) -> Wiped:
    """One wipe by the real worker. Raises AssertionError unless it is verified."""
    found = working.wipe(
        working.order(settings(host), one, one.device), contained=False, limit_s=WIPE_S
    )
    assert found.result.verified, found.result.detail
    return found


def note(found: Wiped, into: Figures) -> None:
    """The parts of one wipe."""
    into.add("worker, spawn to ready", found.ready_s)
    into.add("wipe, go to report", found.wall_s)
    into.add("wipe, its passes", found.result.seconds)
    into.add("wipe without its passes", found.wall_s - found.result.seconds)


def measured(host: Host, *, wipes: int) -> Figures:
    """All of it; `wipes` devices are wiped, one after the other."""
    into = Figures()
    backend = RemoteBackend("nvidia", settings(host))
    try:
        found = asked(backend, into)
        for one in found[:wipes]:
            note(wiped(host, one), into)
    finally:
        backend.close()
    return into


def at_once(host: Host) -> float:
    """Time, s, that each device costs when all are wiped at the same time."""
    backend = RemoteBackend("nvidia", settings(host))
    try:
        found = backend.inventory()
        with ThreadPoolExecutor(len(found)) as pool:
            began = time.monotonic()
            list(pool.map(lambda one: wiped(host, one), found))
            return (time.monotonic() - began) / len(found)
    finally:
        backend.close()


def lines(found: Figures, each_s: float) -> Sequence[str]:
    """The table."""
    shown = ["| what, for each device | median | worst |", "|---|---|---|"]
    for what, seconds in found.rows.items():
        worst, middle = max(seconds), statistics.median(seconds)
        shown.append(f"| {what} | {middle * 1e3:.1f} ms | {worst * 1e3:.1f} ms |")
    shown.append(f"| **added by the agent** (limit {LIMIT_S} s) | {found.added_s:.3f} s | |")
    shown.append(
        f"| all wiped at the same time, worker starts and passes in it | {each_s:.3f} s | |"
    )
    return shown


def main(devices: int) -> None:
    """On a machine that is made for it and thrown away; children inherit where the drivers are."""
    with tempfile.TemporaryDirectory() as place:
        host = machine(Path(place) / "machine", devices)
        os.environ.update(host.environment())
        found = measured(host, wipes=devices)
        sys.stdout.write("\n".join(lines(found, at_once(host))) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else DEVICES)
