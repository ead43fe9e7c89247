"""The NVIDIA back end as a whole, on stand-ins of its drivers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleet.core.errors import BackendFailed, DeviceLost, DeviceUnknown, InputInvalid
from fleet.core.model import Device, ProcessKind, UnitId, Uuid
from fleet.devices import registry
from fleet.devices.base import Backend, CanPartition, CanReset
from fleet.devices.nvidia.backend import NvidiaBackend
from tests.drivers.host import Gpu, Host


def part(backend: NvidiaBackend, profile: str, start: int) -> Device:
    """A partition of the first GPU."""
    accelerator = backend.inventory()[0]
    return next(
        device
        for device in accelerator.devices
        if device.profile.startswith(f"{profile}.") and device.name.endswith(f"-{start}")
    )


def partitioned(host: Host) -> Gpu:
    """A GPU with MIG on."""
    return host.add_gpu(mig_current=1, mig_pending=1)


# --- what it is ---------------------------------------------------------------------------------


def test_it_has_all_abilities(backend: NvidiaBackend) -> None:
    """DESIGN 7: inventory, readings, holders, sessions; it can reset and partition, and is real."""
    assert isinstance(backend, Backend)
    assert isinstance(backend, CanReset)
    assert isinstance(backend, CanPartition)
    assert (backend.kind, backend.simulated) == ("nvidia", False)


def test_settings_make_it_again(host: Host, backend: NvidiaBackend) -> None:
    """A worker builds the same back end from JSON; a setting nobody knows is refused."""
    host.add_gpu()
    settings = json.loads(json.dumps(dict(backend.settings())))
    again = registry.build("nvidia", settings)
    assert list(again.inventory()) == list(backend.inventory())
    assert dict(again.settings()) == settings
    with pytest.raises(InputInvalid):
        registry.build("nvidia", {**settings, "index": 0})


def test_an_inventory_holds_nothing(host: Host, backend: NvidiaBackend) -> None:
    """gpus-10.1: whoever looked at all GPUs lets them go, or none could be reset; readings stay."""
    gpu = host.add_gpu()
    backend.inventory()
    assert not backend.opened
    backend.readings(Uuid(gpu.uuid))
    backend.inventory()
    assert backend.opened


def test_readings_look_into_one_gpu_alone(host: Host, backend: NvidiaBackend) -> None:
    """B24, B29: a GPU that fails every call, listing included, does not touch its neighbour."""
    sick, gpu = host.add_gpu(), host.add_gpu()
    sick.fault("nvml*", "return 999")
    host.fault("nvmlDeviceGetCount_v2", "return 999")
    assert backend.readings(Uuid(gpu.uuid)).present is True
    assert backend.accelerator(Uuid(gpu.uuid)).uuid == gpu.uuid
    assert backend.processes(Uuid(gpu.uuid)) == ()


def test_eight_gpus_cost_little(host: Host, backend: NvidiaBackend) -> None:
    """Issue 5: inventory and readings add far less than 0.5 s for each of eight devices."""
    gpus = [host.add_gpu(nvlinks=18) for _ in range(8)]
    backend.inventory()
    began = time.process_time()
    backend.inventory()
    for gpu in gpus:
        backend.readings(Uuid(gpu.uuid))
    assert time.process_time() - began < 8 * 0.25


# --- who holds it -------------------------------------------------------------------------------


def test_b71_memory_in_use_is_no_holder(host: Host, backend: NvidiaBackend) -> None:
    """B71: a reserve that counts as used makes nobody a holder as long as it is no larger than
    what an idle GPU has in use; else see F41."""
    gpu = host.add_gpu()
    gpu.fault("nvmlDeviceGetMemoryInfo_v2", "return 13")
    assert backend.processes(Uuid(gpu.uuid)) == ()
    host.tree.process(4711, "python3")
    gpu.process(4711, size=0)
    (found,) = backend.processes(Uuid(gpu.uuid))
    assert (found.pid, found.kind) == (4711, ProcessKind.FOREIGN)


def test_f41_memory_used_by_nobody_on_an_old_driver_is_held(
    host: Host, backend: NvidiaBackend
) -> None:
    """F41: 814 of 1,024 MiB in use, nobody listed, newer figures refused: there is a holder."""
    gpu = host.add_gpu(total=1 << 30, exported=813 << 20)
    gpu.fault("nvmlDeviceGetMemoryInfo_v2", "return 13")
    (found,) = backend.processes(Uuid(gpu.uuid))
    assert (found.pid, found.kind) == (0, ProcessKind.FOREIGN)
    assert found.name.startswith("814 MiB (the driver's reserve included")
    gpu.set(exported=0)
    assert backend.processes(Uuid(gpu.uuid)) == ()


def test_f41_memory_used_by_nobody_in_an_instance_is_held(
    host: Host, backend: NvidiaBackend
) -> None:
    """F41: with MIG on an instance whose memory nobody listed has is held, and so is the GPU, with
    instances and without."""
    gpu = host.add_gpu(total=8 << 30, mig_current=1, mig_pending=1)
    whole, one = backend.inventory()[0].devices[0], part(backend, "2g", 0)
    gpu.set(exported=200 << 20)
    assert [process.pid for process in backend.processes(whole.uuid)] == [0]
    made = backend.make(one)
    found = backend.holders(whole.uuid)
    assert [process.name for process in found[one.uuid]] == [
        "200 MiB in use by nobody who can be seen"
    ]
    assert found[one.uuid] == backend.processes(one.uuid) == found[whole.uuid]
    assert [process.pid for process in backend.in_the_way(whole.uuid)] == [0]
    gpu.set(exported=0)
    assert backend.holders(whole.uuid) == {one.uuid: (), whole.uuid: ()}
    backend.unmake(made)


def test_holders_of_a_partition_are_its_own(host: Host, backend: NvidiaBackend) -> None:
    """B40: a partition without an instance has no holder; unknown partitions are an error."""
    partitioned(host)
    device = part(backend, "1g", 0)
    assert backend.processes(device.uuid) == ()
    with pytest.raises(DeviceUnknown):
        backend.processes(Uuid("PART-00000000-0000-0000-0000-000000000000"))


# --- partitions ---------------------------------------------------------------------------------


def test_a_partition_is_made_granted_and_removed(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.29: the instance of a device is made at its placement and removed without a trace."""
    gpu = partitioned(host)
    device = part(backend, "1g", 3)
    assert backend.partitioned(device)
    made = backend.make(device)
    assert (made.device, made.units) == (device.uuid, device.units)
    assert made.uuid.startswith("MIG-")
    assert [one.uuid for one in backend.instances(Uuid(gpu.uuid))] == [made.uuid]
    paths = [node.path for node in backend.grant(device).nodes]
    assert len([path for path in paths if "nvidia-cap" in path]) == 2
    assert backend.processes(device.uuid) == ()
    backend.unmake(made)
    backend.unmake(made)
    assert list(backend.instances(Uuid(gpu.uuid))) == []


def test_a_whole_gpu_is_granted_by_its_own_node(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.26: the node granted is the minor as it is now; the agent's grant has every GPU."""
    host.add_gpu(minor=3)
    (found,) = backend.inventory()
    assert "/dev/nvidia3" in [node.path for node in backend.grant(found.device).nodes]
    assert "/dev/nvidia3" in [node.path for node in backend.agent_grant().nodes]
    assert not backend.partitioned(found.device)


# --- sessions -----------------------------------------------------------------------------------


def test_8_33_without_an_instance_nothing_is_wiped(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.33: MIG on and no instance over the units: "cannot run", never "0 bytes, ok"."""
    gpu = partitioned(host)
    found = backend.inventory()[0]
    with pytest.raises(BackendFailed, match="nothing can run there"):
        backend.session(found.uuid, found.device.units)
    backend.make(part(backend, "1g", 0))
    with pytest.raises(BackendFailed, match="nothing can run there"):
        backend.session(Uuid(gpu.uuid), [UnitId(f"{gpu.uuid}/m0"), UnitId(f"{gpu.uuid}/m1")])


def test_units_of_another_gpu_are_refused(host: Host, backend: NvidiaBackend) -> None:
    """B13: a session is opened for the units of the GPU named, all of them, or not at all."""
    one, other = host.add_gpu(), host.add_gpu()
    for units in ([UnitId(f"{other.uuid}/all")], [UnitId(f"{one.uuid}/m0")], []):
        with pytest.raises(DeviceUnknown):
            backend.session(Uuid(one.uuid), units)


def test_8_12_a_lost_gpu_has_no_session(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.12: a GPU that is lost is told as lost before anything is opened."""
    gpu = host.add_gpu()
    backend.inventory()
    gpu.lose()
    with pytest.raises(DeviceLost):
        backend.session(Uuid(gpu.uuid), [UnitId(f"{gpu.uuid}/all")])


WIPE = """
import json, sys
from fleet.devices import registry
backend = registry.build("nvidia", json.loads(sys.argv[1]))
accelerator, units = sys.argv[2], sys.argv[3].split(",")
before = backend.readings(accelerator)
session = backend.session(accelerator, units)
coverage = session.allocate(largest_bytes=1 << 30, smallest_bytes=1 << 16)
session.fill(bytes(32), lambda done: None)
wrong = len(session.verify(bytes(32), lambda done: None))
found = session.readings()
session.zero(lambda done: None)
wrong += len(session.verify_zero(lambda done: None))
session.close()
print(json.dumps([before.as_json(), found.as_json(), coverage.total, coverage.residual, wrong]))
"""


def test_8_23_a_partition_is_wiped_and_read_under_load(
    host: Host, backend: NvidiaBackend, tmp_path: Path
) -> None:
    """gpus-8.23, gpus-8.31, gpus-8.32: a worker wipes one instance, its link is read under load,
    and neither the neighbour's memory nor the rest of the GPU is touched."""
    gpu = partitioned(host)
    made = backend.make(part(backend, "2g", 2))
    slice_bytes = int(gpu.get("total")) // 8
    gpu.write_memory(0, b"neighbour")
    gpu.write_memory(2 * slice_bytes, b"secret")
    (tmp_path / "no-mps").mkdir()
    settings, units = json.dumps(dict(backend.settings())), ",".join(made.units)
    done = subprocess.run(
        [sys.executable, "-c", WIPE, settings, gpu.uuid, units],
        env={
            **host.environment(),
            "PYTHONPATH": str(Path.cwd()),
            "CUDA_VISIBLE_DEVICES": made.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "no-mps"),
        },
        stdout=subprocess.PIPE,
        check=True,
    )
    before, loaded, total, residual, wrong = json.loads(done.stdout)
    assert (before["under_load"], before["pcie_gen"], before["pstate"]) == (False, 1, 8)
    assert (loaded["under_load"], loaded["pcie_gen"], loaded["pstate"]) == (True, 5, 0)
    assert (total, wrong) == (2 * slice_bytes, 0)
    assert residual < total // 10
    assert gpu.memory().startswith(b"neighbour")
    assert b"secret" not in gpu.memory()


# --- resetting ----------------------------------------------------------------------------------


def test_a_reset_is_refused_while_somebody_has_it(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.17: any holder refuses a reset and is named; instances are holders too."""
    gpu = host.add_gpu()
    host.tree.process(4711, "nvidia-persiste", files=[f"/dev/nvidia{gpu.get('minor')}"])
    outcome = backend.reset(Uuid(gpu.uuid))
    assert not outcome.done
    assert [process.pid for process in outcome.holders] == [4711]
    other = partitioned(host)
    other.instance("1g", 0)
    outcome = backend.reset(Uuid(other.uuid))
    assert not outcome.done
    assert "instances" in outcome.detail


def test_8_21_a_reset_clears_and_ends_open_faults(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.21: after the reset counters start anew, and codes from before are not held open."""
    gpu = host.add_gpu(ecc_uncorrected_volatile=2, remap_pending=1)
    tool = str(host.hardware_root / "usr/bin/nvidia-smi")
    settings = {**backend.settings(), "reset_tool": tool}
    own = NvidiaBackend(**settings)
    own.readings(Uuid(gpu.uuid))
    gpu.xid(63)
    assert own.readings(Uuid(gpu.uuid)).xids == (63,)
    outcome = own.reset(Uuid(gpu.uuid))
    assert (outcome.done, outcome.method) == (True, "nvidia-smi")
    after = own.readings(Uuid(gpu.uuid))
    assert (after.ecc_uncorrected_volatile, after.row_remap_pending, after.xids) == (0, False, ())
    own.close()


def test_a_reset_of_nobody_is_lost(host: Host, backend: NvidiaBackend) -> None:
    """B13: a UUID nobody has any more resets no other card that came into its slot."""
    old = host.add_gpu()
    gone = old.uuid
    backend.inventory()
    old.swap()
    with pytest.raises(DeviceLost):
        backend.reset(Uuid(gone))


def test_our_own_reader_is_no_holder(
    host: Host, backend: NvidiaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gpus-8.16: who only asks the driver on the node's behalf is left out, a worker is ours."""
    gpu = host.add_gpu()
    host.tree.process(os.getpid(), "python3", files=[f"/dev/nvidia{gpu.get('minor')}"])
    monkeypatch.setenv("FLEET_WORKER_ID", f"nvidia driver, {gpu.uuid}")
    assert backend.processes(Uuid(gpu.uuid)) == ()
    monkeypatch.setenv("FLEET_WORKER_ID", "w-1")
    assert backend.processes(Uuid(gpu.uuid)) == (), "with nothing on it"
    gpu.process(os.getpid())
    assert [one.kind for one in backend.processes(Uuid(gpu.uuid))] == [ProcessKind.OURS]


def test_holders_of_all_partitions_come_in_one_look(host: Host, backend: NvidiaBackend) -> None:
    """B29: what one look tells of a GPU and its partitions is what asking each of them tells."""
    gpu = partitioned(host)
    one, two = part(backend, "2g", 0), part(backend, "2g", 2)
    made = {device.uuid: backend.make(device) for device in (one, two)}
    gpu.context(os.getppid(), gi=made[two.uuid].ids["gi"], ci=0)
    found = backend.holders(Uuid(gpu.uuid))
    assert set(found) == {one.uuid, two.uuid, gpu.uuid}
    assert {name: list(there) for name, there in found.items()} == {
        name: list(backend.processes(name)) for name in found
    }
    assert [len(found[Uuid(name)]) for name in (one.uuid, two.uuid, gpu.uuid)] == [0, 1, 1]


def test_8_30_partitioning_is_switched_only_when_nobody_has_it(
    host: Host, backend: NvidiaBackend
) -> None:
    """gpus-8.30, gpus-8.26: whoever has the GPU open is named; else it is so afterwards."""
    gpu = host.add_gpu(minor_after_mig=5)
    gpu.process(4_190_002, name="monitor")
    with pytest.raises(BackendFailed, match="monitor"):
        backend.divide(Uuid(gpu.uuid), on=True)
    assert gpu.get("mig_current") in ("", "0")
    gpu.process_gone(4_190_002)
    backend.readings(Uuid(gpu.uuid))
    backend.divide(Uuid(gpu.uuid), on=True)
    assert len(backend.accelerator(Uuid(gpu.uuid)).units) == 8
    backend.divide(Uuid(gpu.uuid), on=False)
    assert len(backend.accelerator(Uuid(gpu.uuid)).units) == 1


@pytest.mark.parametrize("persistence", [0, 1])
def test_f82_the_driver_keeps_a_client_across_a_switch(
    host: Host, backend: NvidiaBackend, persistence: int
) -> None:
    """F82: a driver that forgets MIG mode with its last client has one until persistence is back,
    and after it where there is none; what the mode is in the end is read again."""
    gpu = host.add_gpu(persistence=persistence, mig_online=1, mig_forgets=1)
    uuid = Uuid(gpu.uuid)
    backend.divide(uuid, on=True)
    assert [gpu.get(name) for name in ("mig_current", "persistence")] == ["1", str(persistence)]
    assert backend.opened
    assert len(backend.accelerator(uuid).units) == 8
    backend.close()
    assert gpu.get("mig_current") == str(persistence)


def test_f82_a_mode_that_does_not_last_is_no_success(host: Host, backend: NvidiaBackend) -> None:
    """F82: a mode that is gone once the operator's own modes are back is an error that says what
    keeps it."""
    gpu = host.add_gpu(persistence=1, mig_online=1)
    gpu.fault("nvmlDeviceGetMigMode", "after 3 return 3")
    with pytest.raises(BackendFailed, match="is not on any more") as told:
        backend.divide(Uuid(gpu.uuid), on=True)
    assert "nvidia-smi -pm 1" in told.value.remedy


def test_8_35_partitioning_is_switched_without_persistence(
    host: Host, backend: NvidiaBackend
) -> None:
    """gpus-8.35, gpus-8.30: persistence holds the GPU: it is off for the switch and on again
    after it, also where the driver refused; then nothing is pending, and who holds is named."""
    gpu = host.add_gpu(persistence=1, compute_mode=3, mig_online=1)
    backend.divide(Uuid(gpu.uuid), on=True)
    assert [gpu.get(name) for name in ("mig_current", "persistence")] == ["1", "1"]
    gpu.set(mig_activation=19)
    host.tree.kernel_module("nvidia_drm", users=1, modeset="Y")
    with pytest.raises(BackendFailed, match=r"a process uses the GPU .*nvidia_drm .*rmmod") as told:
        backend.divide(Uuid(gpu.uuid), on=False)
    assert "next reset" not in told.value.detail
    names = ("mig_current", "mig_pending", "persistence", "compute_mode")
    assert [gpu.get(name) for name in names] == ["1", "1", "1", "3"]
    gpu.fault("nvmlDeviceSetPersistenceMode", "return 4")
    with pytest.raises(BackendFailed, match="SetPersistenceMode"):
        backend.divide(Uuid(gpu.uuid), on=False)


def test_b24_a_worker_looks_at_its_own_instance_alone(host: Host, backend: NvidiaBackend) -> None:
    """B24, gpus-8.31: an instance once found is asked for by its number; neighbours are not listed,
    and no device is opened by its UUID, which would have the driver look into every GPU."""
    gpu = partitioned(host)
    device = part(backend, "2g", 2)
    made = backend.make(device)
    assert backend.processes(device.uuid) == ()
    gpu.fault("nvmlDeviceGetGpuInstances", "return 999")
    host.fault("nvmlDeviceGetHandleByUUID", "return 999")
    assert backend.processes(device.uuid) == ()
    assert backend.readings(Uuid(gpu.uuid)).unpartitioned is False
    assert len([n for n in backend.grant(device).nodes if "nvidia-cap" in n.path]) == 2
    gpu.heal("nvmlDeviceGetGpuInstances")
    backend.unmake(made)
    assert backend.readings(Uuid(gpu.uuid)).unpartitioned is True
    assert backend.processes(device.uuid) == ()


def test_b39_faults_of_slots_without_a_card_are_told(host: Host, backend: NvidiaBackend) -> None:
    """B39, B13: a card that was ever here is known, also after it has gone; other slots are not."""
    gpu = host.add_gpu()
    backend.inventory()
    place = gpu.bus_id.rpartition(".")[0]
    for slot in (place, "0000:99:00"):
        with (host.root / "kmsg").open("a") as kernel:
            kernel.write(f"4,1,1000000,-;NVRM: Xid (PCI:{slot}): 79, pid=1, name=x, said\n")
    gpu.remove()
    (told,) = backend.strays()
    assert "0000:99:00" in told
