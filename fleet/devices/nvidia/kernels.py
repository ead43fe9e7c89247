"""The kernels that wipe device memory: their text, their names and how they are launched.

`kernels.ptx` is shipped as text and compiled by the driver of the machine it runs on, so that no
toolkit is needed and one file serves every generation since Volta.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from fleet.devices.nvidia.cuda import Shape

NAME = "fleetscrub-vector-1"
"""The pattern's name: changes when its rule does (`fleet.devices.wipe.device_pattern` states
it).
"""
FILL = "fleet_fill"
VERIFY = "fleet_verify"
ZERO = "fleet_zero"
VERIFY_ZERO = "fleet_verify_zero"
READ = "fleet_read"
ON_CHIP = "fleet_onchip"
NAMES = (FILL, VERIFY, ZERO, VERIFY_ZERO, READ, ON_CHIP)
VECTOR = 16
WORD = 8
LISTED = 64
"""Places that a comparison names; more of them are only counted."""
RESULT_BYTES = 32 + LISTED * 8
SLAB_LARGEST = 2 << 30
"""Bytes of one launch, at most: they must stay under 32 GiB, and progress comes once for each."""
THREADS = 256
ON_CHIP_THREADS = 1024
TILE = 16384
"""Bytes that a block does in one step."""
_BLOCKS_PER_MULTIPROCESSOR = 128
"""Many times what runs at once, so that a multiprocessor far from its memory gets fewer of them,
and each so short that few are idle at the end of a launch."""
_ON_CHIP_BLOCKS_PER_MULTIPROCESSOR = 4
ON_CHIP_ROUNDS = 4
UNLIKELY = 0x5EED5EED
"""A sum that is stored if it ever occurs, so that no compiler drops the reads before it."""
_EMPTY = struct.pack("<QQQQ", 0, 2**64 - 1, 0, 0) + bytes(LISTED * 8)
_U32, _U64 = ctypes.c_uint32, ctypes.c_uint64
WIDTHS: dict[str, tuple[type[Any], ...]] = {
    FILL: (_U64, _U64, _U64, _U32, _U32, _U32, _U32),
    VERIFY: (_U64, _U64, _U64, _U32, _U32, _U32, _U32, _U64),
    ZERO: (_U64, _U64),
    VERIFY_ZERO: (_U64, _U64, _U64, _U64),
    READ: (_U64, _U64, _U64, _U32),
    ON_CHIP: (_U32, _U32, _U64, _U32),
}
"""Parameters of each kernel, in order."""


def words(nonce: bytes) -> tuple[int, int, int, int]:
    """The four 32-bit words that a nonce stands for."""
    first, second, third, fourth = struct.unpack("<4I", hashlib.sha256(nonce).digest()[:16])
    return first, second, third, fourth


@cache
def text() -> bytes:
    """The PTX as shipped."""
    return resources.files(__package__).joinpath("kernels.ptx").read_bytes()


def shape(multiprocessors: int, size_bytes: int) -> Shape:
    """Blocks that fill the device, and no more than there is work for."""
    steps = -(-size_bytes // TILE)
    return Shape(max(1, min(multiprocessors * _BLOCKS_PER_MULTIPROCESSOR, steps)), THREADS)


def on_chip_shape(multiprocessors: int, shared_bytes: int) -> Shape:
    """Blocks so large that a multiprocessor has one at a time, and enough to visit them all."""
    blocks = multiprocessors * _ON_CHIP_BLOCKS_PER_MULTIPROCESSOR
    return Shape(blocks, ON_CHIP_THREADS, shared_bytes)


def empty_result() -> bytes:
    """What the result of a comparison looks like before it."""
    return _EMPTY


@dataclass(frozen=True, slots=True)
class Found:
    """What comparisons found."""

    count: int
    """8-byte words that differ."""
    places: tuple[int, ...]
    """Offsets of them: of all up to `LISTED`, the lowest always first."""
    compared: int
    """Bytes that were looked at, as whoever looked has counted them."""


def result(content: Sequence[int] | bytes | memoryview) -> Found:
    """What the kernels wrote. Offsets are those the kernel was given as its address, in bytes."""
    count, lowest, vectors, _, *listed = struct.unpack(
        f"<{4 + LISTED}Q", bytes(content)[:RESULT_BYTES]
    )
    if not count:
        return Found(0, (), vectors * VECTOR)
    places = [lowest, *sorted(set(listed[: min(count, LISTED)]) - {lowest})][:LISTED]
    return Found(count, tuple(places), vectors * VECTOR)
