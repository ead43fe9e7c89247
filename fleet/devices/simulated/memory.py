"""Simulated memory: real files that keep what anybody wrote to them, one for each unit.

A partition is given the files of its own units and nothing else, so that a container that has one
partition mounted cannot see its neighbour's. Addresses are offsets in the accelerator throughout;
`Memory` says which file they fall into.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.core.errors import DeviceLost, InputInvalid, OutOfMemory
from fleet.core.model import Accelerator, UnitId, UnitSpec


@dataclass(frozen=True, slots=True)
class UnitFile:
    """The file of one unit. `offset_bytes` is where the unit starts in the accelerator."""

    unit: UnitId
    path: Path
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of memory within one file: `start` is the offset in it, `address` the absolute."""

    path: Path
    start: int
    address: int
    length: int


@dataclass(frozen=True, slots=True)
class Memory:
    """The files of an accelerator, or of some of its units, in order of address."""

    files: tuple[UnitFile, ...]

    @classmethod
    def of(cls, directory: Path, accelerator: Accelerator) -> Memory:
        """The memory of an accelerator below `directory`; nothing is opened."""
        units = sorted(accelerator.units, key=lambda unit: unit.offset_bytes)
        whole = directory / f"{accelerator.uuid}.bin"
        parts = directory / accelerator.uuid
        return cls(
            tuple(
                UnitFile(
                    unit.id,
                    whole if len(units) == 1 else parts / f"{unit.id.rpartition('/')[2]}.bin",
                    unit.offset_bytes,
                    unit.size_bytes,
                )
                for unit in units
            )
        )

    @property
    def size_bytes(self) -> int:
        """Bytes in all."""
        return sum(file.size_bytes for file in self.files)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, in order of address."""
        return tuple(file.path for file in self.files)

    def only(self, units: Collection[str]) -> Memory:
        """The memory of these units."""
        return Memory(tuple(file for file in self.files if file.unit in units))

    def stretches(self, address: int, length: int) -> Iterator[Stretch]:
        """Where `length` bytes at `address` lie, file by file.

        Raises InputInvalid when not all of it is memory of these units.
        """
        end, reached = address + length, address
        for file in self.files:
            low = max(address, file.offset_bytes)
            high = min(end, file.offset_bytes + file.size_bytes)
            if low < high and low == reached:
                yield Stretch(file.path, low - file.offset_bytes, low, high - low)
                reached = high
        if address < 0 or length < 0 or reached < end:
            raise InputInvalid(
                f"{length} B at offset {address} do not fit into memory of {self.size_bytes} B",
                remedy="choose a smaller offset, file or length",
            )

    def read_bytes(self) -> bytes:
        """Everything, in order of address."""
        return b"".join(path.read_bytes() for path in self.paths)

    def write_bytes(self, content: bytes) -> None:
        """Write from the start. Raises InputInvalid when it does not fit."""
        write(self, self.files[0].offset_bytes, content)


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

    def __init__(self, memory: Memory, units: Sequence[UnitSpec]) -> None:
        """A file of a wrong length is cut or extended to its unit's: a tenant may do that to it.

        Raises DeviceLost when a file is missing.
        """
        self._maps: dict[UnitId, tuple[mmap.mmap, ctypes.c_char, int]] = {}
        files = {file.unit: file for file in memory.files}
        for unit in units:
            mapped = _mapped(files[unit.id])
            self._maps[unit.id] = (mapped, ctypes.c_char.from_buffer(mapped), unit.offset_bytes)

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


def _mapped(file: UnitFile) -> mmap.mmap:
    try:
        descriptor = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise DeviceLost(f"the memory file {file.path} cannot be opened: {error}") from error
    try:
        if os.fstat(descriptor).st_size != file.size_bytes:
            os.ftruncate(descriptor, file.size_bytes)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        return mmap.mmap(descriptor, file.size_bytes, flags=flags)
    finally:
        os.close(descriptor)


def write(memory: Memory, offset: int, content: bytes | memoryview) -> None:
    """Write as a tenant does, at a byte offset of the accelerator; all of it or nothing."""
    for stretch in list(memory.stretches(offset, len(content))):
        begin = stretch.address - offset
        with stretch.path.open("r+b") as file:
            file.seek(stretch.start)
            file.write(content[begin : begin + stretch.length])


def read(memory: Memory, offset: int, length: int) -> bytes:
    """Read as a tenant does."""
    pieces = []
    for stretch in list(memory.stretches(offset, length)):
        with stretch.path.open("rb") as file:
            file.seek(stretch.start)
            pieces.append(file.read(stretch.length))
    return b"".join(pieces)
