"""What a wipe worker is sent to, from what the node knows of a device."""

from __future__ import annotations

from fleet.core.model import Accelerator, Device
from fleet.devices.wipe.plan import Target
from fleet.node.registry import Registry


def of(registry: Registry, device: Device, visible: str) -> Target:
    """The target for `device`; `visible`: its instance as the driver names it, "" without one."""
    return Target(
        backend=registry.backend.kind,
        settings=registry.backend.settings(),
        accelerator=device.accelerator,
        device=device.uuid,
        units=device.units,
        size_bytes=device.memory_bytes,
        visible=visible,
        peak_bytes_per_s=peak(device, registry.accelerators.get(device.accelerator)),
    )


def peak(device: Device, accelerator: Accelerator | None) -> float:
    """What the device's memory can do, bytes/s, by the data its driver tells; 0: unknown.

    A partition has the share of the accelerator's memory paths that its units are of all units.
    """
    told = device.attributes.get("memory_rate_bytes_per_s", "")
    if accelerator is None or not told.isdecimal():
        return 0.0
    return int(told) * len(device.units) / len(accelerator.units)
