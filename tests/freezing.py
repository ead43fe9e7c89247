"""Stopping a process for certain: its threads take the signal one after the other."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

WAIT_S = 10.0
_PAUSE_S = 0.001


def freeze(pid: int) -> None:
    """SIGSTOP; returns once no thread of the process runs any more."""
    os.kill(pid, signal.SIGSTOP)
    ends, pause = time.monotonic() + WAIT_S, threading.Event()
    while not all(state in "TtZX" for state in _states(pid)):
        assert time.monotonic() < ends, f"{pid} does not stop"
        pause.wait(_PAUSE_S)


def _states(pid: int) -> list[str]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a thread that ended meanwhile
            found.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return found
