"""Costs by ratio: one thing against a yardstick that takes turns with it in the same run.

CPU time, because others use the machine as well; the least of several rounds, because disturbance
only ever adds. What is left is a ratio that hardly depends on machine or load, and that doubles
when the work does.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROUNDS, ROUNDS_MAX = 5, 20
TILE_BYTES = 256 * 1024
_DOCUMENT = {
    f"key {number}": {"text": "x" * 20, "numbers": list(range(8)), "none": None}
    for number in range(40)
}

Act = Callable[[], object]


class Slower(AssertionError):
    """A path costs more, in yardsticks, than it may."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The least CPU seconds of one round each."""

    path_s: float = math.inf
    yardstick_s: float = math.inf

    @property
    def ratio(self) -> float:
        """How many yardsticks a round of the path costs."""
        return self.path_s / self.yardstick_s

    def judge(self, *, most: float) -> None:
        """Raise `Slower` unless a round of the path costs at most `most` yardsticks."""
        if self.ratio > most:
            raise Slower(
                f"{self.path_s * 1e3:.2f} ms CPU are {self.ratio:.2f} yardsticks of"
                f" {self.yardstick_s * 1e3:.2f} ms; at most {most} are allowed"
            )


def guard(
    path: Act,
    yardstick: Act,
    *,
    most: float,
    rounds: int = ROUNDS,
    rounds_max: int = ROUNDS_MAX,
    spent: Callable[[Callable[[], Any]], float] | None = None,
) -> Measured:
    """Raise `Slower` when a round of `path` costs more than `most` rounds of `yardstick`.

    Both once to warm up, then in turns: `rounds` times, and up to `rounds_max` while the ratio is
    too large, for something may have been in the way of all of them. `spent`: what a round of the
    path costs, CPU seconds; None: all that this process spends on it.
    """
    spent = spent or cpu_s
    yardstick()
    path()
    found = Measured()
    for turn in range(1, rounds_max + 1):
        yardstick_s, path_s = cpu_s(yardstick), spent(path)
        found = Measured(min(found.path_s, path_s), min(found.yardstick_s, yardstick_s))
        if turn >= rounds and found.ratio <= most:
            break
    found.judge(most=most)
    return found


def told(act: Callable[[], float]) -> float:
    """What a path says itself that it has spent, CPU seconds: it leaves others' work out."""
    return act()


def cpu_s(act: Act) -> float:
    """CPU seconds of this process, all threads, during `act`."""
    began = time.process_time()
    act()
    return time.process_time() - began


def python_work() -> None:
    """JSON there and back, sorting, and SHA-256: what most of the paths are made of."""
    for _ in range(40):
        text = json.dumps(_DOCUMENT, sort_keys=True)
        json.loads(text)
        hashlib.sha256(text.encode()).hexdigest()


def environments() -> None:
    """The environment of every process, read as plainly as can be."""
    for name in os.listdir("/proc"):  # noqa: PTH208 - nothing may be added to what is measured
        if name.isdecimal():
            try:
                descriptor = os.open(f"/proc/{name}/environ", os.O_RDONLY)
            except OSError:
                continue
            try:
                os.read(descriptor, 1 << 16)
            except OSError:
                continue
            finally:
                os.close(descriptor)


def passes_over(path: Path) -> Callable[[], None]:
    """memset, memcmp, memset, memcmp over a mapping of the file: what a wipe is made of."""
    libc = ctypes.CDLL(None)
    for function in (libc.memset, libc.memcmp):
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    libc.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)

    def passes() -> None:
        with path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            mapped = mmap.mmap(file.fileno(), size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        first = ctypes.c_char.from_buffer(mapped)
        begin = ctypes.addressof(first)
        for value in (0xA5, 0):
            tile = ctypes.create_string_buffer(bytes([value]) * TILE_BYTES, TILE_BYTES)
            libc.memset(begin, value, size)
            for place in range(begin, begin + size, TILE_BYTES):
                assert not libc.memcmp(place, tile, min(TILE_BYTES, begin + size - place))
        del first
        mapped.close()

    return passes
