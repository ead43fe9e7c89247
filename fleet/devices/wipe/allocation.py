"""Taking all the memory an allocator will give, in chunks from large to small. Pure.

"Free" is not "allocatable in one piece": memory has holes, and the last chunks are small. So a
size that is refused is halved, down to the smallest block the driver hands out (case B06).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fleet.core.errors import OutOfMemory

Chunk = TypeVar("Chunk")
REFUSALS = 2
"""Refusals in a row that end a size: one alone may be passing."""


def take_all(
    take: Callable[[int], Chunk], *, largest_bytes: int, smallest_bytes: int
) -> list[Chunk]:
    """Call `take(size)` until it refuses the smallest size too; returns the chunks in order.

    `take` raises OutOfMemory when it cannot give a chunk of that size; other errors pass through.
    Ends because every success uses memory up and every size is refused at most `REFUSALS` times.
    """
    chunks: list[Chunk] = []
    size, refused = largest_bytes, 0
    while size >= smallest_bytes:
        try:
            chunks.append(take(size))
        except OutOfMemory:
            refused += 1
            if refused < REFUSALS:
                continue
            at_the_end = size == smallest_bytes
            size = size // 2 if at_the_end else max(size // 2, smallest_bytes)
        refused = 0
    return chunks
