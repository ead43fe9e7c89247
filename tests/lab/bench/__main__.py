"""All benchmarks in one run: ``make bench``. Each figure stands beside its yardstick.

verified wipe    against memset and memcmp making the same four passes, as many processes
campaign         against its slowest node's own time
leases           durable acquire+release: the store directly, and through the coordinator actor
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from actors import muster
from fleet.wiring import adapters
from tests.lab.bench import campaign, leases, wipe


def leases_through_actor(folder: Path, *, runs: int, rounds: int) -> leases.Rate:
    """Durable leases per second through the coordinator actor on a local Ray."""
    plan = adapters.plan_fleet(folder, simulate="1x1", memory_bytes=1 << 20)
    with muster.local(plan) as fleet:
        return leases.rate(fleet.coordinator, runs=runs, rounds=rounds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; 0 unless a benchmark cannot run."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs; medians are printed")
    parser.add_argument("--gib", type=float, default=1.0, help="GiB per device for the wipe")
    parser.add_argument("--mib", type=int, default=256, help="MiB per device for the campaign")
    chosen = parser.parse_args(arguments)
    status = wipe.main(["--gib", str(chosen.gib), "--devices", "2", "--runs", str(chosen.runs)])
    found = campaign.measure(mib=chosen.mib, runs=chosen.runs)
    sys.stdout.write(campaign.render(found))
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as folder:
        direct = leases.measure(Path(folder), runs=chosen.runs)
        sys.stdout.write(leases.render("leases, SQLite", direct.direct))
        sys.stdout.write(f"{'bare fsync, same disk':24} {direct.fsyncs_per_s:9.0f} /s\n")
        through = leases_through_actor(Path(folder) / "fleet", runs=chosen.runs, rounds=100)
        sys.stdout.write(leases.render("leases, coordinator actor", through))
    return status


if __name__ == "__main__":
    sys.exit(main())
