"""What the demo on stand-in drivers acts on: a machine with two GPUs, one state, the verbs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.core.settings import HardwareSettings
from tests.drivers.host import Gpu, Host
from tests.drivers.parts import MIB
from tests.drivers.tree import capability
from tests.lab.kubelet.narration import Telling

MEMORY_BYTES = 64 * MIB
CONTEXT_BYTES = 64 * 1024
"""What a context takes: a small part of the smallest partition, as on a GPU."""
ROOT = Path(__file__).parents[2]
PROFILES = {1: "1g-4mb", 2: "2g-8mb", 4: "3g-16mb"}
"""Names of the partitions that are used, by their memory slices."""
LEFT = b"left by whoever was here before"
VERB_S = 180.0


@dataclass(frozen=True, slots=True)
class Part:
    """A partition of the divided GPU: `size` memory slices from `start` on."""

    start: int
    size: int


class BrokenOff(Exception):
    """A verb failed, and nothing after it would mean anything."""


class Stage:
    """The machine and the fleet on it. Everything is below `directory`.

    This process and all it starts find the stand-ins from here on.
    """

    def __init__(self, directory: Path, telling: Telling) -> None:
        self.directory = directory
        self.telling = telling
        self.state = directory / "state"
        self.host = Host(directory / "machine")
        os.environ.update(self.host.environment())
        # What its memory can do is told as what files can: slower is a fault of the memory.
        self.whole, self.divided = (
            self.host.add_gpu(
                total=MEMORY_BYTES, context_bytes=CONTEXT_BYTES, bus_width=8, clock_max_memory=100
            )
            for _ in range(2)
        )
        for gpu in (self.whole, self.divided):
            # Freed memory keeps its content: nothing but our own wipe removes what was written.
            gpu.set(persistence=1, scrub_on_free=0)
        self.divided.set(mig_current=1, mig_pending=1)
        self.hardware = HardwareSettings(
            root=str(self.host.hardware_root),
            kernel_log=str(self.host.tree.put("dev/kmsg", "")),
            run_directory=str(directory / "run"),
        )
        self.policy = directory / "policy.toml"
        chosen = ("root", "kernel_log", "run_directory")
        lines = [f"{name} = {json.dumps(getattr(self.hardware, name))}\n" for name in chosen]
        self.policy.write_text("[hardware]\n" + "".join(lines))

    @property
    def node(self) -> str:
        """Name of the one node, once there is a fleet."""
        return str(json.loads((self.state / "fleet.json").read_text())["name"])

    def verb(self, *words: str, quiet: bool = False) -> str:
        """Run ``fleet <words>`` on the state and show what it says. Raises `BrokenOff`."""
        self.telling.line(f"   $ fleet {' '.join(words)}    (simulated GPUs: stand-in drivers)")
        ended = subprocess.run(
            [sys.executable, "-m", "fleet.cli.main", *words, "--state", str(self.state)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=VERB_S,
            check=False,
            env={**os.environ, "COLUMNS": "160"},
        )
        if not quiet:
            for line in ended.stdout.splitlines():
                self.telling.line(f"     {line.rstrip()}")
        if ended.returncode:
            raise BrokenOff(
                f"fleet {words[0]} ended with {ended.returncode}: {ended.stderr}{ended.stdout}"
            )
        return ended.stdout

    def devices(self, *words: str) -> dict[str, dict[str, Any]]:
        """What `fleet devices` lists, by name."""
        listed = json.loads(self.verb("devices", *words, "--json", quiet=True))["devices"]
        return {device["name"]: device for device in listed}

    # --- the divided GPU, looked at from outside ---------------------------------------------

    def named(self, part: Part, names: Sequence[str]) -> str:
        """The name among `names` of the partition at a place."""
        end = f"-{PROFILES[part.size]}-{part.start}"
        (found,) = (name for name in names if name.endswith(end))
        return found

    def stretch(self, part: Part) -> tuple[int, int]:
        """(offset, length) in bytes of what a tenant can reach of a partition."""
        slices = int(self.divided.get("slices"))
        reserved = int(self.divided.get("reserved")) * part.size // slices
        return part.start * MEMORY_BYTES // slices, part.size * MEMORY_BYTES // slices - reserved

    def soil(self, part: Part) -> None:
        """Leave something in the middle of a partition's memory."""
        offset, length = self.stretch(part)
        self.divided.write_memory(offset + length // 2, LEFT)

    def soiled(self, part: Part) -> bool:
        """Whether that is still there."""
        offset, length = self.stretch(part)
        return LEFT in self.divided.memory()[offset : offset + length]

    def instances(self) -> dict[tuple[int, int], int]:
        """Instances there are now: their number by (first memory slice, how many)."""
        return {place: gi for gi, place in self.divided.instances().items()}

    def uuid_of(self, gi: int) -> str:
        """How CUDA names an instance of the divided GPU."""
        return (self.divided.path / f"gi/{gi}/ci/0/uuid").read_text().strip()

    def capabilities(self, gi: int) -> set[str]:
        """Device nodes by which an instance is reached, and no other."""
        minor = int(self.divided.get("minor"))
        numbers = (capability(minor, gi), capability(minor, gi, 0))
        return {f"/dev/nvidia-caps/nvidia-cap{number}" for number in numbers}

    def judge_spec(self, path: Path, part: Part) -> bool:
        """Whether a CDI spec names the nodes of this partition's instance, and only those.

        The driver's libraries must come with it, read-only.
        """
        found = json.loads(path.read_text())
        edits = [device["containerEdits"] for device in found["devices"]]
        edits.append(found.get("containerEdits") or {})
        nodes = {node["path"] for one in edits for node in one.get("deviceNodes") or ()}
        mounts = [mount for one in edits for mount in one.get("mounts") or ()]
        gi = self.instances()[part.start, part.size]
        parent, other = (f"/dev/nvidia{gpu.get('minor')}" for gpu in (self.divided, self.whole))
        files = (Path(mount["containerPath"]).name for mount in mounts)
        self.telling.line(f"     nodes: {', '.join(sorted(nodes))}")
        self.telling.line(f"     read-only mounts: {', '.join(files)}")
        caps = {node for node in nodes if "nvidia-cap" in node}
        return (
            caps == self.capabilities(gi)
            and {parent, "/dev/nvidiactl", "/dev/nvidia-uvm"} <= nodes
            and other not in nodes
            and any("libcuda.so" in mount["containerPath"] for mount in mounts)
            and all("ro" in mount["options"] for mount in mounts)
        )


def loaded(gpu: Gpu) -> list[str]:
    """Files of the machine's stand-in drivers that this process has loaded."""
    place = gpu.host.environment()["LD_LIBRARY_PATH"]
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if place in line]
