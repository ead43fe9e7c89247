"""Which accelerators there are and who each is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core.errors import DeviceLost, DeviceUnknown, DriverAbsent
from fleet.core.model import Uuid
from fleet.devices.pcie.backend import PcieBackend
from tests.drivers.pci_tree import CONSOLE, GAUDI2, GIB, H100, MI300X, TPU_V4, TPU_V5E
from tests.fleet.devices.pcie.benches import PORT, Bench, address, bench


def names(found: Bench) -> list[str]:
    """Names of all devices."""
    return [one.device.name for one in found.backend.inventory()]


def test_devices_carry_what_slices_and_certificates_need(tmp_path: Path) -> None:
    """Issue 5: product, serial, slot, driver, NUMA, root and group of a card."""
    found = bench(tmp_path, replace(GAUDI2, numa=1, group="12"))
    device = found.accelerator().device
    assert device.memory_bytes == 96 * GIB
    assert dict(device.attributes) == {
        "product": "Intel Gaudi 2",
        "family": "gaudi",
        "architecture": "gaudi",
        "pci": "0000:3b:00.0",
        "pci_ids": "1da3:1020",
        "driver": "1.22.0-stand-in",
        "driver_name": "habanalabs",
        "numa": "1",
        "iommu": "12",
        "type": "accelerator",
        "pcie_root": "pci0000:00",
        "serial": "1122334455667788",
        "identity": "serial",
        "memory_source": "catalogue",
    }


def test_only_accelerators_are_listed(tmp_path: Path) -> None:
    """gpus-5.5: the port above and the board's console are none."""
    found = bench(tmp_path, CONSOLE, TPU_V4)
    assert [one.device.attributes["product"] for one in found.backend.inventory()] == [
        "Google TPU v4"
    ]


def test_a_card_with_a_serial_number_keeps_its_identity_when_moved(tmp_path: Path) -> None:
    """Issue 5: card moved; its UUID goes with it, and its name tells the new slot."""
    found = bench(tmp_path, GAUDI2)
    before = found.accelerator()
    found.tree.remove(address(0))
    found.tree.add("0000:5e:00.0", GAUDI2, below=PORT)
    after = found.accelerator()
    assert after.uuid == before.uuid
    assert (before.device.name[:11], after.device.name[:11]) == ("gaudi-3b-00", "gaudi-5e-00")


def test_another_card_in_the_slot_is_another_device(tmp_path: Path) -> None:
    """Issue 5: card swap; the new card gets neither UUID nor name of the old one."""
    found = bench(tmp_path, GAUDI2)
    before = found.accelerator().device
    found.tree.remove(address(0))
    found.tree.add(address(0), replace(GAUDI2, serial=5), below=PORT)
    after = found.accelerator().device
    assert after.uuid != before.uuid
    assert after.name != before.name


def test_without_a_serial_number_slot_and_ids_are_the_identity(tmp_path: Path) -> None:
    """Issue 5: the same kind of card in the same slot is the same device, and says why."""
    found = bench(tmp_path, TPU_V5E, replace(TPU_V5E, group="8"))
    assert found.accelerator().device.attributes["identity"] == "slot"
    before = names(found)
    assert len(set(before)) == 2
    found.tree.remove(address(0))
    assert names(found) == before[1:]
    found.tree.add(address(0), TPU_V5E, below=PORT)
    assert names(found) == before
    found.tree.remove(address(0))
    found.tree.add(address(0), replace(TPU_V5E, device=0x006F), below=PORT)
    assert names(found)[0] != before[0]


def test_a_serial_number_claimed_twice_identifies_nobody(tmp_path: Path) -> None:
    """A5: a number burnt into a whole batch does not make two cards one."""
    found = bench(tmp_path, GAUDI2, GAUDI2)
    both = found.backend.inventory()
    assert {one.device.attributes["identity"] for one in both} == {"slot"}
    assert both[0].uuid != both[1].uuid


def test_a_dead_card_keeps_its_name(tmp_path: Path) -> None:
    """gpus-8.25, B24: what reads ones is listed as the card it was, also by a new process."""
    found = bench(tmp_path, GAUDI2, replace(GAUDI2, serial=2))
    before = found.backend.inventory()
    found.tree.die(address(0))
    again = PcieBackend(**found.backend.settings())
    assert list(again.inventory()) == list(before)
    with pytest.raises(DeviceLost, match="reads all ones"):
        again.readings(before[0].uuid)


def test_a_card_that_left_is_lost_and_not_unknown(tmp_path: Path) -> None:
    """gpus-8.12: a card seen before is lost; one never seen is unknown."""
    found = bench(tmp_path, GAUDI2)
    known = found.accelerator().uuid
    found.tree.remove(address(0))
    assert list(found.backend.inventory()) == []
    with pytest.raises(DeviceLost, match=r"not at 0000:3b:00\.0 any more"):
        found.backend.readings(known)
    with pytest.raises(DeviceUnknown):
        found.backend.readings(Uuid("PCI-none"))


def test_sizes_come_from_who_knows_them(tmp_path: Path) -> None:
    """B64: driver or catalogue; a size nobody tells is not invented."""
    found = bench(tmp_path, MI300X, replace(H100, class_code=0x120000, vendor=0x1234))
    found.tree.write(address(0), "mem_info_vram_total", str(192 * GIB))
    sizes = [
        (one.memory_bytes, one.device.attributes["memory_source"])
        for one in found.backend.inventory()
    ]
    assert sizes == [(192 * GIB, "driver"), (0, "nobody")]


def test_a_virtual_function_is_not_an_accelerator_of_its_own(tmp_path: Path) -> None:
    """Issue 5: memory of a card is one unit, reached by its physical function."""
    found = bench(tmp_path, MI300X)
    found.tree.add("0000:3b:02.0", MI300X, below=PORT)
    found.tree.link("sys/bus/pci/devices/0000:3b:02.0/physfn", f"../{address(0)}")
    assert len(found.backend.inventory()) == 1


def test_names_tell_domain_and_function_where_there_are_any(tmp_path: Path) -> None:
    """B57: two slots never have one name."""
    found = bench(tmp_path)
    for place in ("0001:3b:00.0", "10000:3b:00.0", "0000:3b:00.1"):
        found.tree.add(place, replace(TPU_V4, serial=3), below=PORT)
    assert [name.rpartition("-")[0] for name in names(found)] == [
        "tpu-3b-00-f1",
        "tpu-0001-3b-00",
        "tpu-10000-3b-00",
    ]


def test_no_bus_is_not_an_empty_one(tmp_path: Path) -> None:
    """gpus-8.1: without the host's /sys devices are unknown, not absent."""
    with pytest.raises(DriverAbsent):
        PcieBackend(root=str(tmp_path)).inventory()
