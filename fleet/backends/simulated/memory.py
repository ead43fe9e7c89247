"""Simulated memory: one real file per accelerator that keeps what anybody wrote to it."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import DeviceLost, InputInvalid, OutOfMemory
from fleet.model import UnitId, UnitSpec


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of memory taken from the allocator: `address` is the offset in the accelerator."""

    unit: UnitId
    address: int
    length: int


class Allocator:
    """Hands out memory hole by hole; refuses what no hole holds in one piece.

    `kept_back` bytes at the end are never given: what a fault or another client occupies.
    """

    def __init__(self, units: Sequence[UnitSpec], *, kept_back: int = 0) -> None:
        self._holes: list[Chunk] = []
        for unit in reversed(units):
            cut = min(kept_back, unit.size_bytes)
            kept_back -= cut
            if unit.size_bytes > cut:
                hole = Chunk(unit.id, unit.offset_bytes, unit.size_bytes - cut)
                self._holes.insert(0, hole)

    def take(self, size: int) -> Chunk:
        """A chunk of `size` bytes. Raises OutOfMemory when no hole is that large."""
        for place, hole in enumerate(self._holes):
            if hole.length >= size:
                rest = Chunk(hole.unit, hole.address + size, hole.length - size)
                self._holes[place] = rest
                return Chunk(hole.unit, hole.address, size)
        raise OutOfMemory(f"no {size} B in one piece")


class Mapping:
    """The memory of some units, mapped for writing and faulted in. Not for use after `close`."""

    def __init__(self, path: Path, units: Sequence[UnitSpec]) -> None:
        """Raises DeviceLost when the file is missing or shorter than its units."""
        self._maps: dict[UnitId, tuple[mmap.mmap, ctypes.c_char, int]] = {}
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise DeviceLost(f"the memory file {path} cannot be opened: {error}") from error
        try:
            size = os.fstat(descriptor).st_size
            for unit in units:
                if unit.offset_bytes + unit.size_bytes > size:
                    raise DeviceLost(f"the memory file {path} ends at {size} B, before {unit.id}")
                mapped = mmap.mmap(
                    descriptor,
                    unit.size_bytes,
                    flags=mmap.MAP_SHARED | mmap.MAP_POPULATE,
                    offset=unit.offset_bytes,
                )
                self._maps[unit.id] = (mapped, ctypes.c_char.from_buffer(mapped), unit.offset_bytes)
        finally:
            os.close(descriptor)

    def pointer(self, unit: UnitId, address: int) -> int:
        """Where the byte at `address` of the accelerator is mapped."""
        _, first, offset = self._maps[unit]
        return ctypes.addressof(first) + address - offset

    def word(self, unit: UnitId, address: int) -> ctypes.c_uint64:
        """The 8-byte word at `address`, in place."""
        return ctypes.c_uint64.from_address(self.pointer(unit, address))

    def close(self) -> None:
        """Unmap everything; calling it again does nothing."""
        while self._maps:
            _, (mapped, first, _offset) = self._maps.popitem()
            del first
            mapped.close()


def write(path: Path, offset: int, content: bytes | memoryview) -> None:
    """Write as a tenant does, at a byte offset of the accelerator's memory."""
    _within(path, offset, len(content))
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def read(path: Path, offset: int, length: int) -> bytes:
    """Read as a tenant does."""
    _within(path, offset, length)
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _within(path: Path, offset: int, length: int) -> None:
    size = path.stat().st_size
    if offset < 0 or length < 0 or offset + length > size:
        raise InputInvalid(
            f"{length} B at offset {offset} do not fit into memory of {size} B",
            remedy="choose a smaller offset, file or length",
        )
