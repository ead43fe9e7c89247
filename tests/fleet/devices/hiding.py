"""Real processes that have a file open where a look at the process does not show it."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fleet.devices.wipe.orders import eventually

PLAIN, OWN_TABLE, DEAD_LEADER = "plain", "own-table", "dead-leader"
WAYS = (PLAIN, OWN_TABLE, DEAD_LEADER)
_EXIT = {"x86_64": 60}.get(platform.machine(), 93)
_CODE = f"""
import ctypes, mmap, os, sys, threading
libc = ctypes.CDLL(None)
path, way, act = sys.argv[1:]
def hide():
    if way == {OWN_TABLE!r}:
        assert libc.unshare(0x400) == 0
    kept = os.open(path, os.O_RDWR)
    if act == "mapped":
        window = mmap.mmap(kept, 0)
        os.close(kept)
    os.write(1, b"there\\n")
    while True:
        threading.Event().wait()
threading.Thread(target=hide).start()
if way == {DEAD_LEADER!r}:
    libc.syscall({_EXIT}, 0)
threading.Event().wait()
"""


@contextmanager
def hiding(path: Path, way: str, act: str = "open") -> Iterator[int]:
    """A process one thread of which has the file open, or only "mapped"; its pid."""
    with subprocess.Popen(
        (sys.executable, "-S", "-c", _CODE, str(path), way, act), stdout=subprocess.PIPE
    ) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == b"there\n"
            if way == DEAD_LEADER:
                stat = Path(f"/proc/{started.pid}/stat")
                assert eventually(lambda: stat.read_bytes().rpartition(b")")[2].split()[0] == b"Z")
            yield started.pid
        finally:
            started.kill()
