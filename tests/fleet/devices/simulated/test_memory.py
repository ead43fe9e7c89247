"""Simulated memory keeps what anybody wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleet.core.errors import DeviceLost, InputInvalid, OutOfMemory
from fleet.core.model import UnitId, UnitSpec
from fleet.devices.simulated import memory
from fleet.devices.simulated.memory import Allocator, Mapping, Memory, UnitFile
from tests.fleet.devices.wipe.orders import node

KIB64 = 65536
UNITS = (UnitSpec(UnitId("u/m0"), 2 * KIB64), UnitSpec(UnitId("u/m1"), KIB64, 2 * KIB64))


def files(directory: Path) -> Memory:
    """The memory of UNITS, one file each."""
    made = []
    for unit in UNITS:
        path = directory / unit.id.replace("/", "-")
        path.write_bytes(bytes(unit.size_bytes))
        made.append(UnitFile(unit.id, path, unit.offset_bytes, unit.size_bytes))
    return Memory(tuple(made))


def test_memory_keeps_its_content(tmp_path: Path) -> None:
    """What one tenant writes the next one reads, until somebody wipes it."""
    held = files(tmp_path)
    memory.write(held, KIB64 + 1, b"secret")
    assert memory.read(held, KIB64, 8) == b"\0secret\0"


@pytest.mark.parametrize(("offset", "length"), [(3 * KIB64 - 1, 2), (-1, 1), (1 << 40, 1)])
def test_nobody_reaches_outside_of_memory(tmp_path: Path, offset: int, length: int) -> None:
    """Memory has the size it has: no write makes it larger."""
    held = files(tmp_path)
    with pytest.raises(InputInvalid, match="do not fit"):
        memory.write(held, offset, b"x" * length)
    with pytest.raises(InputInvalid):
        memory.read(held, offset, length)
    assert held.read_bytes() == bytes(3 * KIB64)


def test_memory_of_several_units_is_one_to_its_user(tmp_path: Path) -> None:
    """What is written across a border of units lies in both files, and is read back whole."""
    held = files(tmp_path)
    memory.write(held, 2 * KIB64 - 3, b"across")
    assert memory.read(held, 2 * KIB64 - 4, 8) == b"\0across\0"
    assert [path.read_bytes().strip(b"\0") for path in held.paths] == [b"acr", b"oss"]
    assert held.read_bytes()[2 * KIB64 - 3 :][:6] == b"across"


def test_a_partition_has_its_own_files_only(tmp_path: Path) -> None:
    """Promise 9: in the memory of some units the others cannot be reached."""
    part = files(tmp_path).only(["u/m1"])
    assert (part.size_bytes, len(part.paths)) == (KIB64, 1)
    for offset, length in ((0, 8), (2 * KIB64 - 1, 2), (3 * KIB64 - 1, 2)):
        with pytest.raises(InputInvalid):
            memory.write(part, offset, b"x" * length)
    memory.write(part, 2 * KIB64, b"mine")
    assert part.paths[0].read_bytes().startswith(b"mine")


def test_an_accelerator_without_partitions_is_one_file(tmp_path: Path) -> None:
    """Directories of earlier releases keep their memory where it was."""
    plain, sliced = node(tmp_path, accelerators=2, partitionable=1).inventory()
    assert Memory.of(tmp_path, plain).paths == (tmp_path / f"{plain.uuid}.bin",)
    names = [
        path.relative_to(tmp_path / sliced.uuid).name for path in Memory.of(tmp_path, sliced).paths
    ]
    assert names == [*(f"m{number}.bin" for number in range(8)), "rest.bin"]


def test_a_chunk_never_crosses_units() -> None:
    """Every unit is a hole of its own, so that a mismatch belongs to one unit."""
    allocator = Allocator(UNITS)
    with pytest.raises(OutOfMemory):
        allocator.take(3 * KIB64)
    taken = [allocator.take(size) for size in (2 * KIB64, KIB64)]
    assert [(chunk.unit, chunk.address) for chunk in taken] == [("u/m0", 0), ("u/m1", 2 * KIB64)]
    with pytest.raises(OutOfMemory):
        allocator.take(4096)


def test_what_is_kept_back_is_at_the_end() -> None:
    """A shortfall larger than the last unit reaches into the one before it."""
    allocator = Allocator(UNITS, kept_back=KIB64 + 4096)
    assert allocator.take(2 * KIB64 - 4096).unit == "u/m0"
    with pytest.raises(OutOfMemory):
        allocator.take(4096)


def test_a_mapping_reaches_the_file_by_absolute_address(tmp_path: Path) -> None:
    """Units keep their addresses within the accelerator, whichever of them are mapped."""
    held = files(tmp_path)
    mapping = Mapping(held, UNITS[1:])
    mapping.word(UnitId("u/m1"), 2 * KIB64 + 8).value = 0x1122334455667788
    mapping.close()
    mapping.close()
    assert held.read_bytes()[2 * KIB64 + 8 :][:8] == bytes.fromhex("8877665544332211")


@pytest.mark.parametrize("length", [0, KIB64 - 1, KIB64 + 1, 5 * KIB64])
def test_a_file_of_a_wrong_length_is_made_good(tmp_path: Path, length: int) -> None:
    """Promise 2: a tenant that cuts or extends its file loses nobody a device."""
    held = files(tmp_path)
    os.truncate(held.paths[1], length)
    mapping = Mapping(held, UNITS)
    mapping.word(UnitId("u/m1"), 3 * KIB64 - 8).value = 1
    mapping.close()
    assert held.paths[1].stat().st_size == KIB64


def test_a_missing_file_is_a_lost_device(tmp_path: Path) -> None:
    """Memory that is not there is told before anything is written."""
    held = files(tmp_path)
    held.paths[1].unlink()
    with pytest.raises(DeviceLost, match="u-m1"):
        Mapping(held, UNITS)
    assert not held.paths[1].exists()
