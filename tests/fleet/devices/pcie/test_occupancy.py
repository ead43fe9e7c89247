"""Who holds a card, seen through its nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core.errors import BackendFailed
from fleet.core.model import Process, ProcessKind
from fleet.devices.pcie.backend import hive
from tests.drivers.pci_tree import GAUDI2, GIB, H100, MI300X, TPU_V5E
from tests.fleet.devices.pcie.benches import Bench, address, bench


def held(found: Bench, index: int = 0) -> list[int]:
    """Pids of the holders of one card."""
    return [one.pid for one in found.backend.processes(found.accelerator(index).uuid)]


def test_holders_are_named_and_classified(tmp_path: Path) -> None:
    """gpus-8.16, 8.17: a tenant is foreign; it holds the card it has open and no other."""
    found = bench(tmp_path, GAUDI2, replace(GAUDI2, serial=2))
    found.tree.process(42, "trainer", "/dev/accel/accel1")
    holder = Process(42, "trainer", ProcessKind.FOREIGN)
    assert found.backend.processes(found.accelerator(0).uuid) == (holder,)
    assert held(found, 1) == []


def test_a_group_is_held_as_a_whole(tmp_path: Path) -> None:
    """gpus-5.5: two functions in one IOMMU group are both in use once the group is open."""
    found = bench(tmp_path, TPU_V5E, TPU_V5E)
    found.tree.process(42, "tpu-runtime", "/dev/vfio/7", "/dev/vfio/vfio")
    assert held(found, 0) == held(found, 1) == [42]


def test_the_shared_node_alone_is_no_sign(tmp_path: Path) -> None:
    """gpus-5.5: /dev/vfio/vfio reaches no device."""
    found = bench(tmp_path, TPU_V5E)
    found.tree.process(42, "tpu-runtime", "/dev/vfio/vfio", "/dev/vfio/8")
    assert held(found) == []


def test_a_card_node_counts_although_it_is_never_granted(tmp_path: Path) -> None:
    """gpus-8.17: a display server has the primary node open."""
    found = bench(tmp_path, MI300X)
    found.tree.process(42, "Xorg", "/dev/dri/card1")
    assert held(found) == [42]


def test_a_compute_client_holds_the_gpus_it_has_open(tmp_path: Path) -> None:
    """gpus-5.5: /dev/kfd is shared; the render nodes beside it tell which GPU is meant, and
    without any it may be each.
    """
    found = bench(tmp_path, MI300X, replace(MI300X, serial=5))
    found.tree.process(42, "on-the-first", "/dev/kfd", "/dev/dri/renderD129")
    found.tree.process(43, "on-any", "/dev/kfd")
    assert held(found, 0) == [42, 43]
    assert held(found, 1) == [43]


def test_without_the_hosts_view_nobody_is_idle(tmp_path: Path) -> None:
    """gpus-8.17, issue 5: holders that cannot be seen are unknown."""
    found = bench(tmp_path, GAUDI2)
    (found.tree.root / "proc/1/ns/pid").unlink()
    with pytest.raises(BackendFailed, match="is unknown"):
        held(found)


def test_gpus_of_one_hive_are_found(tmp_path: Path) -> None:
    """gpus-1.11: a reset of one may disturb the others, so that they are asked as well."""
    found = bench(tmp_path, *(replace(MI300X, serial=n, bar_bytes=GIB) for n in (1, 2, 3)))
    for index, name in enumerate(("77", "77", "78")):
        found.tree.write(address(index), "xgmi_hive_info/xgmi_hive_id", name)
    assert hive(found.function(0)) == (found.function(1),)
    assert hive(found.function(2)) == ()


def test_a_gpu_left_to_the_vendors_driver_shows_its_holders(tmp_path: Path) -> None:
    """gpus-8.17: without the vendor's library the node of the GPU still tells who uses it."""
    found = bench(tmp_path, H100)
    told = f"proc/driver/nvidia/gpus/{address(0)}/information"
    found.tree.put(told, "Model: STAND-IN\nDevice Minor: \t 3\n")
    found.tree.process(42, "trainer", "/dev/nvidia3", "/dev/nvidiactl")
    found.tree.process(43, "monitor", "/dev/nvidiactl")
    assert held(found) == [42]


def test_a_driver_without_known_nodes_is_not_idle(tmp_path: Path) -> None:
    """gpus-8.17: nothing to look for is not nobody there."""
    found = bench(tmp_path, replace(H100, vendor=0x1234, driver="mystery"))
    with pytest.raises(BackendFailed, match=r"bound to mystery.*is unknown"):
        held(found)
    found.tree.unbind(address(0))
    assert held(found) == []
