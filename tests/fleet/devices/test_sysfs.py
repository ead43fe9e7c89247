"""Facts of one PCI function, on a fake tree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core.errors import DriverAbsent
from fleet.devices import sysfs
from fleet.devices.sysfs import Aer, Bar, Function, Ids, Life, Link
from tests.drivers.pci_tree import GAUDI2, GIB, H100, SWITCH, TPU_V5E, PciTree

PORT, PLACE = "0000:20:00.0", "0000:3b:00.0"

LONG = "Receiver Error 0\nBad TLP 3\nBad DLLP 0\nRollover 0\nTOTAL_ERR_COR 5\n"
SHORT = "RxErr 0\nBadTLP 3\nBadDLLP 0\nRollover 0\nTOTAL_ERR_COR 5\n"


@pytest.fixture(name="tree")
def tree_fixture(tmp_path: Path) -> PciTree:
    """A port with nothing below it."""
    tree = PciTree(tmp_path)
    tree.add(PORT, SWITCH)
    return tree


def test_ids_place_and_driver_are_read(tree: PciTree) -> None:
    """B57, gpus-5.1: ids, driver, NUMA node, root complex, port and group of a function."""
    found = tree.add(PLACE, replace(TPU_V5E, numa=1), below=PORT)
    assert found.ids == Ids(0x1AE0, 0x0063, 0x120000, 0x1AE0, 1, 0xA1)
    assert (found.driver, found.numa, found.iommu_group) == ("vfio-pci", 1, "7")
    assert found.pcie_root == "pci0000:00"
    assert found.parent() == tree.function(PORT)
    assert tree.function(PORT).parent() is None
    assert found.group_members() == (found,)
    assert found.power_state == "D0"


def test_what_is_absent_is_unknown_and_never_zero(tree: PciTree) -> None:
    """gpus-8.24, 10.17: of a function without files every fact is None, empty or unknown."""
    bare = Function(tree.root, "0000:aa:00.0")
    bare.path.mkdir()
    assert bare.ids is None
    assert bare.link() == Link()
    assert bare.aer() == bare.root_port_aer() == Aer(None, None, None)
    assert bare.reset_methods() is None
    assert not bare.resettable
    assert (bare.driver, bare.numa, bare.iommu_group, bare.serial) == (None, None, None, None)
    assert bare.config_alive() is None
    assert bare.bars() == ()
    assert bare.group_members() == ()


def test_a_dead_function_is_dead_although_its_ids_are_there(tree: PciTree) -> None:
    """gpus-8.25, 10.15: sysfs goes on to say 10de while the configuration space reads ones."""
    found = tree.add(PLACE, H100, below=PORT)
    assert found.life() is Life.ALIVE
    tree.die(PLACE)
    assert found.ids is not None
    assert found.ids.vendor == 0x10DE
    assert found.life() is Life.DEAD
    assert found.config_alive() is False


def test_gone_and_asleep_are_other_than_dead(tree: PciTree) -> None:
    """gpus-5.2: without its directory a function is gone; without power, ones prove nothing."""
    found = tree.add(PLACE, H100, below=PORT)
    tree.die(PLACE)
    tree.write(PLACE, "power_state", "D3cold")
    assert found.life() is Life.UNKNOWN
    assert found.config_alive() is None
    tree.remove(PLACE)
    assert found.life() is Life.GONE
    assert found.config_alive() is False


def test_a_virtual_function_lives_as_its_physical_one(tree: PciTree) -> None:
    """gpus-5.2: ones are all a virtual function ever shows, so that its parent is asked."""
    tree.add(PLACE, H100, below=PORT)
    virtual = tree.add("0000:3b:00.4", H100, below=PORT)
    tree.die("0000:3b:00.4")
    assert virtual.life() is Life.DEAD
    tree.link(f"sys/bus/pci/devices/{virtual.address}/physfn", f"../{PLACE}")
    assert virtual.life() is Life.ALIVE


def test_a_serial_number_needs_privilege(tree: PciTree) -> None:
    """gpus-5.1: beyond 64 bytes the file is cut silently; then the number is unknown, not empty."""
    found = tree.add(PLACE, GAUDI2, below=PORT)
    assert found.serial == "1122334455667788"
    tree.unprivileged(PLACE)
    cut = tree.function(PLACE)
    assert cut.serial is None
    assert cut.config_alive() is True
    assert tree.function(PORT).serial is None


def test_a_looping_capability_list_ends(tree: PciTree) -> None:
    """gpus-5.1: a broken device cannot keep us reading."""
    found = tree.add(PLACE, GAUDI2, below=PORT)
    space = bytearray(found.config())
    space[0x100:0x104] = (0x0001 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    (found.path / "config").write_bytes(space)
    assert found.serial is None


@pytest.mark.parametrize(
    ("text", "generation"),
    [
        ("2.5 GT/s PCIe", 1),
        ("8 GT/s", 3),
        ("8.0 GT/s PCIe", 3),
        ("16.0 GT/s PCIe", 4),
        ("32.0 GT/s PCIe", 5),
        ("64.0 GT/s PCIe", 6),
        ("Unknown", None),
        ("Unknown speed", None),
        ("7 GT/s", None),
        ("", None),
    ],
)
def test_link_speeds_are_generations(tree: PciTree, text: str, generation: int | None) -> None:
    """gpus-5.1: both spellings of a speed are read; Unknown, and nothing, is unknown."""
    found = tree.add(PLACE, TPU_V5E, below=PORT)
    tree.write(PLACE, "current_link_speed", text)
    assert found.link() == Link(generation, 4, 16, 16)


def test_a_link_of_width_63_is_dead(tree: PciTree) -> None:
    """gpus-5.2: 63 lanes are a register of ones and no width."""
    found = tree.add(PLACE, TPU_V5E, below=PORT)
    tree.write(PLACE, "current_link_width", "63")
    assert found.link() == Link(4, 4, None, 16, dead=True)


def test_a_link_file_that_cannot_be_read_is_unknown(tree: PciTree) -> None:
    """gpus-5.1: reading a link file may fail (EINVAL); a directory in its place fails as well."""
    found = tree.add(PLACE, TPU_V5E, below=PORT)
    path = found.path / "current_link_width"
    path.unlink()
    path.mkdir()
    assert found.link().width is None


@pytest.mark.parametrize("text", [LONG, SHORT])
def test_aer_totals_are_the_last_word_of_their_line(tree: PciTree, text: str) -> None:
    """gpus-8.24, 5.4: both spellings of names; the total is its own line, not the sum of others."""
    found = tree.add(PLACE, TPU_V5E, below=PORT)
    tree.write(PLACE, "aer_dev_correctable", text)
    tree.write(PLACE, "aer_dev_fatal", "Undefined 0\nDLP 1\nTOTAL_ERR_FATAL 1")
    assert found.aer() == Aer(5, None, 1)


def test_the_ports_totals_are_read(tree: PciTree) -> None:
    """gpus-5.4: the port above has totals of its own and, at the root, of all below it."""
    found = tree.add(PLACE, TPU_V5E, below=PORT)
    tree.write(PORT, "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL 2")
    tree.write(PORT, "aer_rootport_total_err_cor", "9")
    port = found.parent()
    assert port is not None
    assert port.aer() == Aer(None, 2, None)
    assert port.root_port_aer() == Aer(9, None, None)


def test_aer_without_a_total_is_unknown(tree: PciTree) -> None:
    """gpus-8.24: a file cut short gives no count rather than a wrong one."""
    found = tree.add(PLACE, TPU_V5E, below=PORT)
    tree.write(PLACE, "aer_dev_fatal", "Undefined 0\nDLP 7")
    assert found.aer().fatal is None


def test_reset_methods_are_a_list(tree: PciTree) -> None:
    """gpus-5.1: the methods offered, in order; none differs from unknown."""
    found = tree.add(PLACE, replace(TPU_V5E, methods="device_specific flr bus"), below=PORT)
    assert found.reset_methods() == ("device_specific", "flr", "bus")
    assert found.resettable
    tree.write(PLACE, "reset_method", "")
    assert found.reset_methods() == ()


def test_memory_windows_have_sizes(tree: PciTree) -> None:
    """gpus-5: windows of memory with their size; ports of input and output are none."""
    found = tree.add(PLACE, TPU_V5E, below=PORT)
    assert found.bars() == (
        Bar(0, 16 << 20, prefetchable=False),
        Bar(1, 16 * GIB, prefetchable=True),
    )


def test_b64_memory_of_a_node_without_processors_is_recognised(tree: PciTree) -> None:
    """B64: memory the kernel hands out is seen; a node with processors is the host's."""
    unified = tree.add(PLACE, replace(H100, numa=2), below=PORT)
    plain = tree.add("0000:1b:00.0", replace(H100, numa=0), below=PORT)
    tree.put("sys/devices/system/node/node2/cpulist", "\n")
    tree.put(
        "sys/devices/system/node/node2/meminfo",
        "Node 2 MemTotal:       98304000 kB\nNode 2 MemUsed:         1200000 kB\n",
    )
    assert unified.memory_only_node() == 98304000 * 1024
    assert plain.memory_only_node() is None
    tree.put("sys/devices/system/node/node2/cpulist", "0-7\n")
    assert unified.memory_only_node() is None


def test_b57_slots_of_every_domain_are_found(tree: PciTree) -> None:
    """B57: functions in domains 0000, 0001 and 10000 are found under their own addresses."""
    names = ("0000:1b:00.0", "0001:00:00.0", "10000:02:00.0")
    for name in names:
        tree.add(name, H100, below=PORT)
    found = sysfs.discover(tree.root, vendors={0x10DE})
    assert tuple(function.address for function in found) == names
    assert len({function.path.resolve() for function in found}) == 3


def test_functions_are_found_by_vendor_and_class(tree: PciTree) -> None:
    """gpus-5.5: a class's interface byte does not matter; what is no address is skipped."""
    tpu = tree.add(PLACE, TPU_V5E, below=PORT)
    gpu = tree.add("0000:3c:00.0", replace(H100, class_code=0x0302FF), below=PORT)
    (tree.root / "sys/bus/pci/devices/rubbish").mkdir()
    assert sysfs.discover(tree.root, vendors={0x1AE0}) == (tpu,)
    assert sysfs.discover(tree.root, classes={0x030200}) == (gpu,)
    assert sysfs.discover(tree.root, vendors={0x1AE0}, classes={0x030200}) == ()
    assert len(sysfs.discover(tree.root)) == 3


def test_without_a_bus_nothing_is_known(tmp_path: Path) -> None:
    """gpus-8.1: no PCI bus in sight is an error and never an empty list."""
    with pytest.raises(DriverAbsent, match="cannot be listed"):
        sysfs.discover(tmp_path)
