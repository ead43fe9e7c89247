"""Make the states that `tests/goldens/states` holds: files as a release left them on disk.

`python -m tests.goldens.states DIR` (it needs a local Ray and a minute). A state that is in the
repository is not replaced by this: one of a later release stands beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BY = ("--operator", "op")
CAMPAIGN = (
    ("scrub", "--simulate", "2x3", "--memory", "64KiB"),
    ("quarantine", "add", "gpu-1", "--node", "node-01", "--reason", "fan", *BY),
    ("sim", "fault", "dirty-word", "--device", "gpu-0", "--node", "node-02"),
    ("scrub",),
    ("devices", "retire", "gpu-2", "--node", "node-02", "--reason", "sold", *BY),
    ("prove",),
    ("evidence", "keys", "rotate", "node-01"),
    ("tag", "key", "new"),
    ("tag", "issue", "--namespace", "tenant-a", "--days", "3650"),
)
"""Two campaigns, one with a device that fails; a decision, a retired device, a replaced key."""
KUBELET = "tests.lab.kubelet"
"""Pods: prepared, a second tenant, deleted by force, a reboot."""
PASSING = ("*.lock", "*.sock", "*.bin", "*-wal", "*-shm")
"""What is no record: locks, sockets, the memory of simulated devices."""


def make(directory: Path) -> None:
    """Both states below `directory`, which is made."""
    pods = (KUBELET, "--profile", "lab", "--dir", str(directory / "kubelet"))
    campaign = tuple(("fleet.cli.main", *words) for words in CAMPAIGN)
    for name, commands in (("campaign", campaign), ("kubelet", (pods,))):
        state = directory / name
        for words in commands:
            ran = subprocess.run(
                [sys.executable, "-m", *words],
                env={
                    **os.environ,
                    "FLEET_STATE": str(state),
                    "FLEET_TAG_AUTHORITY": str(state / "tags"),
                },
                check=False,
            )
            if ran.returncode > 1:
                raise SystemExit(f"{' '.join(words)}: exit code {ran.returncode}")
        for pattern in PASSING:
            for path in state.rglob(pattern):
                path.unlink()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
