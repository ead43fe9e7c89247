"""What the fleet costs: a campaign's wall time beside its slowest node's own time.

The node's own time is what its journal says: from the first order accepted to the last result
stored, worker starts included. The campaign's adds leases, calls through Ray, polling and the
run store. Ray's start is not part of either.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fleet.core import sqlite
from fleet.core.settings import MIB
from fleet.evidence import layout
from fleet.node.journal import schema
from fleet.wiring import adapters
from jobs import scrub
from jobs.scrub import ScrubRequest

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the memory of simulated devices, deleted afterwards


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians over `runs`, seconds."""

    wall_s: float
    node_s: float
    ratio: float
    devices: int
    mib_per_device: int
    runs: int


def measure(*, simulate: str = "2x8", mib: int = 256, runs: int = 5) -> Figures:
    """Run whole campaigns on a local Ray, one after another over the same fleet."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-bench-", dir=_room()))
    try:
        plan = adapters.plan_fleet(folder, simulate=simulate, memory_bytes=mib * MIB)
        pairs = [_once(plan, folder) for _ in range(runs + 1)][1:]
    finally:
        shutil.rmtree(folder)
    devices = sum(node.simulated.accelerators for node in plan.nodes if node.simulated)
    return Figures(
        wall_s=statistics.median(wall for wall, _ in pairs),
        node_s=statistics.median(node for _, node in pairs),
        ratio=statistics.median(wall / node for wall, node in pairs),
        devices=devices,
        mib_per_device=mib,
        runs=runs,
    )


def _room() -> Path | None:
    return SHARED_MEMORY if SHARED_MEMORY.is_dir() else None


def _once(plan: adapters.FleetPlan, folder: Path) -> tuple[float, float]:
    """Wall seconds of one campaign and the slowest node's own; the warm-up is the first call."""
    report = scrub.run(
        ScrubRequest(), plan, observer=lambda _status: None, confirm=lambda _views: True
    )
    if report.exit_code != 0:
        bad = [
            f"{d.node}/{d.device} {d.outcome} {d.findings}" for d in report.devices if d.findings
        ]
        raise RuntimeError(f"the campaign did not end well: {report.exit_reason} {bad}")
    own = [own_s(folder, node.node, report.run) for node in plan.nodes]
    return report.wall_s, max(own)


def own_s(folder: Path, node: str, run: str) -> float:
    """Seconds from the first order of `run` the node accepted to the last result it stored."""
    path = layout.node_directory(folder, node) / "journal.db"
    journal = sqlite.open_database(path, schema=schema.SCHEMA, timeout_s=5, read_only=True)
    try:
        ((first, last),) = journal.query(
            "SELECT min(created_at), max(finished_at) FROM operations WHERE id LIKE ?",
            (f"{run}/%",),
        )
        return float(last) - float(first)
    finally:
        journal.close()


def render(found: Figures) -> str:
    """The figures as lines."""
    return (
        f"campaign       {found.wall_s:7.2f} s\n"
        f"slowest node   {found.node_s:7.2f} s\n"
        f"ratio          {found.ratio:7.2f}   (medians of {found.runs},"
        f" {found.devices} x {found.mib_per_device} MiB)\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; 0 unless the benchmark cannot run."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench.campaign", description=__doc__)
    parser.add_argument("--simulate", default="2x8", help="nodes x devices")
    parser.add_argument("--mib", type=int, default=256, help="MiB per device")
    parser.add_argument("--runs", type=int, default=5, help="runs; medians are printed")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    chosen = parser.parse_args(arguments)
    found = measure(simulate=chosen.simulate, mib=chosen.mib, runs=chosen.runs)
    sys.stdout.write(json.dumps(asdict(found), indent=2) + "\n" if chosen.json else render(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
