"""Wiping simulated memory: the memory session of a worker, without any fault.

Once all that was allocated has been seen to be zero, closing the session replaces the files
(`layout.renew`), so that whatever still leads to an old one leads to no other tenant.

Faults live in a subclass that is only made when one is set (`struck`), so that they cost nothing
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fleet.core.errors import InputInvalid
from fleet.core.model import UnitSpec
from fleet.devices.base import Coverage, Mismatch, Progress
from fleet.devices.health.readings import Readings
from fleet.devices.simulated import layout
from fleet.devices.simulated.memory import Allocator, Chunk, Mapping, Memory
from fleet.devices.wipe import pattern
from fleet.devices.wipe.allocation import take_all

SLAB_LARGEST = 16 << 20
"""Bytes between two progress calls, at most."""
SLABS_PER_PASS = 16


class SimulatedSession:
    """All memory of some units of one simulated accelerator (see `MemorySession`)."""

    pattern_name = pattern.NAME

    def __init__(
        self,
        memory: Memory,
        units: Sequence[UnitSpec],
        *,
        read: Callable[[], Readings],
        closed: Callable[[], None],
    ) -> None:
        """`read` gives readings under load, `closed` is called once at the end."""
        self.units = {unit.id: unit for unit in units}
        self._memory = memory.only(self.units)
        self.mapping = Mapping(memory, units)
        self.chunks: list[Chunk] = []
        self._read = read
        self._closed: Callable[[], None] | None = closed
        self._pattern: tuple[bytes, pattern.Pattern] | None = None
        self._wiped = False
        """Whether everything allocated read as zero and nothing was written since."""

    @property
    def covered(self) -> int:
        """Bytes allocated."""
        return sum(chunk.length for chunk in self.chunks)

    def allocator(self) -> Allocator:
        """The allocator of a fresh device: every unit one hole."""
        return Allocator(tuple(self.units.values()))

    def allocate(self, *, largest_bytes: int, smallest_bytes: int) -> Coverage:
        """Take all chunks there are, from large to small."""
        self._wiped = False
        self.chunks = take_all(
            self.allocator().take, largest_bytes=largest_bytes, smallest_bytes=smallest_bytes
        )
        total = sum(unit.size_bytes for unit in self.units.values())
        return Coverage(total=total, reserved=0, covered=self.covered)

    def fill(self, nonce: bytes, progress: Progress) -> None:
        """Write the pattern."""
        self._wiped = False
        words = self._words(nonce)
        for pointer, piece in self._slabs(progress):
            words.fill(pointer, piece.address, piece.length)

    def verify(
        self, nonce: bytes, progress: Progress, *, within: tuple[int, int] | None = None
    ) -> Sequence[Mismatch]:
        """Compare memory with the pattern, all of it or the stretch `within`."""
        words, found = self._words(nonce), []
        for pointer, piece in self._slabs(progress, within):
            stretches = words.mismatches(pointer, piece.address, piece.length)
            found += [self._mismatch(piece, stretch) for stretch in stretches]
        return found

    def zero(self, progress: Progress) -> None:
        """Write zeros."""
        self._wiped = False
        for pointer, piece in self._slabs(progress):
            pattern.zero(pointer, piece.length)

    def verify_zero(self, progress: Progress) -> Sequence[Mismatch]:
        """Compare memory with zero."""
        self._wiped = False
        found: list[Mismatch] = []
        for pointer, piece in self._slabs(progress):
            stretches = pattern.nonzero(pointer, piece.address, piece.length)
            found += [self._mismatch(piece, stretch) for stretch in stretches]
        self._wiped = bool(self.chunks) and not found
        return found

    def disturb(self, offset_bytes: int) -> Callable[[], None]:
        """Flip all bits of the word at an offset into what was allocated."""
        place = next(self._pieces((offset_bytes, 8)))
        word = self.mapping.word(place.unit, place.address)
        before, self._wiped = word.value, False
        word.value = before ^ (2**64 - 1)

        def put_back() -> None:
            self._wiped = False
            word.value = before

        return put_back

    def readings(self) -> Readings:
        """Readings while memory traffic runs."""
        return self._read()

    def close(self) -> None:
        """Unmap the memory, renew the files of a wipe and leave the list of clients.

        Raises BackendFailed when a file cannot be renewed: a wipe that ends so did not succeed.
        """
        self.mapping.close()
        wiped, self._wiped = self._wiped, False
        closed, self._closed = self._closed, None
        try:
            if wiped:
                self._renew()
        finally:
            if closed is not None:
                closed()

    def _renew(self) -> None:
        for file in self._memory.files:
            covered = sum(chunk.length for chunk in self.chunks if chunk.unit == file.unit)
            layout.renew(file, zero=covered == file.size_bytes)

    def _words(self, nonce: bytes) -> pattern.Pattern:
        if self._pattern is None or self._pattern[0] != nonce:
            self._pattern = (nonce, pattern.Pattern(nonce))
        return self._pattern[1]

    def _mismatch(self, piece: Chunk, stretch: pattern.Stretch) -> Mismatch:
        address, length = stretch
        return Mismatch(piece.unit, address - self.units[piece.unit].offset_bytes, length)

    def _pieces(self, within: tuple[int, int] | None = None) -> Iterator[Chunk]:
        """What is allocated, or the part of it that lies `within` (offset, length)."""
        low, length = within or (0, self.covered)
        high = low + length
        if low < 0 or high > self.covered:
            raise InputInvalid(f"{length} B at {low} lie outside of {self.covered} B allocated")
        base = 0
        for chunk in self.chunks:
            start, end = max(low - base, 0), min(high - base, chunk.length)
            if start < end:
                yield Chunk(chunk.unit, chunk.address + start, end - start)
            base += chunk.length

    def _slabs(
        self, progress: Progress, within: tuple[int, int] | None = None
    ) -> Iterator[tuple[int, Chunk]]:
        """(pointer, piece) small enough to report progress between them."""
        share = max(self.covered // SLABS_PER_PASS // pattern.TILE, 1) * pattern.TILE
        slab, done = min(share, SLAB_LARGEST), 0
        for chunk in self._pieces(within):
            for start in range(0, chunk.length, slab):
                length = min(slab, chunk.length - start)
                piece = Chunk(chunk.unit, chunk.address + start, length)
                yield self.mapping.pointer(chunk.unit, piece.address), piece
                done += length
                progress(done)
