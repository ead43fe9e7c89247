"""`make kubelet-demo`: the life of pods on one node, without a cluster.

A kubelet stand-in registers the real plugin and runs pods on simulated devices. Every step is shown
with its time, and one CDI file whole: prepare, restart, a second tenant who searches for the first
one's secret, force delete, reboot. Exit code 1 when a promise does not hold.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fleet.core import logs, terminal
from fleet.core.profiles import Profile
from tests.lab.kubelet import demo

PROFILES = (Profile.FAST.value, Profile.LAB.value)
"""Not `strict`: it waits for binding conditions that a coordinator sets, and here is none."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; the exit code of the story."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.kubelet", description=__doc__)
    parser.add_argument(
        "--dir", type=Path, help="keep everything below this new directory; else it is removed"
    )
    parser.add_argument("--profile", choices=PROFILES, default=Profile.FAST.value)
    chosen = parser.parse_args(arguments)
    if chosen.dir is not None and chosen.dir.exists() and any(chosen.dir.iterdir()):
        parser.error(f"{chosen.dir} is not empty: name a directory that does not exist yet")
    with tempfile.TemporaryDirectory(prefix="fleet-kubelet-") as scratch:
        return demo.run(chosen.dir or Path(scratch), _say, profile=Profile(chosen.profile))


def _say(line: str) -> None:
    sys.stdout.write("\n".join(map(terminal.visible, line.split("\n"))) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    os.umask(0o077)  # keys and journals are their owner's alone, as under `fleet`
    logs.guard("kubelet-demo")
    sys.exit(main())
