"""A machine with stand-in GPUs, scripted by a test: writes the files that the drivers read."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from tests.drivers.building import libraries
from tests.drivers.parts import MIB, PARTS
from tests.drivers.tree import Tree

DRIVER_VERSION = "595.45.04"
NONE = 0xFFFFFFFF
"""What NVML writes for no instance."""


class Gpu:
    """One GPU of a `Host`: directory ``gpus/<number>`` of its state."""

    def __init__(self, host: Host, number: int) -> None:
        self.host = host
        self.number = number
        self.path = host.root / "gpus" / str(number)

    @property
    def uuid(self) -> str:
        """Its UUID, as NVML and CUDA know it."""
        return self.get("uuid")

    @property
    def bus_id(self) -> str:
        """Its PCI address in the form of sysfs."""
        return self.get("bus_id")

    def get(self, name: str) -> str:
        """The first line of one of its files; "" where there is none."""
        try:
            return (self.path / name).read_text().strip()
        except FileNotFoundError:
            return ""

    def set(self, **readings: object) -> None:
        """Write readings by their short names; a value of None removes the file."""
        for name, value in readings.items():
            if value is None:
                (self.path / name).unlink(missing_ok=True)
            else:
                _replace(self.path / name, f"{value}\n")

    def fault(self, function: str, rule: str) -> None:
        """Strike a driver function on this GPU alone: see standin.h for the rules."""
        self.host.fault(f"{function}@{self.uuid}", rule)

    def heal(self, function: str) -> None:
        """Take a fault of this GPU away; a hanging call goes on."""
        self.host.heal(f"{function}@{self.uuid}")

    def memory(self) -> bytes:
        """All of its VRAM."""
        return (self.path / "memory").read_bytes()

    def write_memory(self, offset: int, content: bytes) -> None:
        """Put bytes into its VRAM from outside, as a tenant would have left them."""
        with (self.path / "memory").open("r+b") as memory:
            memory.seek(offset)
            memory.write(content)

    def process(
        self,
        pid: int,
        *,
        kind: str = "compute",
        size: int = 0,
        name: str = "",
        gi: int = NONE,
    ) -> None:
        """Show a foreign process in NVML's list `kind`: compute, graphics or mps.

        It holds `size` bytes, in instance `gi` where that is given.
        """
        (self.path / "processes").mkdir(exist_ok=True)
        line = f"{kind} {size} {gi} {gi if gi == NONE else 0} {name or 'tenant'}\n"
        _replace(self.path / "processes" / str(pid), line)

    def process_gone(self, pid: int) -> None:
        """End what `process` showed."""
        (self.path / "processes" / str(pid)).unlink(missing_ok=True)

    def context(self, pid: int, *, gi: int = NONE, ci: int = NONE) -> None:
        """Show a living process as one that has a CUDA context; it is gone with the process."""
        start = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
        contexts = self.path / "contexts"
        contexts.mkdir(exist_ok=True)
        number = len(list(contexts.glob(f"{pid}-*")))
        _replace(contexts / f"{pid}-{number}", f"{start} {gi} {ci}\n")

    def instance(self, profile: str, start: int) -> tuple[int, str]:
        """Make a GPU instance with one compute instance, as somebody else would.

        Returns the id of the GPU instance and the UUID of its MIG device. Nothing is checked: use
        NVML to see refusals.
        """
        for line in (self.path / "mig_profiles").read_text().splitlines():
            _, number, name, _, size, _, _ = line.split()
            if name.split(".")[0] == profile or name == profile:
                break
        else:
            raise KeyError(profile)
        base = int(self.get("slices")) // int(size) - 1
        gi = next(i for i in range(base, 64) if not (self.path / "gi" / str(i)).exists())
        made = f"MIG-{uuid.uuid4()}"
        device = self.path / "gi" / str(gi) / "ci" / "0"
        device.mkdir(parents=True)
        facts = {"start": start, "size": size, "uuid": f"GI-{uuid.uuid4()}", "profile": number}
        for key, value in facts.items():
            _replace(self.path / "gi" / str(gi) / key, f"{value}\n")
        _replace(device / "profile", "0\n")
        _replace(device / "uuid", f"{made}\n")
        for part in (None, 0):
            self.host.tree.instance(int(self.get("minor")), gi, part)
        return gi, made

    def instance_gone(self, gi: int) -> None:
        """Remove an instance, as somebody else would."""
        shutil.rmtree(self.path / "gi" / str(gi), ignore_errors=True)

    def instances(self) -> dict[int, tuple[int, int]]:
        """GPU instances by id: their first memory slice and how many."""
        found = {}
        for path in (self.path / "gi").glob("*/profile"):
            place = path.parent
            found[int(place.name)] = (
                int((place / "start").read_text()),
                int((place / "size").read_text()),
            )
        return found

    def event(self, kind: int, value: int) -> None:
        """Raise an NVML event for whoever has registered."""
        with (self.path / "events").open("a") as events:
            events.write(f"{kind} {value} {NONE} {NONE}\n")

    def xid(self, code: int) -> None:
        """Raise a critical error by its Xid number."""
        self.event(0x8, code)

    def lose(self) -> None:
        """It falls off the bus: every call says 15, PCI config space reads all ones."""
        self.set(lost=1)
        self.host.tree.lose(self.bus_id)

    def recover(self) -> None:
        """It is back after `lose`, with the identity and the state it had."""
        self.set(lost=None)
        self.host.tree.add(self.bus_id, self.get)

    def remove(self) -> None:
        """It is taken out of the machine."""
        self.host.tree.remove(self.bus_id, self.get("minor"))
        shutil.rmtree(self.path)

    def swap(self, kind: str = "h100", **readings: object) -> Gpu:
        """Another card in the same slot: same number and address, another identity."""
        address, minor = self.bus_id, self.get("minor")
        self.remove()
        return self.host.add_gpu(
            kind, number=self.number, **{"bus_id": address, "minor": minor, **readings}
        )


class Host:
    """A machine. `root` becomes FLEET_STANDIN; below `hardware_root` are its /proc, /sys, /dev."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.hardware_root = root / "host"
        for name in ("gpus", "faults"):
            (root / name).mkdir(parents=True, exist_ok=True)
        self.tree = Tree(self.hardware_root, root)
        self.set_driver(DRIVER_VERSION)

    def add_gpu(self, kind: str = "h100", *, number: int | None = None, **readings: object) -> Gpu:
        """Plug a GPU in: a part of `parts.PARTS`, with what `readings` say otherwise."""
        part = PARTS[kind]
        taken = [int(path.name) for path in (self.root / "gpus").iterdir()]
        place = max(taken, default=-1) + 1 if number is None else number
        gpu = Gpu(self, place)
        gpu.path.mkdir()
        identity = uuid.uuid4()
        facts: dict[str, object] = {
            "uuid": f"GPU-{identity}",
            "serial": f"{identity.int % 10**13:013d}",
            "minor": place,
            "bus_id": f"0000:{0x3B + place:02x}:00.0",
            "total": 32 * MIB,
            "mig_capable": int(part.slices > 0),
            **part.readings,
            **readings,
        }
        if part.slices:
            facts["slices"] = part.slices
            slice_mib = int(str(facts["total"])) // part.slices // MIB
            lines = [profile.line(slice_mib) for profile in part.profiles]
            _replace(gpu.path / "mig_profiles", "\n".join(lines) + "\n")
        with (gpu.path / "memory").open("wb") as memory:
            memory.truncate(int(str(facts["total"])))
        gpu.set(**facts)
        self.tree.add(gpu.bus_id, gpu.get)
        return gpu

    @property
    def gpus(self) -> list[Gpu]:
        """What is plugged in, in NVML's order."""
        numbers = sorted(int(path.name) for path in (self.root / "gpus").iterdir())
        return [Gpu(self, number) for number in numbers]

    def environment(self) -> dict[str, str]:
        """What a process needs to find this machine's drivers: add it to its environment."""
        tools = f"{self.hardware_root}/usr/bin{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {
            "LD_LIBRARY_PATH": str(libraries()),
            "FLEET_STANDIN": str(self.root),
            "PATH": tools,
        }

    def set_driver(self, version: str) -> None:
        """The driver's version, in NVML and in the tree."""
        _replace(self.root / "driver_version", f"{version}\n")
        self.tree.driver(version)

    def fault(self, function: str, rule: str) -> None:
        """Strike a driver function everywhere: see standin.h for the rules."""
        (self.root / "faults" / ".calls" / function).unlink(missing_ok=True)
        _replace(self.root / "faults" / function, f"{rule}\n")

    def calls(self, function: str) -> int:
        """How often a fault with ``after`` or ``times`` was met, over all processes."""
        try:
            return int((self.root / "faults" / ".calls" / function).read_text())
        except FileNotFoundError:
            return 0

    def heal(self, function: str) -> None:
        """Take a fault away; a hanging call goes on."""
        (self.root / "faults" / function).unlink(missing_ok=True)


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.write_text(text)
    fresh.replace(path)
