"""The kernels as shipped, run thread by thread by a reader that knows nothing else of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from fleet.devices.nvidia import kernels
from fleet.devices.wipe import device_pattern
from tests.fleet.devices.nvidia import ptx

BASE, RESULT, GUARD = 0x7F00_0000_0000, 0x7E00_0000_0000, 512
NONCE = bytes(range(7, 39))
OVER, FAR = (1 << 32) - 700, (1 << 36) + 5
"""First vectors: where the low half of the number runs over, and beyond."""
SHAPES = [
    *((1, 1, 0), (1, 255, FAR), (1, 257, 0), (1, 1024, OVER)),
    *((2, 1025, OVER), (3, 1023, FAR), (2, 3077, OVER), (5, 4096, 0)),
]
"""Blocks, vectors and the first: less than a warp, at the edges of a step, and several steps of few
blocks."""


@cache
def kernel(name: str) -> ptx.Kernel:
    return ptx.parse(kernels.text().decode())[name]


class Bench:
    """A buffer between two guards, and the result of comparisons."""

    def __init__(self, content: bytes, junk: int = 0xA5A5_5A5A_DEAD_BEE5) -> None:
        self.size = len(content)
        self.memory = ptx.Memory()
        self.memory.add(BASE - GUARD, b"\xa5" * GUARD + content + b"\xa5" * GUARD)
        self.memory.add(RESULT, kernels.empty_result())
        self._junk = junk

    def run(self, name: str, blocks: int, *more: int) -> None:
        values = (BASE, self.size, *more)
        ptx.run(kernel(name), ptx.Launch(blocks, values, self.memory, junk=self._junk))

    @property
    def content(self) -> bytes:
        """What is in the buffer; the guards are as they were."""
        found = bytes(self.memory.pieces[BASE - GUARD])
        assert found[:GUARD] == found[-GUARD:] == b"\xa5" * GUARD
        return found[GUARD:-GUARD]

    def compared(self, blocks: int, start: int, nonce: bytes | None) -> kernels.Found:
        """Compare with the pattern, or with zero, from an empty result on."""
        self.memory.add(RESULT, kernels.empty_result())
        if nonce is None:
            self.run(kernels.VERIFY_ZERO, blocks, start * 16, RESULT)
        else:
            self.run(kernels.VERIFY, blocks, start * 16, *kernels.words(nonce), RESULT)
        return kernels.result(self.memory.pieces[RESULT])


def pattern(start: int, vectors: int) -> bytes:
    """What the host computes for the same place."""
    found = bytearray(vectors * 16)
    device_pattern.write(memoryview(found), start * 16, kernels.words(NONCE))
    return bytes(found)


@pytest.mark.parametrize(("blocks", "vectors", "start"), SHAPES)
def test_f85_kernels_do_what_their_text_says(blocks: int, vectors: int, start: int) -> None:
    """F85, B06, gpus-8.7: in every shape fill writes exactly the host's pattern, a comparison finds
    nothing in it and counts every vector, and zeroing leaves zeros and no byte beside them."""
    bench = Bench(b"\x5a" * vectors * 16)
    bench.run(kernels.FILL, blocks, start * 16, *kernels.words(NONCE))
    assert bench.content == pattern(start, vectors)
    assert bench.compared(blocks, start, NONCE) == kernels.Found(0, (), vectors * 16)
    bench.run(kernels.ZERO, blocks)
    assert bench.content == bytes(vectors * 16)
    assert bench.compared(blocks, start, None) == kernels.Found(0, (), vectors * 16)


def wrong(vectors: int, words: Sequence[int], expected: bytes, seed: int) -> bytes:
    """Content in which exactly these words differ, by one bit or by all."""
    found = np.frombuffer(bytearray(expected), dtype=np.uint64).copy()
    flips = np.random.default_rng(seed).integers(1, 1 << 63, len(words), dtype=np.uint64)
    for number, word in enumerate(words):
        found[word] ^= np.uint64(1) << np.uint64(word % 64) if number % 2 else flips[number]
    assert vectors * 2 == len(found)
    return found.tobytes()


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("count", [1, 64, 65, 600])
def test_f85_a_comparison_finds_what_numpy_finds(count: int, *, zero: bool) -> None:
    """F85, gpus-8.7: the count is exact, the lowest is named first, up to 64 are listed, whatever
    registers held before, and what was compared is counted all the same."""
    vectors, start = 1301, OVER
    expected = bytes(vectors * 16) if zero else pattern(start, vectors)
    picked = np.random.default_rng(count).choice(vectors * 2, count, replace=False)
    content = wrong(vectors, sorted(int(word) for word in picked), expected, count)
    right, places = device_pattern.differences(memoryview(content), memoryview(expected), count)
    assert right == count
    for junk in (0, (1 << 64) - 1):
        found = Bench(content, junk).compared(2, start, None if zero else NONCE)
        offsets = [start * 16 + place for place in places]
        assert (found.count, found.compared) == (count, vectors * 16)
        assert found.places[0] == offsets[0]
        assert set(found.places) <= set(offsets)
        assert len(found.places) == min(count, kernels.LISTED)


def test_f87_memory_that_is_all_wrong_costs_few_atomics() -> None:
    """F87: with every word wrong a thread asks for few places and tells its lowest offset once, so
    that the driver's limit and the slowness check are not what ends such a wipe."""
    vectors = 4096
    bench = Bench(b"\xff" * vectors * 16)
    counted = _Counting(bench.memory.pieces)
    bench.memory = counted
    found = bench.compared(2, 0, None)
    assert (found.count, found.compared) == (2 * vectors, vectors * 16)
    assert (found.places[0], len(found.places)) == (0, kernels.LISTED)
    threads = 2 * kernels.THREADS
    warps = threads // ptx.WARP
    # Three for each place, two for each lowest and one look at a full list, two for each warp.
    assert counted.touched <= 2 * kernels.LISTED + 3 * threads + 2 * warps


class _Counting(ptx.Memory):
    """Memory that counts how often the result is touched."""

    touched = 0

    def place(self, address: int, size: int) -> tuple[bytearray, int]:
        if RESULT <= address < RESULT + kernels.RESULT_BYTES:
            self.touched += 1
        return super().place(address, size)


def test_f83_reading_changes_nothing_and_the_on_chip_kernel_ends() -> None:
    """F83, B18: what is run once before memory is taken touches nothing but shared memory."""
    bench = Bench(bytes(range(256)) * 16)
    before = bench.content
    bench.run(kernels.READ, 2, RESULT, kernels.UNLIKELY)
    ptx.run(
        kernel(kernels.ON_CHIP),
        ptx.Launch(
            1, (65536, kernels.ON_CHIP_ROUNDS, RESULT, kernels.UNLIKELY), bench.memory, 65536
        ),
    )
    assert bench.content == before
    assert bytes(bench.memory.pieces[RESULT]) == kernels.empty_result()


def test_a_reader_that_would_believe_anything_is_none() -> None:
    """F85: the reader itself notices memory that is nobody's, and an exchange that not all threads
    of a warp come to."""
    bench = Bench(bytes(64))
    bench.size = 128 * 16
    with pytest.raises(ptx.Fault, match="nobody's"):
        bench.run(kernels.ZERO, 1)
    text = kernels.text().decode().replace("mov.u32         %r46, 0; ", "@%p0 ret;")
    third = "mov.u32 %r4, %tid.x;\n    setp.eq.u32 %p0, %r4, 3;"
    odd = ptx.parse(text.replace("mov.u32         %r4, %tid.x;", third))[kernels.VERIFY_ZERO]
    launch = ptx.Launch(1, (BASE, 64, 0, RESULT), Bench(bytes(64)).memory)
    with pytest.raises(ptx.Fault, match="not all threads"):
        ptx.run(_until_exchange(odd), launch)


def _until_exchange(kernel: ptx.Kernel) -> ptx.Kernel:
    """The same kernel without its loop: from the guarded return straight to the exchange."""
    done = kernel.labels["DONE"]
    first = next(number for number, one in enumerate(kernel.code) if one.guard == "%p0") + 1
    return ptx.Kernel(
        kernel.name, kernel.parameters, kernel.threads,
        (*kernel.code[:first], *kernel.code[done:]),
        {name: place - done + first for name, place in kernel.labels.items()},
    )  # fmt: skip
