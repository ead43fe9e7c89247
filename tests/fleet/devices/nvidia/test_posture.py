"""How the driver is set up."""

from __future__ import annotations

import pytest

from fleet.core.model import Uuid
from fleet.core.settings import HealthPolicy
from fleet.devices.health.checks import Verdict, judge
from fleet.devices.health.readings import Readings
from fleet.devices.nvidia.backend import NvidiaBackend
from tests.drivers.host import Gpu, Host

PARAMETERS = 'PreserveVideoMemoryAllocations: {}\nRegistryDwords: "{}"\n'


def set_up(host: Host, *, registry: str = "", preserve: int = 0) -> None:
    """The kernel module's parameters."""
    host.tree.put("proc/driver/nvidia/params", PARAMETERS.format(preserve, registry))


def read(backend: NvidiaBackend, gpu: Gpu) -> Readings:
    """Readings of the GPU."""
    return backend.readings(Uuid(gpu.uuid))


@pytest.mark.parametrize(
    ("registry", "scrubs"),
    [
        ("", True),
        ("RMDisableScrubOnFree=0", True),
        ("RMDisableScrubOnFree=0x1", False),
        ("RMFoo=0x7;rmdisablescrubonfree=1;RMBar=2", False),
        ("RMDisableScrubOnFreeNot=1", True),
    ],
)
def test_8_38_the_scrub_switch_is_read_and_told(
    host: Host, backend: NvidiaBackend, registry: str, scrubs: bool
) -> None:
    """gpus-8.38, gpus-10.4: scrubbing on free is the default, and a key that turns it off warns."""
    gpu = host.add_gpu()
    set_up(host, registry=registry)
    found = read(backend, gpu)
    assert found.scrub_on_free is scrubs
    judged = {one.check: one.verdict for one in judge(found, HealthPolicy())}
    assert judged["scrub-on-free"] is (Verdict.PASS if scrubs else Verdict.WARN)


def test_8_38_a_key_of_one_gpu_is_that_gpus(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.38: a GPU's own registry comes before what holds for all."""
    one, other = host.add_gpu(), host.add_gpu()
    set_up(host)
    host.tree.put(f"proc/driver/nvidia/gpus/{one.bus_id}/registry", "RMDisableScrubOnFree: 1\n")
    assert read(backend, one).scrub_on_free is False
    assert read(backend, other).scrub_on_free is True


def test_8_38_unknown_before_turing_and_without_parameters(
    host: Host, backend: NvidiaBackend
) -> None:
    """gpus-8.38: what early parts do, and what nobody can read, is unknown, not "it scrubs"."""
    early, gpu = host.add_gpu("pascal"), host.add_gpu()
    set_up(host)
    assert read(backend, early).scrub_on_free is None
    (host.hardware_root / "proc/driver/nvidia/params").unlink()
    found = read(backend, gpu)
    assert (found.scrub_on_free, found.preserves_memory) == (None, None)


def test_b64_pages_of_the_host_are_freed_as_they_are(host: Host, backend: NvidiaBackend) -> None:
    """B64, gpus-10.6: memory that is a node of the host is not scrubbed on free."""
    gpu = host.add_gpu(numa_memory_node=1)
    set_up(host)
    host.tree.put("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 98304 kB\n")
    assert read(backend, gpu).scrub_on_free is False


def test_memory_written_to_disk_at_suspend(host: Host, backend: NvidiaBackend) -> None:
    """gpus-4.7: the parameter that copies memory to a file is recorded."""
    gpu = host.add_gpu()
    set_up(host, preserve=1)
    assert read(backend, gpu).preserves_memory is True
    set_up(host, preserve=0)
    assert read(backend, gpu).preserves_memory is False


def test_modes(host: Host, backend: NvidiaBackend) -> None:
    """Persistence, accounting, performance state and MIG mode as the driver has them."""
    gpu = host.add_gpu(persistence=1, accounting=1, pstate=2, mig_current=0, mig_pending=1)
    found = read(backend, gpu)
    assert (found.persistence, found.accounting, found.pstate) == (True, True, 2)
    assert (found.mig_enabled, found.mig_change_pending, found.unpartitioned) == (
        False,
        True,
        False,
    )
    gpu.set(pstate=32)
    assert read(backend, gpu).pstate is None


def test_8_33_partitioned_without_partitions(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.33: MIG on and no instance: nothing can run there, and the readings say so."""
    gpu = host.add_gpu(mig_current=1, mig_pending=1)
    assert read(backend, gpu).unpartitioned is True
    gpu.instance("1g", 0)
    assert read(backend, gpu).unpartitioned is False


def test_a_part_without_mig(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.19: a part without MIG has no mode that could be unknown."""
    found = read(backend, host.add_gpu("pascal"))
    assert {"mig_enabled", "mig_change_pending"} <= found.not_applicable
