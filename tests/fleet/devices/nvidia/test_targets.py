"""What a wipe worker opens for some units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from fleet.core.errors import BackendFailed, DeviceUnknown
from fleet.core.model import UnitId, Uuid
from fleet.devices.health.readings import Readings
from fleet.devices.nvidia import nvml, targets
from fleet.devices.nvidia.backend import NvidiaBackend
from fleet.devices.nvidia.inventory import Card
from fleet.devices.nvidia.mig import Mig
from fleet.devices.nvidia.session import Target
from tests.drivers.host import Gpu, Host


@pytest.fixture
def library() -> Iterator[nvml.Library]:
    """NVML, open."""
    made = nvml.Library()
    yield made
    made.close()


def target(
    backend: NvidiaBackend, library: nvml.Library, gpu: Gpu, units: Sequence[UnitId]
) -> Target:
    """What is opened for `units`."""
    handle = library.call("nvmlDeviceGetHandleByPciBusId", gpu.bus_id)
    return targets.target(
        Card(Uuid(gpu.uuid), handle, gpu.bus_id),
        backend.accelerator(Uuid(gpu.uuid)),
        units,
        mig=Mig(library),
        library=library,
        read=lambda: Readings(at=0.0),
    )


def test_a_whole_gpu(host: Host, backend: NvidiaBackend, library: nvml.Library) -> None:
    """B13: a GPU without partitions is opened by its own UUID, with its own figures."""
    gpu = host.add_gpu()
    found = target(backend, library, gpu, [UnitId(f"{gpu.uuid}/all")])
    assert found.visible == gpu.uuid
    assert (found.total_bytes, found.reserved_bytes) == (
        int(gpu.get("total")),
        int(gpu.get("reserved")),
    )


def test_b71_a_reserve_nobody_tells_counts_as_not_covered(
    host: Host, backend: NvidiaBackend, library: nvml.Library
) -> None:
    """B71: with older figures the reserve is part of what a wipe leaves over, never guessed."""
    gpu = host.add_gpu()
    gpu.fault("nvmlDeviceGetMemoryInfo_v2", "return 13")
    found = target(backend, library, gpu, [UnitId(f"{gpu.uuid}/all")])
    assert (found.total_bytes, found.reserved_bytes) == (int(gpu.get("total")), 0)


def test_8_32_a_slice_is_measured_by_itself(
    host: Host, backend: NvidiaBackend, library: nvml.Library
) -> None:
    """gpus-8.32, B24: coverage of a slice is computed from the instance's total, not the GPU's; the
    driver is not asked for it by UUID, which would have it look into every GPU."""
    gpu = host.add_gpu(mig_current=1, mig_pending=1)
    device = next(one for one in backend.inventory()[0].devices if one.profile.startswith("2g."))
    made = backend.make(device)
    host.fault("nvmlDeviceGetHandleByUUID", "return 999")
    found = target(backend, library, gpu, device.units)
    assert found.visible == made.uuid
    assert [unit.id for unit in found.units] == list(device.units)
    assert found.total_bytes == int(gpu.get("total")) * len(device.units) // 8


def test_8_33_units_without_an_instance(
    host: Host, backend: NvidiaBackend, library: nvml.Library
) -> None:
    """gpus-8.33: an instance over other units, or over more of them, is not the one to open."""
    gpu = host.add_gpu(mig_current=1, mig_pending=1)
    gpu.instance("2g", 0)
    with pytest.raises(BackendFailed, match="nothing was written"):
        target(backend, library, gpu, [UnitId(f"{gpu.uuid}/m0")])
    with pytest.raises(DeviceUnknown):
        target(backend, library, gpu, [UnitId(f"{gpu.uuid}/m8")])


def test_b64_memory_in_doubt_is_refused(
    host: Host, backend: NvidiaBackend, library: nvml.Library
) -> None:
    """B64: what is or may be the host's memory cannot be proven clean, and nothing is opened."""
    gpu = host.add_gpu(numa_memory_node=1)
    with pytest.raises(BackendFailed, match="cannot be proven clean") as caught:
        target(backend, library, gpu, [UnitId(f"{gpu.uuid}/all")])
    assert "NVreg_CoherentGPUMemoryMode=driver" in caught.value.remedy
