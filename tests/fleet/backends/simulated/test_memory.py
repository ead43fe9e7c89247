"""Simulated memory keeps what anybody wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.backends.simulated import memory
from fleet.backends.simulated.memory import Allocator, Mapping
from fleet.errors import DeviceLost, InputInvalid, OutOfMemory
from fleet.model import UnitId, UnitSpec

KIB64 = 65536
UNITS = (UnitSpec(UnitId("u/m0"), 2 * KIB64), UnitSpec(UnitId("u/m1"), KIB64, 2 * KIB64))


def test_memory_keeps_its_content(tmp_path: Path) -> None:
    """What one tenant writes the next one reads, until somebody wipes it."""
    path = tmp_path / "memory"
    path.write_bytes(bytes(3 * KIB64))
    memory.write(path, KIB64 + 1, b"secret")
    assert memory.read(path, KIB64, 8) == b"\0secret\0"


@pytest.mark.parametrize(("offset", "length"), [(3 * KIB64 - 1, 2), (-1, 1), (1 << 40, 1)])
def test_nobody_reaches_outside_of_memory(tmp_path: Path, offset: int, length: int) -> None:
    """Memory has the size it has: no write makes it larger."""
    path = tmp_path / "memory"
    path.write_bytes(bytes(3 * KIB64))
    with pytest.raises(InputInvalid, match="do not fit"):
        memory.write(path, offset, bytes(length))
    with pytest.raises(InputInvalid):
        memory.read(path, offset, length)
    assert path.stat().st_size == 3 * KIB64


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
    path = tmp_path / "memory"
    path.write_bytes(bytes(3 * KIB64))
    mapping = Mapping(path, UNITS[1:])
    mapping.word(UnitId("u/m1"), 2 * KIB64 + 8).value = 0x1122334455667788
    mapping.close()
    mapping.close()
    assert path.read_bytes()[2 * KIB64 + 8 :][:8] == bytes.fromhex("8877665544332211")


def test_a_short_or_missing_file_is_a_lost_device(tmp_path: Path) -> None:
    """Memory that is not there is told before anything is written."""
    path = tmp_path / "memory"
    with pytest.raises(DeviceLost):
        Mapping(path, UNITS)
    path.write_bytes(bytes(2 * KIB64))
    with pytest.raises(DeviceLost, match="u/m1"):
        Mapping(path, UNITS)
