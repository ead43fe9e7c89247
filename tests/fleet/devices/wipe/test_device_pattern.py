"""The pattern of device memory as the host computes it."""

from __future__ import annotations

import struct

import pytest

from fleet.devices.wipe import device_pattern

NONCE = (0x01234567, 0x89ABCDEF, 0xDEADBEEF, 0xFFFFFFFF)
MASK = 0xFFFFFFFF


def written(address: int, length: int) -> memoryview:
    """The pattern of a stretch."""
    target = memoryview(bytearray(length))
    device_pattern.write(target, address, NONCE)
    return target


@pytest.mark.parametrize("first", [0, 1, 0xFFFFFFFE, 0x100000000, 0x123456789A])
def test_every_vector_follows_the_rule(first: int) -> None:
    """B06: the rule holds below and above 64 GiB, in plain integers."""
    content = written(first * 16, 64)
    for k in range(4):
        low, high = (first + k) & MASK, (first + k) >> 32
        mixed = ((low ^ NONCE[2]) * 0x9E3779B1 + high * 0x85EBCA77) & MASK
        third = mixed ^ mixed >> 16
        fourth = (third * 0xC2B2AE3D + NONCE[3]) & MASK
        seen = struct.unpack_from("<4I", content, 16 * k)
        assert seen == (low ^ NONCE[0], high ^ NONCE[1], third, fourth)


def test_a_stretch_is_the_same_in_pieces() -> None:
    """What belongs at an address does not depend on where a piece begins."""
    assert written(4096, 128).tobytes() == b"".join(
        written(4096 + start, 32).tobytes() for start in range(0, 128, 32)
    )


def test_differences_are_counted_whole_and_named_in_part() -> None:
    """gpus-8.7: single bits in single words, against the pattern and against zero."""
    expected = written(0, 4096)
    seen = memoryview(bytearray(expected))
    assert device_pattern.differences(seen, expected, 64) == (0, [])
    for place in (8, 15, 4095):
        seen[place] ^= 0x10
    assert device_pattern.differences(seen, expected, 64) == (2, [8, 4088])
    assert device_pattern.differences(seen, expected, 1) == (2, [8])
    assert device_pattern.differences(memoryview(bytearray(64)), None, 64) == (0, [])
    assert device_pattern.differences(seen, None, 3)[0] == 512
