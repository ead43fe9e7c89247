"""Taking all memory in shrinking chunks."""

from __future__ import annotations

from fleet.core.errors import OutOfMemory
from fleet.devices.wipe.allocation import take_all

GIB = 1 << 30
KIB64 = 64 * 1024


class Holes:
    """An allocator with holes of given sizes that refuses the first `refusals` calls."""

    def __init__(self, *sizes: int, refusals: int = 0) -> None:
        self.sizes = list(sizes)
        self.refusals = refusals

    def take(self, size: int) -> int:
        if self.refusals:
            self.refusals -= 1
            raise OutOfMemory("not now")
        for place, left in enumerate(self.sizes):
            if left >= size:
                self.sizes[place] = left - size
                return size
        raise OutOfMemory("no hole")


def test_b06_every_hole_is_emptied() -> None:
    """B06: with six holes in 80 GiB, chunks shrink until nothing more can be had."""
    holes = Holes(32 * GIB, 16 * GIB, 16 * GIB, 8 * GIB, 4 * GIB, GIB // 2)
    chunks = take_all(holes.take, largest_bytes=64 * GIB, smallest_bytes=KIB64)
    assert sum(chunks) == 76 * GIB + GIB // 2
    assert holes.sizes == [0] * 6


def test_b06_a_passing_refusal_is_tried_again() -> None:
    """B06: an allocation that fails once and then succeeds loses no memory and no size."""
    holes = Holes(4 * GIB, refusals=1)
    assert take_all(holes.take, largest_bytes=4 * GIB, smallest_bytes=KIB64) == [4 * GIB]


def test_what_is_smaller_than_the_smallest_chunk_stays() -> None:
    """A remainder below the driver's block is left and will count as residual."""
    holes = Holes(KIB64 + 4096)
    assert take_all(holes.take, largest_bytes=GIB, smallest_bytes=KIB64) == [KIB64]
    assert holes.sizes == [4096]


def test_a_smallest_size_that_is_no_half_of_the_largest_is_reached() -> None:
    """Halving ends at the smallest size itself, not somewhere above it."""
    holes = Holes(3 * 4096)
    chunks = take_all(holes.take, largest_bytes=5 * 4096, smallest_bytes=3 * 4096)
    assert chunks == [3 * 4096]


def test_an_allocator_that_never_gives_ends_the_loop() -> None:
    """Refusal of every size ends with nothing taken, not with an endless loop."""
    assert take_all(Holes().take, largest_bytes=8 * GIB, smallest_bytes=KIB64) == []
