"""Searching memory: every block is found, none is made up."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.core.errors import InputInvalid
from fleet.core.model import UnitId
from fleet.devices.simulated import search
from fleet.devices.simulated.memory import Memory, UnitFile
from fleet.devices.simulated.search import BLOCK, Found
from tests.fleet.devices.wipe.orders import one_file

SIZE = 3 << 20


def noise(seed: int, length: int) -> bytes:
    """Content that nobody wrote elsewhere."""
    return random.Random(seed).randbytes(length)


def searched(content: bytes, memory: bytes, spans: list[tuple[int, int]] | None = None) -> Found:
    """What is found of `content` in memory of this content."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(memory)
        file.flush()
        return search.search(search.of_bytes(content), one_file(Path(file.name)), within=spans)


@settings(max_examples=30, deadline=None)
@given(offset=st.integers(0, SIZE - 200), blocks=st.integers(1, 3))
def test_every_block_is_found_at_every_byte_offset(offset: int, blocks: int) -> None:
    """Wherever a tenant's bytes lie, all their blocks are found and their places named."""
    content = noise(offset, blocks * BLOCK)
    memory = bytearray(SIZE)
    memory[offset : offset + len(content)] = content
    found = searched(content, bytes(memory))
    assert found.places == tuple(offset + place for place in range(0, len(content), BLOCK))
    assert found.distinct == blocks


def test_one_block_of_many_is_enough() -> None:
    """A single surviving block of a large file is found."""
    content = noise(1, 1 << 20)
    memory = bytearray(noise(2, SIZE))
    memory[777_777 : 777_777 + BLOCK] = content[5000 * BLOCK : 5001 * BLOCK]
    assert searched(content, bytes(memory)).places == (777_777,)


def test_nothing_is_made_up() -> None:
    """Blocks that differ in one bit, or lie across, are not reported."""
    content = noise(3, 100 * BLOCK)
    almost = bytearray(content)
    for block in range(100):
        almost[block * BLOCK + 63] ^= 1
    assert searched(content, bytes(almost)) == Found(0)


def test_zeros_and_other_repeated_bytes_do_not_count() -> None:
    """Wiped memory is zeros, and so is much of any file: that proves nothing."""
    content = bytes(BLOCK * 10) + noise(4, BLOCK) + b"\xff" * BLOCK * 10
    assert searched(content, bytes(1 << 20)) == Found(0)
    assert searched(content, b"\xff" * (1 << 20)) == Found(0)
    with pytest.raises(InputInvalid, match="nothing to search for"):
        search.of_bytes(bytes(1000))


def test_blocks_with_the_same_words_are_told_apart() -> None:
    """Padding and repeated headers make words common; only whole blocks count."""
    rows = [b"HEADER__" + bytes(48) + number.to_bytes(8, "big") for number in range(1, 300)]
    memory = b"".join(rows[100:200]) + b"HEADER__" * 4096
    assert searched(b"".join(rows), memory).blocks == 100


def test_a_block_known_by_a_word_that_begins_with_zeros_is_found_behind_zeros() -> None:
    """Skipping stretches of zeros loses no block whose first bytes are zero."""
    content = bytes(7) + b"\x01" * 57
    memory = bytearray(2 << 20)
    memory[(1 << 20) - 5 : (1 << 20) - 5 + BLOCK] = content
    assert searched(content, bytes(memory)).places == ((1 << 20) - 5,)


def test_short_text_is_searched_for_whole() -> None:
    """Text shorter than a block is found at every place, overlapping ones included."""
    assert searched(b"aXa", b"..aXaXa..") == Found(2, (2, 4), 1)


def test_only_the_spans_asked_for_are_searched() -> None:
    """A partition is its own memory: a neighbour's bytes are not found in it."""
    content = noise(5, BLOCK)
    memory = bytes(4096) + content + bytes(4096)
    assert searched(content, memory, [(0, 4096)]) == Found(0)
    assert searched(content, memory, [(0, 64), (4000, 1000)]).places == (4096,)


def test_a_file_is_searched_like_its_bytes(tmp_path: Path) -> None:
    """Files of any length, also not of whole blocks."""
    content = noise(6, 10 * BLOCK + 17)
    (tmp_path / "file").write_bytes(content)
    (tmp_path / "memory").write_bytes(bytes(4096) + content)
    needles = search.of_file(tmp_path / "file")
    assert (needles.searched, needles.size) == (10, len(content))
    assert search.search(needles, one_file(tmp_path / "memory")).blocks == 10
    with pytest.raises(InputInvalid):
        search.of_file(tmp_path / "none")
    gone = one_file(tmp_path / "memory")
    (tmp_path / "memory").unlink()
    with pytest.raises(InputInvalid):
        search.search(needles, gone)


@pytest.mark.parametrize("before", [1, 17, 63, 64])
def test_what_lies_across_two_files_is_found(tmp_path: Path, before: int) -> None:
    """A partition of several units is searched as one memory, also at the borders of its files."""
    files, content = [], noise(8, BLOCK)
    whole = bytearray(3 * 4096)
    whole[4096 - before : 4096 - before + BLOCK] = content
    for number in range(3):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(whole[number * 4096 : (number + 1) * 4096])
        files.append(UnitFile(UnitId(f"u/m{number}"), path, number * 4096, 4096))
    memory = Memory(tuple(files))
    needles = search.of_bytes(content)
    assert search.search(needles, memory) == Found(1, (4096 - before,), 1)
    halves = [(4096, 4096), (0, 4096)]
    assert search.search(needles, memory, within=halves).blocks == 1
    assert search.search(needles, memory, within=[(0, 4096)]).blocks == int(before == BLOCK)
    assert search.search(search.of_bytes(content[:40]), memory).places == (4096 - before,)


def test_wiped_memory_is_searched_at_memory_speed(tmp_path: Path) -> None:
    """Zeros are skipped: 256 MiB take far less than the seconds allowed here."""
    path = tmp_path / "memory"
    with path.open("wb") as file:
        file.truncate(256 << 20)
    needles = search.of_bytes(noise(7, 1 << 20))
    started = time.monotonic()
    assert search.search(needles, one_file(path)) == Found(0)
    assert time.monotonic() - started < 5.0
