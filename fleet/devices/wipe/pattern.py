"""The pattern written over memory: every word follows from a nonce and its absolute address.

Memory is divided into tiles of 512 KiB. A tile begins with a header that names the nonce (by its
SHA-256) and the tile's absolute 64-bit address, and goes on with keystream derived from the nonce.
Technically a tile is a window of a stream of 640 KiB: window k of a GiB begins 64 bytes after
window k - 1, and the header of tile k stands at the beginning of its window. Each GiB has a stream
of its own. So two addresses that differ in any single bit never hold the same words, and a stuck or
crossed address line cannot go unseen.

The stream stays in the processor's second-level cache, so filling costs one write of memory and
verifying one read of it, as libc's memset and memcmp do (measured by `make bench`). This works
on raw addresses, for that is what makes it as fast; callers keep the memory mapped for the length
of a call. Same nonce and address, same bytes, on every machine and in every release: `NAME` changes
when the rule does.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct

NAME = "fleetscrub-tile-1"
TILE = 512 * 1024
STEP = 64
WORD = 8
SPAN = 1 << 30
"""Bytes of address space that share one stream."""
_TILES = SPAN // TILE
STREAM_BYTES = TILE + _TILES * STEP
_MAGIC = b"FSW1"
_HASH_BYTES = 20
_HEADER = struct.Struct(f"<4s{_HASH_BYTES}sQ")
MERGE_OVER = 64
"""Stretches, or words of one stretch, above which the rest of a tile is reported as one."""

_libc = ctypes.CDLL(None)
_memcmp = _libc.memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcmp.restype = ctypes.c_int
_memmove = _libc.memmove
_memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memmove.restype = None
_memset = _libc.memset
_memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_memset.restype = None
_zeros = ctypes.create_string_buffer(TILE)

Stretch = tuple[int, int]
"""(absolute address, length) of bytes that did not read back as they should; whole words."""


class Pattern:
    """The pattern of one nonce (16 to 32 bytes). Not safe for use by two threads at once."""

    def __init__(self, nonce: bytes) -> None:
        self._nonce = nonce
        self._name = hashlib.sha256(nonce).digest()[:_HASH_BYTES]
        self._span = -1
        self._stream = ctypes.create_string_buffer(STREAM_BYTES)
        self._base = ctypes.addressof(self._stream)

    def fill(self, target: int, address: int, length: int) -> None:
        """Write the pattern of [address, address + length) to the memory mapped at `target`."""
        end = address + length
        while address < end:
            tile, low = divmod(address, TILE)
            piece = min(TILE - low, end - address)
            _memmove(target, self._window(tile) + low, piece)
            address += piece
            target += piece

    def mismatches(self, target: int, address: int, length: int) -> list[Stretch]:
        """Stretches of the memory mapped at `target` that differ from the pattern of `address`."""
        found: list[Stretch] = []
        end = address + length
        while address < end:
            tile, low = divmod(address, TILE)
            piece = min(TILE - low, end - address)
            source = self._window(tile) + low
            if _memcmp(target, source, piece):
                found += _located(_Pair(target, source), address, piece)
            address += piece
            target += piece
        return found

    def expected(self, address: int, length: int) -> bytes:
        """The bytes that belong at [address, address + length)."""
        place = ctypes.create_string_buffer(length)
        self.fill(ctypes.addressof(place), address, length)
        return place.raw

    def header(self, address: int) -> bytes:
        """The header of the tile at `address`: magic, SHA-256 of the nonce (cut), address."""
        return _HEADER.pack(_MAGIC, self._name, address // TILE * TILE)

    def _window(self, tile: int) -> int:
        span, place = divmod(tile, _TILES)
        if span != self._span:
            self._stream.raw = self._made(span)
            self._span = span
        return self._base + place * STEP

    def _made(self, span: int) -> bytes:
        """The stream of one GiB: keystream, with every tile's header where its window begins."""
        seed = b"fleetscrub pattern" + self._nonce + span.to_bytes(8, "little")
        stream = bytearray(hashlib.shake_128(seed).digest(STREAM_BYTES))
        first = span * SPAN
        addresses = struct.pack(f"<{_TILES}Q", *range(first, first + SPAN, TILE))
        fixed = _MAGIC + self._name
        for byte, value in enumerate(fixed):  # one byte of all headers at once: a loop of 32
            stream[byte : _TILES * STEP : STEP] = bytes((value,)) * _TILES
        for byte in range(8):
            stream[len(fixed) + byte : _TILES * STEP : STEP] = addresses[byte::8]
        return bytes(stream)


def zero(target: int, length: int) -> None:
    """Write zeros to the memory mapped at `target`."""
    _memset(target, 0, length)


def nonzero(target: int, address: int, length: int) -> list[Stretch]:
    """Stretches of the memory mapped at `target` (absolute `address`) that are not zero."""
    found: list[Stretch] = []
    zeros = ctypes.addressof(_zeros)
    for done in range(0, length, TILE):
        piece = min(TILE, length - done)
        if _memcmp(target + done, zeros, piece):
            found += _located(_Pair(target + done, zeros), address + done, piece)
    return found


class _Pair:
    """Two pieces of memory that ought to be equal."""

    def __init__(self, left: int, right: int) -> None:
        self._left = left
        self._right = right

    def differ(self, place: int, length: int) -> bool:
        return bool(_memcmp(self._left + place, self._right + place, length))

    def first(self, low: int, high: int) -> int | None:
        """Offset of the first byte of [low, high) that differs, None when all are equal."""
        if low >= high or not self.differ(low, high - low):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if self.differ(low, middle - low):
                high = middle
            else:
                low = middle
        return low


def _located(pair: _Pair, address: int, length: int) -> list[Stretch]:
    """Where a pair at `address` differs, as stretches of whole 8-byte words.

    Halving with memcmp instead of an array library: the self-test takes this way in every wipe, and
    loading one costs as much as wiping gigabytes. Long or many stretches are reported as one.
    """
    found: list[Stretch] = []
    place = 0
    while (first := pair.first(place, length)) is not None:
        start = max(first - (address + first) % WORD, 0)
        place = start + WORD
        while place < length and place - start < MERGE_OVER * WORD:
            if not pair.differ(place, min(WORD, length - place)):
                break
            place += WORD
        if len(found) + 1 >= MERGE_OVER or place - start >= MERGE_OVER * WORD:
            place = length
        found.append((address + start, min(place, length) - start))
    # none found: it differed a moment ago, and memory that cannot decide is not clean
    return found or [(address, length)]
