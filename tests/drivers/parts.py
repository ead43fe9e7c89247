"""What the stand-ins' GPUs are like: readings, memory and partitions of a few invented parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MIB = 1 << 20


@dataclass(frozen=True)
class Profile:
    """One kind of GPU instance; sizes in slices, starts in memory slices."""

    enum: int
    """Index in NVML's walk; the profile's own id is another number."""
    id: int
    name: str
    slices: int
    memory_slices: int
    starts: tuple[int, ...]

    def line(self, slice_mib: int) -> str:
        """Its line in ``mig_profiles``, where one memory slice has `slice_mib` MiB."""
        starts = ",".join(str(start) for start in self.starts)
        size = self.memory_slices * slice_mib
        return (
            f"{self.enum} {self.id} {self.name} {self.slices} {self.memory_slices} {size} {starts}"
        )


@dataclass(frozen=True)
class Part:
    """A product: the readings a new GPU of it starts with."""

    readings: Mapping[str, object]
    slices: int = 0
    """Memory slices, 0 without MIG."""
    profiles: tuple[Profile, ...] = field(default=())


SEVEN = (
    Profile(0x0, 19, "1g.4mb", 1, 1, (0, 1, 2, 3, 4, 5, 6)),
    Profile(0x1, 14, "2g.8mb", 2, 2, (0, 2, 4)),
    Profile(0x2, 9, "3g.16mb", 3, 4, (0, 4)),
    Profile(0x3, 5, "4g.16mb", 4, 4, (0,)),
    Profile(0x4, 0, "7g.32mb", 7, 8, (0,)),
    Profile(0x9, 15, "1g.8mb", 1, 2, (0, 2, 4, 6)),
)
FOUR = (
    Profile(0x0, 14, "1g.8mb", 1, 1, (0, 1, 2, 3)),
    Profile(0x1, 5, "2g.16mb", 2, 2, (0, 2)),
    Profile(0x3, 0, "4g.32mb", 4, 4, (0,)),
)

_COMMON: Mapping[str, object] = {
    "reserved": MIB,
    "clock_max_memory": 1,  # MHz: its "memory" is a file, and its kernels are interpreted
    "vbios": "96.00.00.00.01",
    "inforom": "G000.0000.00.01",
    "numa_node": 0,
    "pcie_gen": 1,
    "pcie_gen_busy": 4,
    "pcie_gen_max": 4,
    "pcie_gen_device_max": 4,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pstate": 8,
    "pstate_busy": 0,
    "clocks_reasons": 1,
    "clocks_reasons_busy": 0,
    "temperature": 34,
    "memory_temperature": 41,
}
PARTS: Mapping[str, Part] = {
    "h100": Part(
        {
            **_COMMON,
            "name": "STAND-IN H100",
            "part_number": "STAND-IN-0001",
            "pci_device_id": 0x233010DE,
            "pci_subsystem_id": 0x000010DE,
            "cc_major": 9,
            "cc_minor": 0,
            "architecture": 9,
            "brand": 14,
            "pcie_gen_busy": 5,
            "pcie_gen_max": 5,
            "pcie_gen_device_max": 5,
            "bus_width": 5120,
            "recovery_action": 0,
            "nvlinks": 4,
            "mig_online": 1,
        },
        slices=8,
        profiles=SEVEN,
    ),
    "a30": Part(
        {
            **_COMMON,
            "name": "STAND-IN A30",
            "part_number": "STAND-IN-0002",
            "pci_device_id": 0x20B710DE,
            "pci_subsystem_id": 0x000010DE,
            "cc_major": 8,
            "cc_minor": 0,
            "architecture": 7,
            "brand": 14,
            "bus_width": 3072,
            "mig_online": 0,
        },
        slices=4,
        profiles=FOUR,
    ),
    "pascal": Part(
        {
            **_COMMON,
            "name": "STAND-IN P40",
            "part_number": "STAND-IN-0003",
            "pci_device_id": 0x1B3810DE,
            "pci_subsystem_id": 0x000010DE,
            "cc_major": 6,
            "cc_minor": 1,
            "architecture": 4,
            "brand": 4,
            "pcie_gen_busy": 3,
            "pcie_gen_max": 3,
            "pcie_gen_device_max": 3,
            "bus_width": 384,
            "retires_pages": 1,
        }
    ),
}
