"""The pattern: nonce and address decide every word, and any change is found and located."""

from __future__ import annotations

import ctypes

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.devices.wipe import pattern
from fleet.devices.wipe.pattern import SPAN, STEP, TILE, WORD, Pattern

NONCE = bytes(range(32))
ADDRESSES = st.integers(0, (1 << 44) // WORD).map(lambda word: word * WORD)
LENGTHS = st.integers(1, 3 * TILE // WORD).map(lambda words: words * WORD)
PATTERN = Pattern(NONCE)


def place(content: bytes) -> ctypes.Array[ctypes.c_char]:
    """Memory with this content."""
    return ctypes.create_string_buffer(content, len(content))


@settings(max_examples=40, deadline=None)
@given(address=ADDRESSES, length=LENGTHS, cut=st.floats(0, 1))
def test_a_word_depends_on_its_address_alone(address: int, length: int, cut: float) -> None:
    """Filled in one piece or in two, from wherever, the same addresses hold the same words."""
    middle = int(length // WORD * cut) * WORD
    whole = PATTERN.expected(address, length)
    parts = PATTERN.expected(address, middle) + PATTERN.expected(address + middle, length - middle)
    assert whole == parts
    assert Pattern(NONCE).expected(address, length) == whole


@settings(max_examples=40, deadline=None)
@given(address=ADDRESSES, bit=st.integers(3, 45))
def test_one_address_bit_changes_the_words(address: int, bit: int) -> None:
    """A stuck or crossed address line shows: no alias at a power of two holds the same line."""
    line = address // STEP * STEP
    other = line ^ (1 << max(bit, 6))
    assert PATTERN.expected(line, STEP) != PATTERN.expected(other, STEP)


def test_another_nonce_changes_every_tile() -> None:
    """What an earlier run left behind never passes for this run."""
    other = Pattern(bytes(32))
    for address in (0, TILE, SPAN, 5 * SPAN + 3 * TILE):
        assert other.expected(address, STEP) != PATTERN.expected(address, STEP)


def test_a_tile_names_nonce_and_absolute_address() -> None:
    """A tile begins with a header from which nonce and 64-bit address can be read back."""
    address = 79 * SPAN + 5 * TILE
    tile = PATTERN.expected(address, TILE)
    assert tile.startswith(PATTERN.header(address))
    assert int.from_bytes(PATTERN.header(address)[-8:], "little") == address


def test_all_tiles_of_a_span_differ() -> None:
    """No two tiles that share a stream are equal."""
    starts = [PATTERN.expected(tile * TILE, 128) for tile in range(SPAN // TILE)]
    assert len(set(starts)) == len(starts)


@settings(max_examples=60, deadline=None)
@given(
    address=ADDRESSES,
    length=LENGTHS,
    where=st.floats(0, 1, exclude_max=True),
    flip=st.integers(1, 255),
)
def test_any_changed_byte_is_found_and_located(
    address: int, length: int, where: float, flip: int
) -> None:
    """B06: one bad byte anywhere, also beyond 4 GiB, gives exactly the word it lies in."""
    memory = place(PATTERN.expected(address, length))
    at = int(length * where)
    memory[at] = bytes([memory[at][0] ^ flip])
    word = address + at // WORD * WORD
    assert PATTERN.mismatches(ctypes.addressof(memory), address, length) == [(word, WORD)]


def test_b06_a_bad_byte_beyond_4_gib_is_named_with_its_whole_offset() -> None:
    """B06: the offset 5 GiB + 3 survives, not its lower 32 bits."""
    address = 5 * SPAN
    memory = place(bytes(TILE))
    PATTERN.fill(ctypes.addressof(memory), address, TILE)
    memory[3] = bytes([memory[3][0] ^ 1])
    assert PATTERN.mismatches(ctypes.addressof(memory), address, TILE) == [(5368709120, WORD)]


def test_unchanged_memory_has_no_mismatch() -> None:
    """What was filled verifies, across the border of two spans."""
    address, length = SPAN - TILE, 2 * TILE
    memory = place(bytes(length))
    PATTERN.fill(ctypes.addressof(memory), address, length)
    assert PATTERN.mismatches(ctypes.addressof(memory), address, length) == []


def test_memory_that_holds_nothing_of_the_pattern_is_one_stretch_per_tile() -> None:
    """Total failure is told in few stretches that cover all of it."""
    memory = place(bytes(2 * TILE))
    found = PATTERN.mismatches(ctypes.addressof(memory), TILE, 2 * TILE)
    assert found == [(TILE, TILE), (2 * TILE, TILE)]


def test_several_changes_are_several_stretches() -> None:
    """Neighbouring words are one stretch, others are stretches of their own."""
    memory = place(PATTERN.expected(0, TILE))
    for at in (800, 808, 4096, TILE - 1):
        memory[at] = bytes([memory[at][0] ^ 0x80])
    found = PATTERN.mismatches(ctypes.addressof(memory), 0, TILE)
    assert found == [(800, 16), (4096, 8), (TILE - 8, 8)]


@settings(max_examples=40, deadline=None)
@given(length=LENGTHS, where=st.floats(0, 1, exclude_max=True), value=st.integers(1, 255))
def test_any_byte_that_is_not_zero_is_found(length: int, where: float, value: int) -> None:
    """After zeros were written, every remaining byte is located."""
    memory = place(b"\xa5" * length)
    pattern.zero(ctypes.addressof(memory), length)
    assert pattern.nonzero(ctypes.addressof(memory), 0, length) == []
    at = int(length * where)
    memory[at] = bytes([value])
    assert pattern.nonzero(ctypes.addressof(memory), 64, length) == [(64 + at // 8 * 8, 8)]
