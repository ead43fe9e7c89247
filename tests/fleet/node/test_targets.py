"""What a worker is sent to."""

from __future__ import annotations

import pytest

from fleet.core.model import Accelerator, Device, UnitId, UnitSpec, Uuid
from fleet.node import wipe
from tests.fleet.node.conftest import Lab

GPU = Uuid("GPU-11111111-2222-3333-4444-555555555555")
UNITS = tuple(UnitId(f"{GPU}/m{place}") for place in range(8))


def device(units: int, rate: str) -> Device:
    """A device of the first so many units."""
    return Device(GPU, "gpu", GPU, UNITS[:units], units, "", {"memory_rate_bytes_per_s": rate})


@pytest.mark.parametrize(
    ("units", "rate", "expected"), [(8, "800", 800.0), (2, "800", 200.0), (8, "", 0.0)]
)
def test_a_partition_has_its_share_of_the_memory_paths(
    units: int, rate: str, expected: float
) -> None:
    """DESIGN 6: slowness is judged by what the memory can do; what is unknown is not judged."""
    specs = tuple(UnitSpec(unit, 1) for unit in UNITS)
    whole = Accelerator(GPU, specs, (device(8, rate),))
    assert wipe.peak(device(units, rate), whole) == expected
    assert wipe.peak(device(units, rate), None) == 0.0


def test_the_worker_is_told_how_the_driver_names_its_device(lab: Lab) -> None:
    """B13: an instance goes by the driver's own name, everything else by the device's UUID."""
    registry = lab.node._registry
    found = next(iter(registry.devices.values()))
    target = wipe.of(registry, found, "MIG-1")
    assert (target.visible, target.device, target.units) == ("MIG-1", found.uuid, found.units)
    assert wipe.of(registry, found, "").visible == ""
