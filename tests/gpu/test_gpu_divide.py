"""GPU check, only where FLEET_GPU_MIG=1 asks for it: partitioning is switched on and off again."""

from __future__ import annotations

from collections.abc import Callable

from fleet.core.model import Accelerator
from tests.gpu.place import Machine
from tests.gpu.report import REPORT


def test_partitioning_is_switched_on_and_off(
    machine: Machine, gpu: Accelerator, left_s: Callable[[float], float]
) -> None:
    """F81, F82: the mode is what it was set to, also once everything else is as it was, and the
    GPU is whole again at the end."""
    if gpu.device.attributes.get("mig") == "none":
        REPORT.note(f"{gpu.uuid} has no partitioning: it was not switched")
        return
    left_s(300)
    machine.backend.divide(gpu.uuid, on=True)
    try:
        divided = machine.backend.accelerator(gpu.uuid)
        profiles = sorted({device.profile for device in divided.devices if device.profile})
        REPORT.add(gpu.uuid, "partitioning", {"units": len(divided.units), "profiles": profiles})
        assert divided.device.attributes["mig"] == "on"
        assert len(divided.units) > 1
        assert profiles
    finally:
        machine.backend.divide(gpu.uuid, on=False)
    whole = machine.backend.accelerator(gpu.uuid)
    assert whole.device.attributes["mig"] == "off"
    assert len(whole.units) == 1
