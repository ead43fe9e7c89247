"""``python -m tests.chaos.storm --minutes N``: one real system that is struck for so long.

The system is a local Ray with a head and a raylet for each node, node actors with simulated
devices, node plugins over gRPC with standby and bridge, a kubelet with pods that write into what
they get, the coordinator, leases in moto's DynamoDB and evidence in its S3, and campaigns one after
the other. Faults fall as the seed says (`tests.chaos.storm.plan`), each one a JSON line of
the log. Then no more fall, and everything must come to rest.

Exit code 0: no promise was broken and everything settled; 1: not so; 2: it could not run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.storm import hosts


def main(arguments: Sequence[str]) -> int:
    """Parse, prepare the ground, and let it storm."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.storm", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of faults, once pods run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=3, help="nodes, each with a raylet")
    parser.add_argument("--gap", type=float, default=4.0, help="between two faults, s on average")
    parser.add_argument("--log", type=Path, help="where faults are written down, as JSON lines")
    parser.add_argument("--keep", action="store_true", help="leave all files, also after success")
    asked = parser.parse_args(arguments)
    if asked.minutes <= 0 or asked.nodes < 1 or asked.gap <= 0:
        parser.error("minutes, nodes and gap are more than nothing")
    hosts.enter(arguments)
    if not hosts.own():
        asked.nodes = 1
    root = Path(tempfile.mkdtemp(prefix="st-", dir="/tmp"))  # paths of sockets must be short
    os.environ["PYTHONFAULTHANDLER"] = "1"
    from tests.chaos.storm.site import environment

    os.environ.update(environment(root))
    from tests.chaos.storm.storm import Asked, run

    log = asked.log or root.with_suffix(".jsonl")
    broken = run(root, Asked(asked.minutes, asked.seed, asked.nodes, asked.gap, log))
    if broken or asked.keep:
        sys.stdout.write(f"everything is kept in {root}\n")
    else:
        shutil.rmtree(root, ignore_errors=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
