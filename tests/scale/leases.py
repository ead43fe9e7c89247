"""Leases through the coordinator's actor by several drivers: ``python -m tests.scale.leases``.

A driver is a process of its own that attaches to Ray as the product's do. One round asks for the
eight devices of a node in one call, each under a token of its own, and gives them back in another:
two durable transactions. `--single` asks for one device at a time instead. Beside the rate stand
the latency of a call and the processor time of the coordinator for each device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from actors import cluster, handles
from fleet.core.errors import FleetError
from fleet.core.model import Holder, HolderKind
from fleet.core.settings import StoreKind
from tests.lab.bench.leases import Leasing, one_round
from tests.scale import grounds
from tests.scale.grounds import Ground, cpu_s

DEVICES = 8
"""Devices of a node, asked for together."""
TTL_S = 600.0


@dataclass(frozen=True, slots=True)
class Driven:
    """What one driver did. Times in seconds."""

    devices: int
    elapsed_s: float
    calls_s: tuple[float, ...]
    refused: int = 0
    """Rounds that ended in an error of ours, by time-out or refusal."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One measurement over all drivers."""

    store: str
    drivers: int
    batch: int
    devices_per_s: float
    calls_per_s: float
    call_p50_ms: float
    call_p99_ms: float
    call_max_ms: float
    coordinator_cpu_ms_per_device: float
    refused: int


def drive(leasing: Leasing, name: str, *, batch: int, seconds: float) -> Driven:
    """Rounds for `seconds`, node after node of this driver's own."""
    holder = Holder(HolderKind.OPERATOR, name)
    began = time.perf_counter()
    devices, turn, refused, calls = 0, 0, 0, []
    while (started := time.perf_counter()) - began < seconds:
        units = [f"{name}-node{turn % 64}-gpu{device}/0" for device in range(batch)]
        turn += 1
        try:
            one_round(leasing, units, holder)
        except FleetError:
            refused += 1
            continue
        devices += batch
        calls.append((time.perf_counter() - started) / 2)
    return Driven(devices, time.perf_counter() - began, tuple(calls), refused)


def spawn(address: str, name: str, *arguments: str) -> subprocess.Popen[str]:
    """A driver process; it says "ready" once attached and begins at the first line it reads."""
    command = [sys.executable, "-m", "tests.scale.leases", "--attach", address, "--name", name]
    return subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=grounds.ROOT,
    )


def together(processes: Sequence[subprocess.Popen[str]]) -> list[Driven]:
    """Let drivers that were spawned begin at once; what each did. Ends them in any case."""
    try:
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("a driver did not start")
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return [_read(process.communicate()[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _read(text: str) -> Driven:
    found = json.loads(text)
    return Driven(**{**found, "calls_s": tuple(found["calls_s"])})


def measure(ground: Ground, *, drivers: int, batch: int, seconds: float) -> Figures:
    """Rates over all drivers, which run at the same time."""
    arguments = ("--batch", str(batch), "--seconds", str(seconds))
    processes = [spawn(ground.address, f"driver{n}", *arguments) for n in range(drivers)]
    before = cpu_s(ground.pid)
    found = together(processes)
    spent_s = cpu_s(ground.pid) - before
    calls = sorted(call for one in found for call in one.calls_s)
    devices = sum(one.devices for one in found)
    return Figures(
        store=str(ground.plan.settings.store.kind),
        drivers=drivers,
        batch=batch,
        devices_per_s=sum(one.devices / one.elapsed_s for one in found),
        calls_per_s=sum(2 * len(one.calls_s) / one.elapsed_s for one in found),
        call_p50_ms=1000 * statistics.median(calls),
        call_p99_ms=1000 * calls[int(len(calls) * 0.99)],
        call_max_ms=1000 * calls[-1],
        coordinator_cpu_ms_per_device=1000 * spent_s / devices,
        refused=sum(one.refused for one in found),
    )


def timed(act: Callable[[], object], times: int) -> float:
    """Median milliseconds of one `act`."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        found.append(time.perf_counter() - began)
    return 1000 * statistics.median(found)


def render(found: Figures) -> str:
    """One line of figures."""
    return (
        f"{found.store:11} {found.drivers:3} drivers, {found.batch:3} a call:"
        f" {found.devices_per_s:8.0f} devices/s {found.calls_per_s:7.0f} calls/s,"
        f" call p50 {found.call_p50_ms:6.1f} p99 {found.call_p99_ms:6.1f}"
        f" max {found.call_max_ms:6.1f} ms,"
        f" coordinator {found.coordinator_cpu_ms_per_device:6.3f} ms CPU/device,"
        f" refused {found.refused}\n"
    )


def _attached(chosen: argparse.Namespace) -> int:
    """The driver's own process."""
    attached = cluster.attach(chosen.attach)
    try:
        coordinator = handles.find_coordinator()
        coordinator.ping()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        found = drive(coordinator, chosen.name, batch=chosen.batch, seconds=chosen.seconds)
        sys.stdout.write(json.dumps(asdict(found)))
        sys.stdout.flush()
    finally:
        attached.close()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; 0 unless the measurement cannot run."""
    parser = argparse.ArgumentParser(prog="python -m tests.scale.leases", description=__doc__)
    parser.add_argument("--store", type=StoreKind, choices=list(StoreKind), action="append")
    parser.add_argument("--drivers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, DEVICES, 100])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--json", action="store_true", help="print JSON, one document a line")
    parser.add_argument("--attach", default="", help=argparse.SUPPRESS)
    parser.add_argument("--name", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.attach:
        chosen.batch = chosen.batch[0]
        return _attached(chosen)
    for kind in chosen.store or [StoreKind.SQLITE]:
        with grounds.ground(kind) as ground:
            for batch in chosen.batch:
                for drivers in chosen.drivers:
                    found = measure(ground, drivers=drivers, batch=batch, seconds=chosen.seconds)
                    said = json.dumps(asdict(found)) + "\n" if chosen.json else render(found)
                    sys.stdout.write(said)
                    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
