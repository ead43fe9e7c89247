"""Who uses a GPU: the driver's lists and open descriptors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.core.errors import BackendFailed, DeviceLost, DriverRefused
from fleet.core.model import Process, ProcessKind
from fleet.devices.nvidia import nodes, nvml, occupancy
from fleet.devices.nvidia.occupancy import NO_INSTANCE
from tests.drivers.host import Host
from tests.fleet.devices.nvidia import hosttree
from tests.fleet.devices.nvidia.hosttree import OTHER_MOUNTS
from tests.fleet.devices.nvidia.scripted import Refusal, Scripted, by_turns, refuse

COMPUTE = "nvmlDeviceGetComputeRunningProcesses_v3"
GRAPHICS = "nvmlDeviceGetGraphicsRunningProcesses_v3"
MPS = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
HANDLE = "handle"


def listed(pid: int, gi: int = NO_INSTANCE) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=None, gpuInstanceId=gi, computeInstanceId=gi)


def lists(compute: Any = (), graphics: Any = (), mps: Any = (), **more: Any) -> Scripted:
    return Scripted(**{COMPUTE: compute, GRAPHICS: graphics, MPS: mps, **more})


def holders(library: Scripted, root: Path, minor: int = 0) -> tuple[Process, ...]:
    own = [nodes.of_gpu(minor, root=root)]
    return occupancy.processes(library, HANDLE, root=root, nodes=own)


def test_every_list_of_the_driver_counts(tmp_path: Path) -> None:
    """gpus-8.16: compute, graphics and MPS clients are holders, by pid and name, each once."""
    root = hosttree.host(tmp_path)
    for pid, name in ((41, "train"), (42, "Xorg"), (43, "client")):
        hosttree.process(root, pid, name, mounts=OTHER_MOUNTS)
    library = lists([listed(41), listed(43)], [listed(42)], [listed(43)])
    assert holders(library, root) == (
        Process(41, "train", ProcessKind.FOREIGN),
        Process(42, "Xorg", ProcessKind.FOREIGN),
        Process(43, "client", ProcessKind.FOREIGN),
    )


def test_a_bare_descriptor_is_a_holder(tmp_path: Path) -> None:
    """gpus-8.17: a monitor in another container is in no list; its descriptor shows."""
    root = hosttree.host(tmp_path)
    hosttree.process(
        root, 50, "dcgm", opens=["/dev/nvidiactl", "/dev/nvidia0"], mounts=OTHER_MOUNTS
    )
    assert holders(lists(), root) == (Process(50, "dcgm", ProcessKind.FOREIGN),)


def test_a_mapping_without_a_descriptor_is_a_holder(tmp_path: Path) -> None:
    """B18: a foreign process that kept only its window into the GPU's memory blocks the wipe."""
    root = hosttree.host(tmp_path)
    line = "7f0000000000-7f0000010000 rw-s 00000000 00:06 77 /dev/nvidia0\n"
    hosttree.put(hosttree.process(root, 4242, "gdrcopy"), "maps", line)
    assert holders(lists(), root) == (Process(4242, "gdrcopy", ProcessKind.FOREIGN),)


def test_control_nodes_and_other_gpus_hold_nothing(tmp_path: Path) -> None:
    """gpus-8.16: every tool opens the control node; only the device's own node decides."""
    root = hosttree.host(tmp_path)
    hosttree.process(root, 50, "nvidia-smi", opens=["/dev/nvidiactl", "/dev/nvidia-uvm"])
    hosttree.process(root, 51, "train", opens=["/dev/nvidia1"])
    assert holders(lists(), root) == ()
    assert [one.pid for one in holders(lists(), root, minor=1)] == [51]


def test_a_holder_that_comes_between_two_looks_is_seen(tmp_path: Path) -> None:
    """gpus-8.18: nothing is remembered from the look before."""
    root = hosttree.host(tmp_path)
    library = lists()
    assert holders(library, root) == ()
    hosttree.process(root, 60, "late", opens=["/dev/nvidia0"])
    assert [one.pid for one in holders(library, root)] == [60]


def test_known_daemons_are_infrastructure_and_impostors_are_not(tmp_path: Path) -> None:
    """B3, promise 4: a listed name counts on the host only, not in a tenant's container."""
    root = hosttree.host(tmp_path)
    opens = ["/dev/nvidia0"]
    hosttree.process(root, 70, "nvidia-persistenced", opens=opens)
    hosttree.process(root, 71, "nv-hostengine", opens=opens, mounts=OTHER_MOUNTS)
    assert {one.pid: one.kind for one in holders(lists(), root)} == {
        70: ProcessKind.INFRASTRUCTURE,
        71: ProcessKind.FOREIGN,
    }


def test_a_process_in_teardown_is_a_holder(tmp_path: Path) -> None:
    """gpus-8.16: the driver still lists it, the kernel shows no process: it holds memory yet."""
    root = hosttree.host(tmp_path)
    library = lists(
        [listed(80), listed(81)],
        nvmlSystemGetProcessName=lambda pid: "/opt/train" if pid == 80 else None,
    )
    assert holders(library, root) == (
        Process(80, "train", ProcessKind.FOREIGN),
        Process(81, "unknown", ProcessKind.FOREIGN),
    )


def test_without_the_hosts_processes_nothing_is_idle(tmp_path: Path) -> None:
    """gpus-8.17: an empty list from inside a container says nothing, and that is what is said."""
    root = hosttree.host(tmp_path)
    (root / "proc/1/ns/pid").unlink()
    (root / "proc/1/ns/pid").symlink_to("pid:[4026532001]")
    with pytest.raises(BackendFailed, match="does not show all processes"):
        holders(lists(), root)


def test_a_partitions_holders_are_its_own(tmp_path: Path) -> None:
    """Promise 9: a process of another instance, or with the parent's node only, is none of it."""
    root = hosttree.host(tmp_path)
    one, other = (nodes.of_instance(0, gi=gi, ci=0, root=root) for gi in (1, 2))
    hosttree.process(root, 90, "mine", opens=["/dev/nvidia0", *(n.path for n in one)])
    hosttree.process(root, 91, "theirs", opens=["/dev/nvidia0", *(n.path for n in other)])
    hosttree.process(root, 92, "monitor", opens=["/dev/nvidia0"])
    hosttree.process(root, 93, "listed")
    library = lists([listed(91, gi=2), listed(93, gi=1), listed(94)])
    found = occupancy.processes(library, HANDLE, root=root, nodes=one, gi=1)
    assert [process.pid for process in found] == [90, 93]
    assert [process.pid for process in holders(library, root)] == [90, 91, 92, 93, 94]


def test_lists_a_part_does_not_have_are_left_out(tmp_path: Path) -> None:
    """gpus-8.19: no graphics and no MPS list is not applicable; no compute list is unknown."""
    root = hosttree.host(tmp_path)
    unsupported, missing = refuse(nvml.NOT_SUPPORTED), refuse(nvml.FUNCTION_NOT_FOUND)
    assert holders(lists([], unsupported, missing), root) == ()
    for code in (nvml.NOT_SUPPORTED, nvml.NO_PERMISSION, 999):
        with pytest.raises(DriverRefused):
            holders(lists(refuse(code)), root)
    with pytest.raises(DriverRefused):
        holders(lists([], [], refuse(nvml.NO_PERMISSION)), root)
    with pytest.raises(DeviceLost):
        holders(lists(refuse(nvml.GPU_IS_LOST)), root)


def test_an_older_driver_is_asked_in_its_older_form(tmp_path: Path) -> None:
    """A function this driver lacks is asked for in the form before."""
    root = hosttree.host(tmp_path)
    older = Scripted(**{COMPUTE.replace("_v3", "_v2"): [listed(41)]})
    assert [one.pid for one in holders(older, root)] == [41]


def test_a_list_that_grew_while_it_was_read_is_read_again(tmp_path: Path) -> None:
    """gpus-8.18: the driver's refusal of a list that became longer is no failure, at first."""
    root = hosttree.host(tmp_path)
    grew = refuse(7)
    assert [one.pid for one in holders(lists(by_turns(grew, [listed(41)])), root)] == [41]
    with pytest.raises(DriverRefused):
        holders(lists(grew), root)


def test_a_gpu_that_waits_for_its_reset_is_judged_by_descriptors(tmp_path: Path) -> None:
    """gpus-8.36: it lists nothing, and the reset it needs must not fail for that."""
    root = hosttree.host(tmp_path)
    hosttree.process(root, 95, "holder", opens=["/dev/nvidia0"])
    own = [nodes.of_gpu(0, root=root)]
    assert [one.pid for one in holders(lists(refuse(nvml.RESET_REQUIRED)), root)] == [95]
    found = occupancy.processes(Scripted(), None, root=root, nodes=own)
    assert [one.pid for one in found] == [95]


def figures(newer: Any, older: Any) -> Callable[..., Any]:
    """The driver's memory figures in the newer and in the older form."""

    def answer(*_: Any, version: int = 0) -> Any:
        found = newer if version else older
        if isinstance(found, Refusal):
            raise found.error("nvmlDeviceGetMemoryInfo")
        return found

    return answer


def used(mib: int, **more: int) -> SimpleNamespace:
    return SimpleNamespace(used=mib << 20, **more)


B71 = (
    (used(0, reserved=702 << 20), used(702), ""),
    (used(508, reserved=702 << 20), used(1210), "508 MiB in use"),
    (refuse(nvml.FUNCTION_NOT_FOUND), used(690), "690 MiB (the driver's reserve included"),
    (refuse(nvml.VERSION_MISMATCH), used(690), "690 MiB (the driver's reserve included"),
    (refuse(nvml.FUNCTION_NOT_FOUND), used(814), "814 MiB (the driver's reserve included"),
    (refuse(nvml.FUNCTION_NOT_FOUND), used(3), ""),
    (refuse(nvml.FUNCTION_NOT_FOUND), refuse(nvml.FUNCTION_NOT_FOUND), "memory (how much is"),
    (refuse(nvml.NOT_SUPPORTED), used(3), "memory (how much is unknown"),
    (refuse(nvml.NO_PERMISSION), used(3), "memory (how much is unknown"),
    (refuse(999), used(3), "memory (how much is unknown"),
)
"""Figures of the case's four GPUs and of others, and what is held by nobody who is listed."""


@pytest.mark.parametrize(("newer", "older", "held"), B71)
def test_f41_memory_whose_use_is_not_known_to_be_idle_is_held(
    newer: Any, older: Any, held: str
) -> None:
    """F41, B71: a GPU that lists nobody is idle only when its figures say so: the newer ones, or of
    a driver without them older ones that leave no room for anybody; a refusal is no figure."""
    library = lists(nvmlDeviceGetMemoryInfo=figures(newer, older))
    found = occupancy.unseen(library, HANDLE, within_s=0)
    assert [one.kind for one in found] == ([ProcessKind.FOREIGN] if held else [])
    assert all(one.name.startswith(held) for one in found)
    assert all(one.name.endswith(" in use by nobody who can be seen") for one in found)


@pytest.mark.parametrize("code", [nvml.NOT_SUPPORTED, nvml.NO_PERMISSION, nvml.TIMEOUT, 999])
@pytest.mark.parametrize("name", [COMPUTE, GRAPHICS, MPS])
def test_f41_a_list_that_is_refused_is_not_replaced_by_an_older_one(name: str, code: int) -> None:
    """F41: a newer process list that the driver has and refuses makes no older answer true."""
    older: dict[str, Any] = {name.replace("_v3", "_v2"): []}
    library = lists(**{**older, name: refuse(code)})
    if code == nvml.NOT_SUPPORTED and name != COMPUTE:
        assert occupancy.listed(library, HANDLE) == frozenset()  # this part keeps no such list
    else:
        with pytest.raises(DriverRefused, match=str(code)):
            occupancy.listed(library, HANDLE)
    assert not library.called(name.replace("_v3", "_v2"))


def test_f41_clients_of_an_mps_server_that_are_not_told_are_unknown() -> None:
    """F41: an MPS daemon is idle only when the driver says that it has no client."""
    assert occupancy.clients(lists(), HANDLE) == frozenset()
    assert occupancy.clients(lists(mps=[listed(41)]), HANDLE) == frozenset({41})
    for code in (nvml.NOT_SUPPORTED, nvml.NO_PERMISSION, 999):
        assert occupancy.clients(lists(mps=refuse(code)), HANDLE) is None


def test_b71_memory_of_somebody_who_is_listed_is_his() -> None:
    """B71, F41: a worker of ours has all of it, and is no stranger for that; neither is a GPU that
    must be reset first (gpus-8.36). MIG makes no memory idle, and an instance is judged by its own
    figures and by those listed inside of it."""
    full = used(80 << 10, reserved=0)

    def seen(compute: Any, gi: int | None = None, **more: Any) -> int:
        library = lists(compute, nvmlDeviceGetMemoryInfo=lambda *_, **__: full, **more)
        instance = None if gi is None else (gi, "MIG device")
        found = occupancy.unseen(library, HANDLE, instance=instance, within_s=0)
        return len(found)

    assert seen([]) == 1
    assert seen([listed(41)]) == 0
    assert seen([], nvmlDeviceGetMigMode=[1, 1]) == 1
    assert seen([listed(41, gi=2)], gi=1) == 1
    assert seen([listed(41, gi=2)], gi=2) == 0
    assert seen(refuse(nvml.RESET_REQUIRED)) == 0


def test_b71_memory_just_freed_is_nobodys() -> None:
    """B71: the driver scrubs what was freed, and for that moment counts it as used."""
    turns = by_turns(*(SimpleNamespace(used=size << 20) for size in (500, 100, 64)))
    library = lists(nvmlDeviceGetMemoryInfo=turns)
    assert occupancy.unseen(library, HANDLE, within_s=30) == ()
    assert len(library.called("nvmlDeviceGetMemoryInfo")) == 3


def test_the_vendors_binding_is_read_right(host: Host) -> None:
    """gpus-8.16, 8.17: on the driver's stand-in by the unmodified binding, with names."""
    gpu = host.add_gpu()
    host.tree.process(41, "train", files=["/dev/nvidia0"])
    host.tree.process(42, "nv-hostengine", files=["/dev/nvidia0"])
    for pid, kind in ((41, "compute"), (43, "graphics"), (44, "mps")):
        gpu.process(pid, kind=kind, name=f"/usr/bin/{kind}")
    library = nvml.Library()
    handle = library.call("nvmlDeviceGetHandleByPciBusId", gpu.bus_id)
    root = host.hardware_root
    own = [nodes.of_gpu(0, root=root)]
    found = occupancy.processes(library, handle, root=root, nodes=own)
    library.close()
    assert [(one.pid, one.name, one.kind.value) for one in found] == [
        (41, "train", "foreign"),
        (42, "nv-hostengine", "infrastructure"),
        (43, "graphics", "foreign"),
        (44, "mps", "foreign"),
    ]
