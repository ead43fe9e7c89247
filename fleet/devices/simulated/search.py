"""Searching a device's memory for what a tenant wrote.

What it guarantees: every 64-byte block of the content (at multiples of 64 in the content) that is
anywhere in memory is found, at whatever byte offset it lies there. Blocks whose bytes are all equal
are not counted: zeros prove nothing. Content shorter than a block is searched for whole. Hits are
compared byte by byte, so none is reported that is not there.

How: each block is known by one of its eight words, chosen among those that vary. Memory is read at
all eight byte alignments; a word that a table of bits knows is looked up exactly, and the block
around it compared. Stretches of zeros, most of a wiped device, are skipped at memory speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fleet.core.errors import InputInvalid
from fleet.devices.simulated.memory import Memory, Stretch

BLOCK = 64
_WORDS = BLOCK // 8
_WINDOW = 1 << 20
_SHOWN = 16
_REACH = BLOCK - 1
"""Bytes on either side of a border that a block across it can reach."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SMALLEST_TABLE_BITS = 16
_LARGEST_TABLE_BITS = 28

Words = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Found:
    """What was found in one memory. Offsets are bytes."""

    blocks: int
    """How many places of memory hold a block of the content."""
    places: tuple[int, ...] = ()
    """Where, the first few."""
    distinct: int = 0
    """How many different blocks of the content were found."""


@dataclass(frozen=True, slots=True)
class Index:
    """Blocks by hash, and the words they are known by: sorted, with a table of bits before them."""

    blocks: Words
    hashes: Words
    keys: Words
    at: Places
    """Which word of a block each key is."""
    table: npt.NDArray[np.uint8]
    shift: int

    def known(self, words: Words) -> Places:
        """Where in `words` a key may be: all keys, and few others."""
        mixed = words * _MULTIPLIER
        bit = ((mixed >> np.uint64(self.shift - 3)) & np.uint64(7)).astype(np.uint8)
        return np.flatnonzero((self.table[mixed >> np.uint64(self.shift)] >> bit) & 1)


@dataclass(frozen=True, slots=True)
class Needles:
    """Some content, ready to be searched for in many memories."""

    size: int
    searched: int
    """Different blocks searched for; 0: content shorter than a block, searched for whole."""
    whole: bytes = b""
    index: Index | None = None


def of_file(path: Path) -> Needles:
    """The blocks of a file. Raises InputInvalid when it cannot be read or holds nothing to find."""
    try:
        size = path.stat().st_size
        if size < BLOCK:
            return of_bytes(path.read_bytes())
        words = np.memmap(path, dtype=np.uint64, mode="r", shape=(size // BLOCK, _WORDS))
    except OSError as error:
        raise InputInvalid(f"{path} cannot be read: {error}") from error
    return _needles(words, size)


def of_bytes(content: bytes) -> Needles:
    """The blocks of `content`. Raises InputInvalid when there is nothing in it to find."""
    if not content or content.count(content[:1]) == len(content) >= BLOCK:
        raise InputInvalid(
            "there is nothing to search for: the content is empty or one byte repeated",
            remedy="search for content of which at least 64 bytes in a row vary",
        )
    if len(content) < BLOCK:
        return Needles(size=len(content), searched=0, whole=content)
    whole = len(content) // BLOCK * BLOCK
    words = np.frombuffer(content[:whole], dtype=np.uint64).reshape(-1, _WORDS)
    return _needles(words, len(content))


def search(
    needles: Needles, memory: Memory, *, within: Sequence[tuple[int, int]] | None = None
) -> Found:
    """Search a memory, or the spans (offset, length) of it that make up a partition.

    Offsets are the accelerator's. What lies across the border of two files is found too. Raises
    InputInvalid when a file cannot be read.
    """
    places: list[Places] = [np.empty(0, np.int64)]
    seen: list[Words] = [np.empty(0, np.uint64)]
    for offset, span in _spans(memory, within):
        if needles.index is None:
            places.append(_whole(needles.whole, span) + offset)
            continue
        for at, which in _blocks(needles.index, span):
            places.append(at + offset)
            seen.append(which)
    found = np.unique(np.concatenate(places))
    distinct = len(np.unique(np.concatenate(seen))) if needles.index else min(len(found), 1)
    return Found(len(found), tuple(int(place) for place in found[:_SHOWN]), distinct)


def _spans(memory: Memory, within: Sequence[tuple[int, int]] | None) -> Iterator[tuple[int, Bytes]]:
    """(address, content) file by file, and of the seam between two that follow each other."""
    everything = [(file.offset_bytes, file.size_bytes) for file in memory.files]
    before: Bytes = np.empty(0, np.uint8)
    end = -1
    for offset, length in sorted(within or everything):
        for stretch in memory.stretches(offset, length):
            content = _mapped(stretch)
            if stretch.address == end:
                seam = np.concatenate((before[-_REACH:], content[:_REACH]))
                yield stretch.address - len(before[-_REACH:]), seam
            yield stretch.address, content
            before, end = content, stretch.address + stretch.length


def _mapped(stretch: Stretch) -> Bytes:
    try:
        mapped: Bytes = np.asarray(np.memmap(stretch.path, dtype=np.uint8, mode="r"))
    except (OSError, ValueError) as error:
        raise InputInvalid(f"the memory {stretch.path} cannot be read: {error}") from error
    return mapped[stretch.start : stretch.start + stretch.length]


def _needles(words: Words, size: int) -> Needles:
    first = words[:, :1]
    byte = first & np.uint64(0xFF)
    constant = (words == byte * np.uint64(0x0101010101010101)).all(axis=1)
    blocks = np.ascontiguousarray(words[~constant])
    if not len(blocks):
        raise InputInvalid("every block of the content is one byte repeated")
    hashes, unique = np.unique(_hash(blocks), return_index=True)
    blocks = blocks[unique]
    at = _telling_word(blocks)
    keys = blocks[np.arange(len(blocks)), at]
    order = np.lexsort((at, keys))
    keys, at = keys[order], at[order]
    fresh = np.ones(len(keys), np.bool_)
    fresh[1:] = (keys[1:] != keys[:-1]) | (at[1:] != at[:-1])
    keys, at = keys[fresh], at[fresh]
    table, shift = _table(keys)
    return Needles(size, len(blocks), index=Index(blocks, hashes, keys, at, table, shift))


def _table(keys: Words) -> tuple[npt.NDArray[np.uint8], int]:
    """One byte for each hash, one bit of it for three more bits of the hash; and the shift."""
    bits = min(max((len(keys) * 16).bit_length(), _SMALLEST_TABLE_BITS), _LARGEST_TABLE_BITS)
    shift = 64 - bits
    mixed = keys * _MULTIPLIER
    bit = ((mixed >> np.uint64(shift - 3)) & np.uint64(7)).astype(np.uint8)
    table = np.zeros(1 << bits, np.uint8)
    np.bitwise_or.at(table, mixed >> np.uint64(shift), np.left_shift(np.uint8(1), bit))
    return table, shift


def _telling_word(blocks: Words) -> Places:
    """Which of a block's words it is known by: one that is not a byte repeated, if there is one.

    Padding is everywhere; a table that knew blocks by their zeros would stop at all of it.
    """
    plain = blocks == (blocks & np.uint64(0xFF)) * np.uint64(0x0101010101010101)
    chosen = np.argmin(plain, axis=1)
    largest = np.argmax(blocks, axis=1)
    found: Places = np.where(plain.all(axis=1), largest, chosen)
    return found


def _hash(blocks: Words) -> Words:
    """One number per block; equal blocks have equal ones."""
    found = np.zeros(len(blocks), np.uint64)
    for word in range(_WORDS):
        found = (found ^ blocks[:, word]) * _MULTIPLIER
        found ^= found >> np.uint64(29)
    return found


def _blocks(index: Index, memory: Bytes) -> Iterator[tuple[Places, Words]]:
    """(offsets of blocks, hashes of them), window by window and alignment by alignment."""
    for start in range(0, len(memory), _WINDOW):
        end = min(start + _WINDOW, len(memory))
        if not memory[start : end + 7].any():  # the last words reach into the next window
            continue
        for align in range(8):
            yield _hits(index, memory, start + align, end)


def _hits(index: Index, memory: Bytes, start: int, end: int) -> tuple[Places, Words]:
    """(offsets of blocks, hashes of them) known by a word that lies at start, start + 8 ..."""
    count = max((min(end + 7, len(memory)) - start) // 8, 0)
    words = memory[start : start + count * 8].view(np.uint64)
    maybe = index.known(words)
    value = words[maybe]
    place = np.searchsorted(index.keys, value)
    offsets: list[Places] = [np.empty(0, np.int64)]
    hashes: list[Words] = [np.empty(0, np.uint64)]
    while value.size:  # a word may be known at up to eight places of a block
        real = place < len(index.keys)
        real[real] = index.keys[place[real]] == value[real]
        maybe, value, place = maybe[real], value[real], place[real]
        first = start + maybe * 8 - index.at[place] * 8
        inside = (first >= 0) & (first + BLOCK <= len(memory))
        which, hashed = _compared(index, memory, first[inside])
        offsets.append(which)
        hashes.append(hashed)
        place = place + 1
    return np.concatenate(offsets), np.concatenate(hashes)


def _compared(index: Index, memory: Bytes, first: Places) -> tuple[Places, Words]:
    """Of these offsets, the ones at which a block of the content really lies, and its hash."""
    if not first.size:
        return first, np.empty(0, np.uint64)
    rows = np.lib.stride_tricks.sliding_window_view(memory, BLOCK)[first]
    blocks = np.ascontiguousarray(rows).view(np.uint64).reshape(-1, _WORDS)
    hashes = _hash(blocks)
    where = np.minimum(np.searchsorted(index.hashes, hashes), len(index.hashes) - 1)
    same = (index.blocks[where] == blocks).all(axis=1)
    return first[same], hashes[same]


def _whole(whole: bytes, memory: Bytes) -> Places:
    """Offsets of content shorter than a block."""
    content, places = memory.tobytes(), []
    place = content.find(whole)
    while place >= 0:
        places.append(place)
        place = content.find(whole, place + 1)
    return np.asarray(places, np.int64)
