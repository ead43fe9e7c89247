"""The kernels as shipped: assembled for every generation, and executed against a reference."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.core.errors import DriverRefused
from fleet.devices.nvidia import cuda, kernels
from tests.fleet.devices.nvidia.one_gpu import OneGpu

ROOT = Path(__file__).parents[4]
PROMISED = (ROOT / "docs" / "hardware.md").read_text().partition("are assembled in tests")[2]
TARGETS = tuple(int(one) for one in re.findall(r"sm_(\d+)", PROMISED.partition("For\nVolta")[0]))
"""What docs/hardware.md promises."""
MASK = 0xFFFFFFFF
GUARD = 4096
ROOM = 160 * 1024
LOGICAL = st.one_of(
    st.integers(0, 1 << 20),
    st.integers(1 << 31, 1 << 40),
    st.sampled_from([(1 << 36) - 5, 1 << 32]),
)
"""Vectors: some beyond 64 GiB, some where the low half of the number runs over."""
SIZES = st.one_of(st.integers(1, 9 * 1024), st.sampled_from([1023, 1024, 1025, 4096]))
BOUNDED = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def reference(vector: int, nonce: bytes) -> bytes:
    """The pattern of one vector, straight from the words at the top of kernels.ptx."""
    n0, n1, n2, n3 = kernels.words(nonce)
    low, high = vector & MASK, vector >> 32
    mixed = ((low ^ n2) * 0x9E3779B1 + high * 0x85EBCA77) & MASK
    third = mixed ^ (mixed >> 16)
    return struct.pack("<4I", low ^ n0, high ^ n1, third, (third * 0xC2B2AE3D + n3) & MASK)


class Bench:
    """A buffer on the device, with kernels to run on it and a guard at both ends."""

    def __init__(self, context: cuda.Context) -> None:
        self.context = context
        context.load(kernels.text(), kernels.NAMES)
        self.base = context.allocate(ROOM + 2 * GUARD)
        self.result = context.allocate(kernels.RESULT_BYTES)
        self._host = context.pinned(ROOM + 2 * GUARD)
        self._short = context.pinned(kernels.RESULT_BYTES)

    def run(self, name: str, blocks: int, values: tuple[int, ...]) -> None:
        """Launch and forget: the stand-in is done at once."""
        self.context.launch(name, cuda.Shape(blocks, kernels.THREADS), values, kernels.WIDTHS[name])

    def write(self, content: bytes | bytearray) -> None:
        """Replace the buffer's content, guards included."""
        self._host[: len(content)] = content
        self.context.upload(self.base, self._host[: len(content)])

    def read(self) -> bytes:
        """All of the buffer."""
        self.context.download(self._host, self.base)
        return bytes(self._host)

    def compared(self, name: str, blocks: int, values: tuple[int, ...]) -> kernels.Found:
        """Run a comparison from an empty result and read what it says."""
        self._short[:] = kernels.empty_result()
        self.context.upload(self.result, self._short)
        self.run(name, blocks, (*values, self.result))
        self.context.download(self._short, self.result)
        return kernels.result(self._short)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One context for all of these tests: each writes the buffer anew."""
    with pytest.MonkeyPatch.context() as patch:
        context = OneGpu(tmp_path_factory.mktemp("standin"), patch).context()
        yield Bench(context)
        context.close()


def test_f85_every_generation_since_turing_assembles_them(tmp_path: Path) -> None:
    """F83, F85, gpus-8.9, gpus-8.14: the text shipped is PTX that the assembler takes for every
    target it has, optimised as drivers do it, and no register of it goes to memory."""
    assert len(TARGETS) >= 12
    found = importlib.util.find_spec("nvidia")
    assert found is not None
    places = [Path(place) for place in found.submodule_search_locations or ()]
    (ptxas,) = [path for place in places for path in place.glob("cu13/bin/ptxas")]
    source = tmp_path / "kernels.ptx"
    source.write_bytes(kernels.text())
    for target in TARGETS:
        command = [
            str(ptxas),
            *("-O3", "-v"),
            f"-arch=sm_{target}",
            "-o",
            str(tmp_path / "out"),
            str(source),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        spilled = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
        assert spilled == [("0", "0")] * len(kernels.NAMES), (target, done.stderr)


@BOUNDED
@given(
    vectors=SIZES,
    first=LOGICAL,
    nonce=st.binary(min_size=16, max_size=32),
    blocks=st.integers(1, 3),
)
def test_fill_writes_the_pattern_and_nothing_else(
    bench: Bench, vectors: int, first: int, nonce: bytes, blocks: int
) -> None:
    """B06: 64-bit offsets, any size, any launch: exactly the pattern, and guards intact."""
    bench.write(b"\xa5" * (ROOM + 2 * GUARD))
    size = vectors * kernels.VECTOR
    words = kernels.words(nonce)
    bench.run(kernels.FILL, blocks, (bench.base + GUARD, size, first * kernels.VECTOR, *words))
    seen = bench.read()
    expected = b"".join(reference(first + k, nonce) for k in range(vectors))
    assert seen[GUARD : GUARD + size] == expected
    assert set(seen[:GUARD] + seen[GUARD + size :]) == {0xA5}


@BOUNDED
@given(
    vectors=SIZES,
    first=LOGICAL,
    nonce=st.binary(min_size=16, max_size=32),
    picks=st.sets(st.integers(0, 2**30), max_size=90),
    zero=st.booleans(),
)
def test_a_comparison_names_what_differs(
    bench: Bench, vectors: int, first: int, nonce: bytes, picks: set[int], zero: bool
) -> None:
    """gpus-8.7: every word that differs counts, the lowest is named, and up to 64 are listed."""
    size, start = vectors * kernels.VECTOR, first * kernels.VECTOR
    place, words = bench.base + GUARD, kernels.words(nonce)
    if zero:
        bench.run(kernels.ZERO, 2, (place, size))
    else:
        bench.run(kernels.FILL, 2, (place, size, start, *words))
    content = bytearray(bench.read())
    wrong = sorted({pick % (size // kernels.WORD) for pick in picks})
    for word in wrong:
        content[GUARD + word * kernels.WORD + word % 8] ^= 1 << word % 8
    bench.write(content)
    if zero:
        found = bench.compared(kernels.VERIFY_ZERO, 3, (place, size, start))
    else:
        found = bench.compared(kernels.VERIFY, 3, (place, size, start, *words))
    offsets = [start + word * kernels.WORD for word in wrong]
    listed = list(found.places)
    assert found.count == len(offsets)
    assert found.compared == size, "F85: every vector is counted where it is compared"
    assert listed[:1] == offsets[:1]
    assert set(listed) <= set(offsets)
    assert len(listed) == min(len(offsets), kernels.LISTED)
    if len(offsets) <= kernels.LISTED:
        assert listed == offsets


def test_another_nonce_and_another_address_are_told_apart(bench: Bench) -> None:
    """gpus-8.8: a pattern of another run, or one word further on, differs everywhere."""
    size, words = 64 * 1024, kernels.words(bytes(32))
    bench.run(kernels.FILL, 4, (bench.base, size, 0, *words))
    other = kernels.words(b"\x01" * 32)
    assert bench.compared(kernels.VERIFY, 4, (bench.base, size, 0, *other)).count == size // 8
    moved = bench.compared(kernels.VERIFY, 4, (bench.base, size, kernels.VECTOR, *words))
    assert moved.count == size // 8


def test_no_two_vectors_are_equal() -> None:
    """A stuck or crossed address line shows: addresses that differ in one bit differ in content,
    and neighbours in many bits."""
    nonce = bytes(range(16))
    for vector in (0, 12345, 1 << 33):
        mine = reference(vector, nonce)
        for bit in range(40):
            other = reference(vector ^ 1 << bit, nonce)
            differ = int.from_bytes(mine, "little") ^ int.from_bytes(other, "little")
            assert differ.bit_count() >= 8, (vector, bit)
            assert mine[:8] != other[:8]


def test_reading_alone_changes_nothing(bench: Bench) -> None:
    """The yardstick of a read pass leaves memory and result as they were."""
    bench.write(b"\x11" * (ROOM + 2 * GUARD))
    before = bench.read()
    values = (bench.base, 64 * 1024, bench.result, kernels.UNLIKELY)
    bench.run(kernels.READ, 2, values)
    assert bench.read() == before


def test_the_on_chip_kernel_runs_in_the_largest_block(bench: Bench) -> None:
    """B18: it takes all the shared memory a block can have, and no more is to be had."""
    device = bench.context.device
    shape = kernels.on_chip_shape(device.multiprocessors, device.shared_bytes)
    values = (device.shared_bytes, kernels.ON_CHIP_ROUNDS, bench.result, kernels.UNLIKELY)
    bench.context.allow_shared(kernels.ON_CHIP, device.shared_bytes)
    bench.context.launch(kernels.ON_CHIP, shape, values, kernels.WIDTHS[kernels.ON_CHIP])
    assert shape.blocks >= device.multiprocessors
    with pytest.raises(DriverRefused, match="cuFuncSetAttribute"):
        bench.context.allow_shared(kernels.ON_CHIP, device.shared_bytes + 1)


def test_widths_are_those_of_the_text() -> None:
    """Every kernel is launched with as many parameters, as wide, as its text declares."""
    text = kernels.text().decode()
    for name, widths in kernels.WIDTHS.items():
        declared = text.partition(f".entry {name}(")[2].partition(")")[0]
        wide = [int(word.removeprefix(".u")) for word in declared.split() if word.startswith(".u")]
        assert wide == [ctypes.sizeof(width) * 8 for width in widths]


@pytest.mark.parametrize(
    ("size", "blocks"), [(16, 1), (kernels.TILE, 1), (kernels.TILE + 16, 2), (1 << 30, 132 * 128)]
)
def test_a_launch_fills_the_device_and_no_more(size: int, blocks: int) -> None:
    """Small memory gets few blocks, large memory as many as run at once."""
    assert kernels.shape(132, size) == cuda.Shape(blocks, kernels.THREADS)
