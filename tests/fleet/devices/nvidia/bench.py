"""One stand-in GPU with partitioning on, and our view of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fleet.core.model import Accelerator, Device, Uuid
from fleet.devices.nvidia import layout
from fleet.devices.nvidia.mig import Mig
from fleet.devices.nvidia.nvml import Library
from tests.drivers.host import Gpu


@dataclass
class Bench:
    """One stand-in GPU with partitioning on, and our view of it."""

    gpu: Gpu
    library: Library = field(default_factory=Library)
    pauses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mig = Mig(self.library, tries=3, sleep=self.pauses.append)

    @property
    def handle(self) -> Any:
        return self.library.call("nvmlDeviceGetHandleByUUID", self.gpu.uuid)

    @property
    def uuid(self) -> Uuid:
        return Uuid(self.gpu.uuid)

    @property
    def accelerator(self) -> Accelerator:
        total = int(self.gpu.get("total"))
        return layout.divided(
            self.uuid,
            "gpu-a",
            total_bytes=total,
            profiles=self.mig.profiles(self.handle, self.uuid, total_bytes=total),
            attributes={},
        )

    def device(self, profile: str, start: int) -> Device:
        return next(
            device
            for device in self.accelerator.devices
            if device.profile == profile and device.attributes["placement"].startswith(f"{start}:")
        )

    def instances(self) -> list[Any]:
        return list(self.mig.instances(self.handle, self.uuid))
