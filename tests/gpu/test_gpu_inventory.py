"""GPU check: every GPU says who it is, always the same."""

from __future__ import annotations

from fleet.core.model import Accelerator
from tests.gpu.place import Machine
from tests.gpu.report import REPORT

IDENTITY = ("product", "vendor", "pci", "driver", "cuda_driver", "architecture", "vbios", "minor")
"""What every GPU since Volta says of itself, in whatever machine."""
TOLD = ("serial", "board", "inforom", "compute_capability", "numa", "pcie_root", "iommu", "mig")
"""Recorded as it is; some machines hide part of it."""


def test_identity_is_complete(gpu: Accelerator) -> None:
    """Issue 5, certificates: product, address, versions and memory are known, and where they are
    hidden the report says so."""
    attributes = dict(gpu.device.attributes)
    REPORT.add(gpu.uuid, "inventory", {"name": gpu.device.name, **attributes})
    REPORT.add(gpu.uuid, "inventory", {"memory_bytes": gpu.memory_bytes, "units": len(gpu.units)})
    missing = [name for name in TOLD if not attributes.get(name)]
    if missing:
        REPORT.note(f"{gpu.uuid} does not tell: {', '.join(missing)}")
    assert [name for name in IDENTITY if not attributes.get(name)] == []
    assert attributes["memory"] == "dedicated"
    assert gpu.uuid.startswith("GPU-")


def test_memory_figures_add_up(gpu: Accelerator) -> None:
    """B06, B71: total and reserved are the driver's newer figures, and units are all of it."""
    total = int(gpu.device.attributes["memory_total"])
    reserved = int(gpu.device.attributes["memory_reserved"])
    assert 0 < reserved < total / 20
    assert sum(unit.size_bytes for unit in gpu.units) == gpu.memory_bytes
    assert gpu.memory_bytes <= total


def test_names_are_stable(machine: Machine) -> None:
    """Issue 5, B13: a second inventory, and one of another process, say the same."""
    again = tuple(machine.backend.inventory())
    assert again == machine.accelerators
    for one in machine.accelerators:
        assert machine.backend.readings(one.uuid).present is True
