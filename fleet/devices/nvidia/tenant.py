"""A tenant for proofs: takes all of a GPU's memory, plants a secret in it, or searches for one.

``python -m fleet.devices.nvidia.tenant``, with ``CUDA_VISIBLE_DEVICES`` naming the one device.
Reads orders and writes answers, one JSON object a line, and ends with its input, giving nothing
back: a tenant that is killed does not clean up either.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from fleet.core.errors import FleetError
from fleet.devices.nvidia import cuda
from fleet.devices.wipe.allocation import take_all

BLOCK = 64
"""Bytes of a secret that count as found when they stand together anywhere."""
LARGEST = 8 << 30
SMALLEST = 64 * 1024
PLACES_MAX = 4096
_SLAB = 64 << 20
STRETCH = 256 << 10
"""What is looked at for zeros at once."""
_memmem = ctypes.CDLL(None).memmem
_memmem.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
_memmem.restype = ctypes.c_void_p
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcmp.restype = ctypes.c_int


@dataclass(frozen=True, slots=True)
class Chunk:
    """One stretch of device memory."""

    address: int
    length: int


class Tenant:
    """All memory of the one device this process sees."""

    def __init__(self, slab_bytes: int = _SLAB) -> None:
        """`slab_bytes`: how much of it is looked at at once, at least a block."""
        self._zeros = ctypes.create_string_buffer(STRETCH)
        driver = cuda.Driver()
        self._context = cuda.Context(driver, driver.only_device())
        self._event = self._context.event()
        self._host = self._context.pinned(min(slab_bytes, max(self._context.free_bytes(), BLOCK)))
        scratch = self._context.allocate(BLOCK)
        self._done(lambda: self._context.exercise(scratch, self._host[:BLOCK]))
        self._context.free(scratch)
        self._chunks = take_all(self._take, largest_bytes=LARGEST, smallest_bytes=SMALLEST)

    @property
    def size(self) -> int:
        """Bytes taken."""
        return sum(chunk.length for chunk in self._chunks)

    def plant(self, secret: bytes) -> int:
        """Write the secret all over memory: at the ends of every chunk and evenly between."""
        step = max(self.size // PLACES_MAX, 1 << 20, len(secret))
        staged = self._host[: len(secret)]
        staged[:] = secret
        places = 0
        for chunk in self._chunks:
            last = chunk.length - len(secret)
            for offset in sorted({*range(0, max(last, 0), step), max(last, 0)}):
                self._done(lambda at=chunk.address + offset: self._context.upload(at, staged))
                places += 1
        return places

    def search(self, secret: bytes) -> int:
        """How many blocks of the secret stand anywhere in memory, each place counted once."""
        size = min(BLOCK, len(secret))
        cut = (secret[at : at + size] for at in range(0, len(secret) - size + 1, size))
        blocks = list(dict.fromkeys(cut))
        found = 0
        zeros = any(not any(block) for block in blocks)
        for length in self._slabs(overlap=size - 1):
            within = [(0, length)] if zeros else self._written(length, size - 1)
            found += sum(self._count(block, within) for block in blocks)
        return found

    def _slabs(self, *, overlap: int) -> Iterator[int]:
        """Memory, slab after slab, in the host's buffer: how much of it is there.

        Slabs overlap by a byte less than a block: none is cut in two, and none is met twice.
        """
        room = len(self._host)
        for chunk in self._chunks:
            for start in range(0, chunk.length, room - overlap):
                length = min(room, chunk.length - start)
                part = self._host[:length]
                self._done(lambda at=chunk.address + start, to=part: self._context.download(to, at))
                yield length

    def _count(self, block: bytes, within: Sequence[tuple[int, int]]) -> int:
        base = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._host))
        found = 0
        for low, high in within:
            at, end = base + low, base + high
            while place := _memmem(at, end - at, block, len(block)):
                found, at = found + 1, place + len(block)
        return found

    def _written(self, length: int, overlap: int) -> list[tuple[int, int]]:
        """Where in the buffer anything but zeros may stand, with `overlap` bytes at either side.

        To see that a stretch is zero takes far less time than to search it, and after a wipe nearly
        all of memory is.
        """
        base = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._host))
        found: list[tuple[int, int]] = []
        for low in range(0, length, STRETCH):
            high = min(low + STRETCH, length)
            if not _memcmp(base + low, self._zeros, high - low):
                continue
            start, end = max(low - overlap, 0), min(high + overlap, length)
            if found and found[-1][1] >= start:
                found[-1] = (found[-1][0], end)
            else:
                found.append((start, end))
        return found

    def _take(self, size: int) -> Chunk:
        return Chunk(self._context.allocate(size), size)

    def _done(self, queue: Any) -> None:
        queue()
        self._context.record(self._event)
        self._context.wait(self._event, lambda: None)


def serve(orders: TextIO, answers: TextIO) -> None:
    """Answer ``{"do": "plant" | "search", "secret": hex}`` until the input ends."""
    tenant: Tenant | None = None
    answer: Mapping[str, int | str]
    for line in orders:
        try:
            tenant = tenant or Tenant()
            answer = _answered(tenant, json.loads(line))
        except (FleetError, ValueError, KeyError) as error:
            answer = {"error": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _answered(tenant: Tenant, order: Mapping[str, str]) -> dict[str, int]:
    secret = bytes.fromhex(order["secret"])
    act = {"plant": tenant.plant, "search": tenant.search}[order["do"]]
    return {"blocks": act(secret), "memory_bytes": tenant.size}


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
