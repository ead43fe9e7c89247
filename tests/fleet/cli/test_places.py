"""Where a proof's secrets lie: files of a simulated device, and the memory of a stand-in GPU."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fleet.cli import places
from fleet.cli.places import GpuMemory, Memory, Place
from fleet.core import errors
from fleet.core.messages import DeviceView
from fleet.core.settings import HardwareKind, HardwareSettings, Settings
from fleet.devices.remote import RemoteBackend
from fleet.wiring import adapters, hardware, plans
from tests.drivers.host import Gpu, Host
from tests.fleet.devices.wipe.orders import one_file

MIB = 1 << 20


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A machine that the processes started from here find; this one loads no driver."""
    made = Host(tmp_path / "machine")
    made.tree.put("dev/kmsg", "")
    for name, text in made.environment().items():
        monkeypatch.setenv(name, text)
    return made


def settings(host: Host) -> HardwareSettings:
    """How its devices are reached."""
    root = host.hardware_root
    return HardwareSettings(root=str(root), kernel_log=str(root / "dev/kmsg"))


def view(uuid: str, accelerator: str) -> DeviceView:
    """A device as a node shows it."""
    return DeviceView(
        uuid=uuid,
        name="gpu",
        accelerator=accelerator,
        units=(f"{accelerator}/all",),
        memory_bytes=4 * MIB,
        state="CLEAN",
    )


@contextmanager
def held(host: Host, gpu: Gpu, uuid: str = "") -> Iterator[GpuMemory]:
    """The memory of a device of the GPU, in a tenant's hands."""
    arguments = hardware.arguments(settings(host), host.root)
    place = GpuMemory(arguments, view(uuid or gpu.uuid, gpu.uuid))
    try:
        yield place
    finally:
        place.leave()


def test_memory_of_a_partition_ends_at_its_stretches(tmp_path: Path) -> None:
    """Searching a partition sees its own memory only, at any offset in it."""
    path = tmp_path / "memory"
    secret = bytes(range(64))
    path.write_bytes(bytes(5000) + secret + bytes(5000))
    assert Memory(one_file(path), ((0, 5064),)).count(secret) == 1
    assert Memory(one_file(path), ((0, 5000), (5064, 5000))).count(secret) == 0


def test_a_secret_must_fit_into_every_stretch(tmp_path: Path) -> None:
    """Promise 1: a secret cut short would be a smaller one than the proof says."""
    path = tmp_path / "memory"
    path.write_bytes(bytes(4096))
    memory = Memory(one_file(path), ((0, 4032), (4032, 64)))
    with pytest.raises(errors.InputInvalid):
        memory.write(bytes(65))
    assert memory.size == 4096


def test_of_a_simulated_device_anybody_may_look_at_any_time(tmp_path: Path) -> None:
    """Promise 1: a written secret is seen by `look` until the memory is overwritten."""
    (plan,) = adapters.plan_fleet(tmp_path, simulate="1x1", memory_bytes=8 * MIB).nodes
    service = adapters.open_node(plan)
    (device,) = service.view().devices
    service.close()
    place = places.of(tmp_path, plan.node, device)
    secret = secrets.token_bytes(128)
    assert place.look(secret) == 0
    place.write(secret)
    assert (place.size, place.look(secret), place.count(secret)) == (8 * MIB, 6, 6)
    place.leave()
    assert place.look(secret) == 6


def test_what_no_program_can_reach_proves_nothing(host: Host, tmp_path: Path) -> None:
    """Promise 1: a node that is not there, or memory that nothing can read, is refused aloud."""
    chosen = settings(host).model_copy(update={"kind": HardwareKind.PCIE})
    state = tmp_path / "state"
    plans.discover_fleet(state, Settings(hardware=chosen))
    (plan,) = plans.plan_fleet(state).nodes
    with pytest.raises(errors.InputInvalid, match="cannot be reached by a program"):
        places.of(state, plan.node, view("PCI-1", "PCI-1"))
    with pytest.raises(errors.InputInvalid, match="no node nowhere"):
        places.of(state, "nowhere", view("PCI-1", "PCI-1"))


def test_a_gpu_is_reached_by_a_process_that_leaves_everything(host: Host) -> None:
    """Promise 1: what a killed tenant wrote is found by the next one, where nothing wipes."""
    gpu = host.add_gpu(total=4 * MIB, reserved=65536, context_bytes=65536, scrub_on_free=0)
    secret = secrets.token_bytes(256)
    with held(host, gpu) as place:
        place.write(secret)
        planted = place.count(secret)
        assert planted >= 4
        assert planted % 4 == 0, "every place has all four blocks"
        assert 3 * MIB < place.size < 4 * MIB
    after: Place = place
    assert after.look(secret) is None, "nobody looks into a device without a claim"
    with held(host, gpu) as place:
        assert planted - 1 <= place.count(secret) <= planted, (
            "one block may lie where the driver's first write had its own memory (F83)"
        )
        assert place.count(secrets.token_bytes(256)) == 0


def test_a_partition_is_reached_by_the_instance_it_has_now(host: Host, tmp_path: Path) -> None:
    """gpus-8.31: the tenant of a partition sees its MIG instance; without one it sees nothing."""
    gpu = host.add_gpu(context_bytes=65536, mig_current=1, mig_pending=1)
    with closing(RemoteBackend("nvidia", hardware.arguments(settings(host), host.root))) as there:
        (found,) = there.inventory()
    part = next(device for device in found.devices if device.name.endswith("-2g-8mb-2"))
    with held(host, gpu, part.uuid) as place, pytest.raises(errors.BackendFailed):
        place.count(bytes(range(64)))
    gpu.instance("2g", 2)
    with held(host, gpu, part.uuid) as place:
        place.write(bytes(range(64)))
        assert 7 * MIB < place.size <= 8 * MIB
    start = gpu.memory().find(bytes(range(64)))
    assert 8 * MIB <= start < 16 * MIB


def test_a_tenant_that_cannot_begin_says_why(host: Host) -> None:
    """Promise 1: a tenant without a device proves nothing, and is an error."""
    gpu = host.add_gpu(total=4 * MIB, reserved=65536)
    host.fault("cuCtxCreate", "return 2")
    host.fault("cuDevicePrimaryCtxRetain", "return 2")
    with held(host, gpu) as place, pytest.raises(errors.BackendFailed, match="did nothing"):
        place.count(bytes(64))
