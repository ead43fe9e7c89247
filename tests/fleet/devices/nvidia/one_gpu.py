"""A stand-in machine whose first GPU is wiped in the test's own process."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fleet.core.model import Accelerator, Device, Process, UnitId, UnitSpec, Uuid
from fleet.devices.base import Grant
from fleet.devices.health.readings import Readings
from fleet.devices.nvidia import cuda
from fleet.devices.nvidia.session import MPS_PIPES, VISIBILITY, NvidiaSession, Target, open_session
from fleet.devices.wipe.environment import NOWHERE
from fleet.devices.wipe.plan import WipeOrder
from tests.drivers.building import libraries
from tests.drivers.host import Gpu, Host

MIB = 1 << 20
NONCE = bytes(range(32))
LARGEST, SMALLEST = 1 << 30, 64 * 1024
NO_INSTANCE = 0xFFFFFFFF


def silent(_done: int) -> None:
    """Nobody listens."""


class OneGpu:
    """A machine with one GPU of `total` bytes, `reserved` of them the driver's own."""

    def __init__(
        self, root: Path, patch: pytest.MonkeyPatch, *, total: int = 4 * MIB, reserved: int = 65536
    ) -> None:
        ctypes.CDLL(str(libraries() / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
        self.host = Host(root)
        self._patch = patch
        patch.setenv("FLEET_STANDIN", str(root))
        self.gpu = self.host.add_gpu(total=total, reserved=reserved, context_bytes=64 * 1024)
        self.see(self.gpu.uuid)
        patch.setenv(MPS_PIPES, NOWHERE)
        self.present: bool | None = True

    def see(self, text: str | None) -> None:
        """What CUDA_VISIBLE_DEVICES says."""
        if text is None:
            self._patch.delenv(VISIBILITY, raising=False)
        else:
            self._patch.setenv(VISIBILITY, text)

    def pipes(self, directory: Path | None) -> None:
        """What CUDA_MPS_PIPE_DIRECTORY says."""
        if directory is None:
            self._patch.delenv(MPS_PIPES)
        else:
            self._patch.setenv(MPS_PIPES, str(directory))

    def read(self) -> Readings:
        """Readings of a healthy GPU, or of one that is gone."""
        return Readings(at=1.0, under_load=True, present=self.present, ecc_uncorrected_volatile=0)

    def target(self, gpu: Gpu | None = None, **changes: Any) -> Target:
        """All memory of a GPU, its first one unless told otherwise."""
        gpu = gpu or self.gpu
        total = int(gpu.get("total"))
        facts: dict[str, Any] = {
            "visible": gpu.uuid,
            "accelerator": Uuid(gpu.uuid),
            "units": (UnitSpec(UnitId(f"{gpu.uuid}/all"), total),),
            "total_bytes": total,
            "reserved_bytes": int(gpu.get("reserved")),
            "read": self.read,
        }
        return Target(**{**facts, **changes})

    def session(self, **changes: Any) -> NvidiaSession:
        """A session over all of its memory, allocated."""
        opened = open_session(self.target(**changes))
        opened.allocate(largest_bytes=LARGEST, smallest_bytes=SMALLEST)
        return opened

    def context(self) -> cuda.Context:
        """A bare context on it."""
        driver = cuda.Driver()
        return cuda.Context(driver, driver.only_device(), drain_s=0.05)

    def hold(self, *pieces: tuple[int, int]) -> None:
        """Let another process (our parent) have (offset, length) of its memory."""
        pid = os.getppid()
        stat = Path(f"/proc/{pid}/stat").read_text()
        start = int(stat.rpartition(")")[2].split()[19])
        records = [struct.pack("<IIQQQ", pid, NO_INSTANCE, start, *piece) for piece in pieces]
        (self.gpu.path / "allocations").write_bytes(b"".join(records))

    def writable(self) -> bytes:
        """Its memory without what the driver reserves at the end."""
        return self.gpu.memory()[: -int(self.gpu.get("reserved"))]


class OneGpuBackend:
    """As much of a back end as the wipe engine asks for, over `OneGpu`."""

    kind = "nvidia"
    simulated = False

    def __init__(self, bench: OneGpu, **changes: Any) -> None:
        self._bench = bench
        self._target = bench.target(**changes)
        self.opened: list[NvidiaSession] = []

    def order(self, **changes: Any) -> WipeOrder:
        """A wipe of all of it."""
        target = self._target
        facts: dict[str, Any] = {
            "worker_id": "0" * 32,
            "backend": self.kind,
            "settings": {},
            "accelerator": target.accelerator,
            "device": target.accelerator,
            "units": tuple(unit.id for unit in target.units),
            "nonce": NONCE.hex(),
            "deadline_s": 60.0,
            "coverage_floor": 0.9,
        }
        return WipeOrder(**{**facts, **changes})

    def inventory(self) -> Sequence[Accelerator]:
        """The GPU."""
        target = self._target
        units = tuple(unit.id for unit in target.units)
        uuid = target.accelerator
        device = Device(uuid, "gpu", uuid, units, target.total_bytes)
        return [Accelerator(uuid, target.units, (device,))]

    def readings(self, _accelerator: Uuid) -> Readings:
        """What the bench says."""
        return self._bench.read()

    def processes(self, _accelerator: Uuid) -> Sequence[Process]:
        """Nobody."""
        return ()

    def grant(self, _device: Device) -> Grant:
        """Nothing."""
        return Grant()

    def agent_grant(self) -> Grant:
        """Nothing."""
        return Grant()

    def session(self, _accelerator: Uuid, _units: Sequence[UnitId]) -> NvidiaSession:
        """A real session."""
        self.opened.append(open_session(self._target))
        return self.opened[-1]

    def settings(self) -> dict[str, Any]:
        """None."""
        return {}
