"""A process that keeps a simulated device open: ``python -m ...holder MEMORY SECONDS NAME``.

It plays a tenant, a daemon, or what a wedged worker leaves behind, and ends by itself.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import time
from pathlib import Path

_PR_SET_NAME = 15


def hold(memory: Path, seconds: float, name: str) -> None:
    """Keep the file open and mapped for `seconds` under the process name `name`."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
    with memory.open("rb") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ):
        time.sleep(seconds)


if __name__ == "__main__":
    hold(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
