"""The pattern that kernels write over device memory, computed on the host.

For devices whose kernels cannot be compiled: there memory is written from here and read back to
here. `fleet/devices/nvidia/kernels.ptx` states the same rule for the device; tests compare the
two. Vector v (16 bytes) is the byte offset within what was allocated, divided by 16:

    w0 = lo(v) ^ n0     w1 = hi(v) ^ n1     t = (lo(v) ^ n2) * A + hi(v) * B
    w2 = t ^ (t >> 16)  w3 = w2 * C + n3

No two vectors are equal (w0, w1), and neighbours differ in many bits (w2, w3).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

VECTOR = 16
WORD = 8
_A, _B, _C = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77), np.uint32(0xC2B2AE3D)
_HALF = np.uint32(16)

Words = tuple[int, int, int, int]
"""What the nonce stands for, 32 bits each."""


def write(target: memoryview, address: int, nonce: Words) -> None:
    """Fill `target` with the pattern of [address, address + its length); both multiples of 16."""
    first, count = address // VECTOR, target.nbytes // VECTOR
    vectors = np.arange(first, first + count, dtype=np.uint64)
    n0, n1, n2, n3 = (np.uint32(word) for word in nonce)
    low = vectors.astype(np.uint32)
    high = (vectors >> np.uint64(32)).astype(np.uint32)
    out = np.frombuffer(target, dtype=np.uint32).reshape(count, 4)
    mixed = (low ^ n2) * _A + high * _B
    mixed ^= mixed >> _HALF
    out[:, 0] = low ^ n0
    out[:, 1] = high ^ n1
    out[:, 2] = mixed
    out[:, 3] = mixed * _C + n3


def differences(found: memoryview, expected: memoryview | None, most: int) -> tuple[int, list[int]]:
    """How many 8-byte words differ from `expected` (None: from zero), and the first of them.

    Offsets are bytes within `found`, at most `most` of them.
    """
    seen = np.frombuffer(found, dtype=np.uint64)
    wrong: NDArray[np.bool_]
    wrong = seen != 0 if expected is None else seen != np.frombuffer(expected, dtype=np.uint64)
    count = int(np.count_nonzero(wrong))
    if not count:
        return 0, []
    return count, [int(place) * WORD for place in np.flatnonzero(wrong)[:most]]
