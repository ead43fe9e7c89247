"""Calls into a driver that may never return: bounded in time and in number (case B29).

Each key (an accelerator) has at most one call in flight; callers take turns. A call that did not
come back in its time keeps its key blocked and is reported at once to the next caller, so neither
threads nor log lines pile up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from fleet import errors

T = TypeVar("T")


class _Call(Generic[T]):
    def __init__(self, act: Callable[[], T]) -> None:
        self.done = threading.Event()
        self._act = act
        self._value: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._value = self._act()
        except BaseException as error:  # noqa: BLE001 - delivered to the caller, whatever it is
            self._error = error
        finally:
            self.done.set()

    def value(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # None is a T where `act` returns None


class BoundedCalls:
    """Runs calls on daemon threads, one at a time per key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}
        self._stuck: dict[str, threading.Event] = {}

    def run(self, key: str, act: Callable[[], T], *, timeout_s: float) -> T:
        """The value of `act`, or `BackendFailed` when it takes longer than `timeout_s`."""
        call = _Call(act)
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        if not turn.acquire(timeout=timeout_s):
            raise errors.BackendFailed(f"{key}: the driver was busy for {timeout_s} s")
        try:
            earlier = self._stuck.get(key)
            if earlier is not None and not earlier.is_set():
                raise errors.BackendFailed(
                    f"{key}: an earlier call into the driver has not returned",
                    remedy="if it never returns the host needs a reboot; other devices go on",
                )
            threading.Thread(target=call.run, name=f"driver-call {key}", daemon=True).start()
            self._stuck[key] = call.done
            if not call.done.wait(timeout_s):
                raise errors.BackendFailed(f"{key}: no answer from the driver in {timeout_s} s")
        finally:
            turn.release()
        return call.value()
