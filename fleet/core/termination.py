"""How a service learns that it is to end: SIGTERM or SIGINT, whatever it inherited.

A mask of blocked signals is inherited by children and stays with a process that goes on. So who
blocks them puts the mask back, and who handles them unblocks them first: a service that was started
with SIGTERM blocked would otherwise never hear it, and be killed in the middle of its work.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENDS = frozenset({signal.SIGTERM, signal.SIGINT})


def told(stop: threading.Event) -> None:
    """Set `stop` at the first of the signals. Call it in the main thread."""
    for number in ENDS:
        signal.signal(number, lambda *_: stop.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)


@contextmanager
def awaited() -> Iterator[Callable[[], object]]:
    """Gives what waits for one of the signals; threads started inside leave them to the waiter."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        yield lambda: signal.sigwait(ENDS)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
