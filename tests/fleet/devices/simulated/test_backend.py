"""The simulated back end over its directory."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleet.core.errors import BackendFailed, DeviceLost, DeviceUnknown, InputInvalid
from fleet.core.model import ProcessKind
from fleet.core.processes import start_time
from fleet.devices.simulated import clients, memory
from fleet.devices.simulated.backend import SimulatedBackend, create
from fleet.devices.wipe.result import Failure
from tests.fleet.devices.wipe.orders import MIB, break_it, eventually, node, order_for, run, whole


def test_making_it_again_changes_nothing(tmp_path: Path) -> None:
    """Devices, memory, faults and boot survive a second call with the same shape."""
    backend = node(tmp_path)
    device = whole(backend)
    memory.write(backend.memory(device.uuid), 100, b"kept")
    break_it(backend, device, "remap-failed")
    again = node(tmp_path)
    assert again.inventory() == backend.inventory()
    assert again.boot_id() == backend.boot_id()
    assert memory.read(again.memory(device.uuid), 100, 4) == b"kept"
    assert again.readings(device.uuid).row_remap_failed is True


@pytest.mark.parametrize(
    "change", [{"accelerators": 2}, {"memory_bytes": MIB}, {"partitionable": 1}, {"seed": 8}]
)
def test_another_shape_is_refused_and_named(tmp_path: Path, change: dict[str, int]) -> None:
    """Evidence and leases name the units there are: a directory is never reshaped."""
    node(tmp_path)
    shape = {"accelerators": 1, "memory_bytes": 4 * MIB, "partitionable": 0, "seed": 7, **change}
    with pytest.raises(InputInvalid, match=next(iter(change))):
        create(tmp_path, node="n0", **shape)


@pytest.mark.parametrize("named", ["0", "gpu-0", "SIM-", "", "-1"])
def test_b13_a_device_is_found_by_its_whole_uuid_only(tmp_path: Path, named: str) -> None:
    """B13: index, name and prefix open nothing."""
    with pytest.raises(DeviceUnknown):
        node(tmp_path).device(named)


def test_b13_units_of_another_accelerator_are_refused(tmp_path: Path) -> None:
    """B13: a session is of the accelerator named or of none."""
    backend = node(tmp_path, accelerators=2)
    with pytest.raises(DeviceUnknown):
        backend.session(whole(backend, 0).uuid, whole(backend, 1).units)


def test_two_workers_never_have_one_unit_open(tmp_path: Path) -> None:
    """An older worker that is still there keeps a newer one out."""
    backend = node(tmp_path)
    device = whole(backend)
    with backend.registers(device.uuid).change() as register:
        left = clients.own(device.units)
        left.worker_id = "ab" * 16
        register.clients.append(left)
    with pytest.raises(BackendFailed, match="still has"):
        backend.session(device.accelerator, device.units)


def test_a_partition_lists_only_who_is_on_it(tmp_path: Path) -> None:
    """Promise 9: a neighbour's tenant does not hold this partition, but holds the parent."""
    backend = node(tmp_path, partitionable=1)
    devices = {device.name: device for device in backend.inventory()[0].devices}
    part, parent = devices["gpu-0-1g-0"], devices["gpu-0"]
    registers, path = backend.registers(parent.uuid), backend.memory(parent.uuid)
    clients.start(registers, path, name="tenant", units=part.units, seconds=60)
    try:
        kinds = {
            name: [one.kind for one in backend.processes(devices[name].uuid)]
            for name in ("gpu-0-1g-0", "gpu-0-1g-1", "gpu-0")
        }
    finally:
        clients.stop(registers.read().clients)
    foreign = [ProcessKind.FOREIGN]
    assert kinds == {"gpu-0-1g-0": foreign, "gpu-0-1g-1": [], "gpu-0": foreign}


def test_a_lost_device_answers_nothing_until_reset(tmp_path: Path) -> None:
    """Lost stays lost for readings and sessions; the inventory still lists it."""
    backend = node(tmp_path)
    device = whole(backend)
    break_it(backend, device, "device-lost")
    run(backend, order_for(backend, device))
    with pytest.raises(DeviceLost):
        backend.readings(device.uuid)
    with pytest.raises(DeviceLost):
        backend.session(device.accelerator, device.units)
    assert len(backend.inventory()) == 1
    assert backend.reset(device.uuid).done
    assert backend.readings(device.uuid).present is True


def test_a_reset_is_refused_while_anybody_has_it_open(tmp_path: Path) -> None:
    """B3: infrastructure may stay during a wipe, never during a reset."""
    backend = node(tmp_path)
    device = whole(backend)
    registers = backend.registers(device.uuid)
    break_it(backend, device, "reset-required")
    path = backend.memory(device.uuid)
    clients.start(registers, path, name="nvidia-persistenced", units=device.units, seconds=60)
    refused = backend.reset(device.uuid)
    clients.stop(registers.read().clients)
    assert (refused.done, len(refused.holders)) == (False, 1)
    assert backend.readings(device.uuid).reset_required is True
    assert eventually(lambda: backend.reset(device.uuid).done)
    assert backend.readings(device.uuid).reset_required is False


def test_a_reboot_ends_processes_and_keeps_memory(tmp_path: Path) -> None:
    """D5: after a reboot nobody holds anything, the boot is new, the bytes are the old ones."""
    backend = node(tmp_path)
    device = whole(backend)
    path, before = backend.memory(device.uuid), backend.boot_id()
    memory.write(path, 0, b"still here")
    pid = clients.start(
        backend.registers(device.uuid), path, name="tenant", units=device.units, seconds=60
    )
    after = backend.reboot()
    assert after == SimulatedBackend(tmp_path).boot_id() != before
    assert backend.processes(device.uuid) == ()
    assert eventually(lambda: start_time(pid) is None)
    assert memory.read(path, 0, 10) == b"still here"


def test_a_reading_that_hangs_returns_when_the_fault_is_cleared(tmp_path: Path) -> None:
    """A hung driver call blocks its caller only; taking the fault back ends it."""
    backend = node(tmp_path)
    device = whole(backend)
    break_it(backend, device, "reading-hang")
    caller = threading.Thread(target=lambda: backend.readings(device.uuid))
    caller.start()
    caller.join(0.15)
    assert caller.is_alive()
    assert backend.clear_fault(device.uuid, "reading-hang")
    caller.join(10)
    assert not caller.is_alive()


def test_clearing_what_was_never_set_says_so(tmp_path: Path) -> None:
    """Whether anything was taken back is answered truthfully."""
    backend = node(tmp_path)
    assert not backend.clear_fault(whole(backend).uuid, "hang")


@contextmanager
def stranger(*paths: Path) -> Iterator[int]:
    """A real process that maps these files for writing and registers nowhere."""
    code = (
        "import mmap, sys\n"
        "held = [open(path, 'r+b') for path in sys.argv[1:]]\n"
        "maps = [mmap.mmap(file.fileno(), 0) for file in held]\n"
        "[file.close() for file in held]\n"
        "print('there', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = (sys.executable, "-S", "-c", code, *map(str, paths))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        yield process.pid
        process.kill()


def test_a_tenant_that_registered_nowhere_is_seen(tmp_path: Path) -> None:
    """Promise 4: a pod's process that has its partition's file mapped, and only there."""
    backend = node(tmp_path, partitionable=1)
    devices = {device.name: device for device in backend.inventory()[0].devices}
    part, parent = devices["gpu-0-1g-0"], devices["gpu-0"]
    with stranger(*backend.memory(parent.uuid).only(part.units).paths) as pid:
        seen = {
            name: [(one.pid, one.kind) for one in backend.processes(devices[name].uuid)]
            for name in ("gpu-0-1g-0", "gpu-0-1g-1", "gpu-0-2g-0", "gpu-0")
        }
        refused = backend.reset(parent.uuid)
    mine = [(pid, ProcessKind.FOREIGN)]
    assert seen == {"gpu-0-1g-0": mine, "gpu-0-1g-1": [], "gpu-0-2g-0": mine, "gpu-0": mine}
    assert [holder.pid for holder in refused.holders] == [pid]
    assert eventually(lambda: backend.processes(parent.uuid) == ())


def test_a_stranger_stops_a_wipe_before_it_writes(tmp_path: Path) -> None:
    """Promise 4: memory somebody has mapped is not touched, registered or not."""
    backend = node(tmp_path)
    device = whole(backend)
    memory.write(backend.memory(device.uuid), 0, b"in use")
    with stranger(*backend.memory(device.uuid).paths):
        result = run(backend, order_for(backend, device))
    assert result.failure is Failure.HOLDER
    assert memory.read(backend.memory(device.uuid), 0, 6) == b"in use"


def test_a_registered_client_is_listed_once(tmp_path: Path) -> None:
    """The register and the kernel name the same process: it is one holder."""
    backend = node(tmp_path)
    device = whole(backend)
    registers, held = backend.registers(device.uuid), backend.memory(device.uuid)
    pid = clients.start(registers, held, name="tenant", units=device.units, seconds=60)
    try:
        maps = Path(f"/proc/{pid}/maps")
        assert eventually(lambda: str(held.paths[0]) in maps.read_text())
        assert [one.pid for one in backend.processes(device.uuid)] == [pid]
    finally:
        clients.stop(registers.read().clients)


def test_memory_that_cannot_be_looked_at_is_no_answer(tmp_path: Path) -> None:
    """Promise 5: unknown is not nobody."""
    backend = node(tmp_path)
    device = whole(backend)
    backend.memory(device.uuid).paths[0].unlink()
    with pytest.raises(BackendFailed):
        backend.processes(device.uuid)


def test_an_old_directory_is_split_when_it_is_opened(tmp_path: Path) -> None:
    """D5: what tenants wrote before the upgrade lies where the next wipe finds it."""
    backend = node(tmp_path, partitionable=1)
    accelerator = backend.inventory()[0]
    content = random.Random(1).randbytes(accelerator.memory_bytes)
    shutil.rmtree(tmp_path / "memory" / accelerator.uuid)
    old = tmp_path / "memory" / f"{accelerator.uuid}.bin"
    old.write_bytes(content)
    assert SimulatedBackend(tmp_path).memory(accelerator.uuid).read_bytes() == content
    assert not old.exists()
    assert node(tmp_path, partitionable=1).memory(accelerator.uuid).read_bytes() == content
    result = run(backend, order_for(backend, accelerator.device))
    assert result.verified, result.detail
    assert not any(backend.memory(accelerator.uuid).read_bytes())
