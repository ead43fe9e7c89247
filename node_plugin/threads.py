"""Blocking calls in threads, awaited from the event loop, never cut short by it.

Each call gets a thread of its own and none is queued: a call that waits for a free thread would
start at a time nobody expects any more, after kubelet has given it up and gone on. Threads cost
little beside a claim's disk writes. They are daemons: what they do is journalled step by step, so
the process may end under them, and must not be held up by one that waits for a device.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

_NUMBERS = itertools.count(1)


class CallThreads:
    """Starts calls; counts those in work, also where nobody waits for them any more."""

    def __init__(self, *, calls_max: int) -> None:
        self._calls_max = calls_max
        self._lock = threading.Lock()
        self._in_work = 0

    @property
    def in_work(self) -> int:
        """Calls that have not returned."""
        with self._lock:
            return self._in_work

    def start(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run `call`, which must not raise, and settle the future with what it returns.

        To be called from the event loop. Cancelling the future, or closing the loop, leaves the
        call alone. Raises RuntimeError when `calls_max` are in work or no thread can be had.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                outcome = call()
            finally:
                with self._lock:
                    self._in_work -= 1
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(settle, waiter, outcome)

        thread = threading.Thread(target=work, name=f"claim-call-{next(_NUMBERS)}", daemon=True)
        with self._lock:
            if self._in_work >= self._calls_max:
                raise RuntimeError(f"{self._in_work} calls are in work, no more are taken")
            self._in_work += 1
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                self._in_work -= 1
            raise
        return waiter


def settle(waiter: asyncio.Future[T], outcome: T) -> None:
    """Give `waiter` its result unless somebody was faster."""
    if not waiter.done():
        waiter.set_result(outcome)
