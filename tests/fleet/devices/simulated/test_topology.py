"""What a simulated node has, and that it never changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.core.errors import DriverAbsent, InputInvalid
from fleet.core.model import overlapping
from fleet.devices.simulated import topology
from fleet.devices.simulated.topology import GRAIN, Shape

SHAPE = Shape(node="n0", accelerators=3, memory_bytes=16 << 20, partitionable=1, seed=5)


def test_the_same_shape_gives_the_same_devices() -> None:
    """UUIDs follow from seed, node and name: evidence finds its device again."""
    assert topology.build(SHAPE) == topology.build(SHAPE)
    other = topology.build(Shape("n1", 3, 16 << 20, 1, 5))
    ours = {accelerator.uuid for accelerator in topology.build(SHAPE).accelerators}
    assert not ours & {accelerator.uuid for accelerator in other.accelerators}


@pytest.mark.parametrize("size", [GRAIN * 9, 1 << 20, (16 << 20) + GRAIN * 3, 80 << 30])
def test_units_cover_all_memory_without_overlap(size: int) -> None:
    """Memory outside every partition is a unit too; nothing is missing, nothing counted twice."""
    (accelerator,) = topology.build(Shape("n0", 1, size, 1, 0)).accelerators
    end = 0
    for unit in accelerator.units:
        assert (unit.offset_bytes, unit.size_bytes % GRAIN) == (end, 0)
        end += unit.size_bytes
    assert end == size == accelerator.memory_bytes
    assert accelerator.units[-1].id.endswith("/rest")


def test_partitions_overlap_their_parent_and_some_of_each_other() -> None:
    """A parent and overlapping children exist, as on partitionable hardware."""
    accelerator = topology.build(SHAPE).accelerators[-1]
    devices = {device.uuid: device for device in accelerator.devices}
    parent = accelerator.device
    assert len(overlapping(devices, parent)) == len(devices) - 1
    first = next(device for device in accelerator.devices if device.name.endswith("2g-0"))
    names = {device.name.removeprefix(f"{parent.name}-") for device in overlapping(devices, first)}
    assert names == {parent.name, "1g-0", "1g-1", "3g-0"}


def test_promise_10_every_device_says_that_it_is_simulated() -> None:
    """Promise 10: attribute, product name, driver and UUID all say so, on partitions too."""
    for accelerator in topology.build(SHAPE).accelerators:
        for device in accelerator.devices:
            assert device.uuid.startswith("SIM-")
            assert device.attributes["simulated"] == "true"
            assert "SIMULATED" in device.attributes["product"]


def test_the_file_gives_back_what_was_written(tmp_path: Path) -> None:
    """The file, not the code, says what exists."""
    path = tmp_path / "topology.json"
    topology.write(path, topology.build(SHAPE))
    assert topology.read(path) == topology.build(SHAPE)
    assert [entry.name for entry in tmp_path.iterdir()] == ["topology.json"]


def test_no_file_is_an_absent_driver(tmp_path: Path) -> None:
    """An absent driver is never an empty inventory."""
    with pytest.raises(DriverAbsent):
        topology.read(tmp_path / "topology.json")


@pytest.mark.parametrize("text", ["", "{}", '{"shape": {}, "accelerators": []}', "[1]"])
def test_a_damaged_file_is_an_error_with_its_path(tmp_path: Path, text: str) -> None:
    """Damage is told, never taken for a smaller fleet."""
    path = tmp_path / "topology.json"
    path.write_text(text)
    with pytest.raises(InputInvalid, match=r"topology\.json"):
        topology.read(path)


@pytest.mark.parametrize(
    "shape",
    [
        Shape("n0", 0, 1 << 20, 0, 0),
        Shape("n0", 1, 1 << 20, 2, 0),
        Shape("n0", 1, 1000, 0, 0),
        Shape("n0", 1, GRAIN * 8, 1, 0),
    ],
)
def test_a_shape_that_cannot_be_is_refused(shape: Shape) -> None:
    """Sizes that units cannot be cut from are refused before anything is made."""
    with pytest.raises(InputInvalid):
        topology.build(shape)


def test_places_on_the_bus_are_told() -> None:
    """C4: root port, address, NUMA node, and an IOMMU group that only partitions share."""
    accelerators = topology.build(SHAPE).accelerators
    groups = [one.device.attributes["iommu"] for one in accelerators]
    assert len(set(groups)) == len(groups)
    for accelerator in accelerators:
        for device in accelerator.devices:
            assert device.attributes["architecture"] == "simulated"
            for name in ("pcie_root", "pci", "numa", "iommu", "driver"):
                assert device.attributes[name] == accelerator.device.attributes[name] != ""
        for part in accelerator.devices[1:]:
            assert part.attributes["parent"] == accelerator.uuid


def test_attributes_that_an_old_file_lacks_are_added(tmp_path: Path) -> None:
    """A directory of an earlier release has the same devices, described as new ones are."""
    path = tmp_path / "topology.json"
    topology.write(path, topology.build(SHAPE))
    document = json.loads(path.read_text())
    for accelerator in document["accelerators"]:
        for device in accelerator["devices"]:
            for name in ("architecture", "pcie_root", "iommu"):
                del device["attributes"][name]
    path.write_text(json.dumps(document))
    assert topology.read(path) == topology.build(SHAPE)
