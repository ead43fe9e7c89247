"""Device nodes by name and number, from the kernel's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core.errors import BackendFailed, DriverAbsent
from fleet.devices.base import DeviceNode
from fleet.devices.nvidia import nodes
from tests.fleet.devices.nvidia import hosttree


def test_gpus_are_listed_with_their_minors(tmp_path: Path) -> None:
    """gpus-8.2: the kernel's listing tells slot, minor and UUID; a minor is no index."""
    root = hosttree.host(tmp_path)
    hosttree.gpu(root, 0, minor=5)
    found = nodes.listed(root)
    assert [(one.address, one.minor, one.uuid) for one in found] == [
        ("0000:3b:00.0", 5, "GPU-stand-in-0"),
        ("0000:3c:00.0", 1, "GPU-stand-in-1"),
    ]


def test_no_kernel_module_is_not_no_gpus(tmp_path: Path) -> None:
    """gpus-8.1: without the module's files the GPUs are unknown, not absent."""
    with pytest.raises(DriverAbsent, match="proc/driver/nvidia/gpus"):
        nodes.listed(tmp_path)


def test_a_gpu_that_never_started_has_no_uuid_yet(tmp_path: Path) -> None:
    """A UUID of question marks is none, and a listing without a minor is no GPU."""
    root = hosttree.host(tmp_path, gpus=1)
    place = "proc/driver/nvidia/gpus"
    hosttree.put(
        root, f"{place}/0000:3b:00.0/information", "GPU UUID: GPU-????-??\nDevice Minor: 0\n"
    )
    hosttree.put(root, f"{place}/0000:3c:00.0/information", "Model: STAND-IN\n")
    assert [(one.address, one.uuid) for one in nodes.listed(root)] == [("0000:3b:00.0", "")]


def test_numbers_come_from_the_kernels_table(tmp_path: Path) -> None:
    """Majors are read; a block device of that name is another; the display node is optional."""
    root = hosttree.host(tmp_path)
    gpu, controls = nodes.of_gpu(1, root=root), nodes.controls(root)
    assert (gpu.path, gpu.kind, gpu.major, gpu.minor) == ("/dev/nvidia1", "c", 195, 1)
    assert not gpu.shared
    assert [(one.path, one.major, one.minor, one.shared) for one in controls] == [
        ("/dev/nvidiactl", 195, 255, True),
        ("/dev/nvidia-uvm", 510, 0, True),
        ("/dev/nvidia-uvm-tools", 510, 1, True),
    ]
    assert {one.file_mode for one in (gpu, *controls)} == {0o660}
    hosttree.put(root, "dev/nvidia-modeset")
    assert [(one.path, one.minor) for one in nodes.controls(root)][3:] == [
        ("/dev/nvidia-modeset", 254)
    ]


def test_older_drivers_have_another_name_for_their_major(tmp_path: Path) -> None:
    """``nvidia-frontend`` is the same device; with neither name nothing is guessed."""
    hosttree.put(tmp_path, "proc/devices", "Character devices:\n194 nvidia-frontend\n")
    assert nodes.of_gpu(0, root=tmp_path).major == 194
    hosttree.put(tmp_path, "proc/devices", "Character devices:\n  1 mem\n")
    with pytest.raises(BackendFailed, match="lists no character device nvidia"):
        nodes.of_gpu(0, root=tmp_path)


def test_an_instance_has_two_capability_nodes(tmp_path: Path) -> None:
    """A partition is opened by the nodes of its GPU and compute instance; they need not exist."""
    root = hosttree.host(tmp_path)
    found = nodes.of_instance(1, gi=2, ci=0, root=root)
    assert [(one.path, one.major, one.minor, one.permissions) for one in found] == [
        ("/dev/nvidia-caps/nvidia-cap123", 239, 123, "r"),
        ("/dev/nvidia-caps/nvidia-cap124", 239, 124, "r"),
    ]
    assert not (root / "dev/nvidia-caps").exists()


def test_a_capability_the_driver_does_not_list_is_an_error_with_its_name(tmp_path: Path) -> None:
    """B79: what is missing is named, and no neighbour's number is used in its place."""
    root = hosttree.host(tmp_path)
    with pytest.raises(BackendFailed, match="gpu1/gi7/access"):
        nodes.of_instance(1, gi=7, ci=0, root=root)


def test_all_capabilities_of_some_gpus(tmp_path: Path) -> None:
    """DESIGN 7, Privilege: every possible instance of the GPUs named, and to make and see them."""
    root = hosttree.host(tmp_path)
    minors = {one.minor for one in nodes.capabilities(root, gpus={1})}
    assert {1, 2, 103, 104, 105, 123, 125} <= minors
    assert not minors & {3, 4, 13}
    (root / nodes.MIG_MINORS).unlink()
    assert nodes.capabilities(root, gpus={1}) == ()


def test_half_made_instances_are_seen(tmp_path: Path) -> None:
    """gpus-8.29: an instance without compute is one; without partitioning there is none."""
    root = hosttree.host(tmp_path)
    hosttree.put(root, "proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", "DeviceFileMinor: 13")
    assert nodes.instances(root, 0) == ("gi1",)
    assert nodes.instances(root, 1) == ()


def test_graphics_nodes_are_found_by_slot(tmp_path: Path) -> None:
    """gpus-8.17: who holds the GPU through the graphics layer holds it too."""
    place = "sys/bus/pci/devices/0000:3b:00.0/drm"
    hosttree.put(tmp_path, f"{place}/card1/dev", "226:1\n")
    hosttree.put(tmp_path, f"{place}/renderD129/dev", "226:129\n")
    hosttree.put(tmp_path, f"{place}/controlD65/dev", "226:65\n")
    found = nodes.rendering(tmp_path, "0000:3b:00.0")
    assert [(one.path, one.major, one.minor) for one in found] == [
        ("/dev/dri/card1", 226, 1),
        ("/dev/dri/renderD129", 226, 129),
    ]
    assert nodes.rendering(tmp_path, "0000:3c:00.0") == ()


def test_a_node_with_other_numbers_is_another_device(tmp_path: Path) -> None:
    """gpus-8.26: a stale node would give a container somebody else's device."""
    there = Path("/dev/null").stat()
    assert nodes.is_another(DeviceNode("/dev/nvidia0", "c", 195, 0), there)
    assert not nodes.is_another(DeviceNode("/dev/null", "c", 1, 3), there)
    plain = hosttree.put(tmp_path, "dev/nvidia0").stat()
    assert not nodes.is_another(DeviceNode("/dev/nvidia0", "c", 195, 0), plain)


def test_switch_nodes_are_those_that_exist(tmp_path: Path) -> None:
    """A host with a switch fabric has nodes for it; one without has none."""
    root = hosttree.host(tmp_path)
    assert nodes.switches(root) == ()
    for name in ("nvidia-nvswitchctl", "nvidia-nvswitch0", "nvidia-nvswitch-broken"):
        hosttree.put(root, f"dev/{name}")
    assert [(one.path, one.major, one.minor) for one in nodes.switches(root)] == [
        ("/dev/nvidia-nvswitch0", 236, 0),
        ("/dev/nvidia-nvswitchctl", 236, 255),
    ]
