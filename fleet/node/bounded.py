"""Calls into a driver that may never return: bounded in time and in number (case B29).

Each key (an accelerator) has at most one call in flight; callers take turns. A call that did not
come back in its time keeps its key blocked and is reported at once to the next caller, so neither
threads nor log lines pile up. Threads are kept for a moment: a sweep makes two calls for each
accelerator, and starting a thread costs more than most of them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from fleet.core import errors

T = TypeVar("T")
K = TypeVar("K")
IDLE_S = 1.0
"""Time, s, a thread waits for another call before it ends."""


class _Call(Generic[T]):
    def __init__(self, key: str, act: Callable[[], T]) -> None:
        self.key = key
        self.done = threading.Event()
        self._act = act
        self._value: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._value = self._act()
        except BaseException as error:  # noqa: BLE001 - delivered to the caller, whatever it is
            self._error = error

    def value(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # None is a T where `act` returns None


class _Hands:
    """Daemon threads that make calls; those that are idle are used again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[_Call[Any]]] = []

    def take(self, call: _Call[Any]) -> None:
        """Have `call` made by an idle thread, or by a new one. Raises `DriverBusy`."""
        with self._lock:
            calls = self._idle.pop() if self._idle else None
        if calls is None:
            calls = queue.SimpleQueue()
            name = f"driver-call {call.key}"
            thread = threading.Thread(target=self._work, args=(calls,), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise errors.DriverBusy(  # no fault of the device
                    f"{call.key}: the driver cannot be asked: {error}",
                    remedy="raise the limit of processes of this service or host (pids.max)",
                ) from error
        calls.put(call)

    def _work(self, calls: queue.SimpleQueue[_Call[Any]]) -> None:
        while (call := self._next(calls)) is not None:
            threading.current_thread().name = f"driver-call {call.key}"
            call.run()
            threading.current_thread().name = "driver-call idle"
            with self._lock:  # before the caller goes on, whose next call may use this thread
                self._idle.append(calls)
            call.done.set()
            del call  # what it brought is the caller's, not kept while idle

    def _next(self, calls: queue.SimpleQueue[_Call[Any]]) -> _Call[Any] | None:
        """The next call, or None when there was none for `IDLE_S` and none is on its way."""
        while True:
            try:
                return calls.get(timeout=IDLE_S)
            except queue.Empty:
                with self._lock:
                    if calls in self._idle:
                        self._idle.remove(calls)
                        return None


def within(timeout_s: float, asked: Mapping[K, Callable[[], T]]) -> dict[K, T]:
    """The values of those of `asked` that came within `timeout_s`, all asked at the same time.

    What raised an error, or did not come, is left out; what comes later is dropped.
    """
    found: queue.SimpleQueue[tuple[K, T] | None] = queue.SimpleQueue()

    def ask(key: K, act: Callable[[], T]) -> None:
        try:
            found.put((key, act()))
        except Exception:  # noqa: BLE001 - whoever asks goes on without this one
            found.put(None)

    for key, act in asked.items():
        threading.Thread(target=ask, args=(key, act), name=f"ask {key}", daemon=True).start()
    deadline, values = time.monotonic() + timeout_s, {}
    for _ in asked:
        try:
            answer = found.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if answer is not None:
            values[answer[0]] = answer[1]
    return values


class BoundedCalls:
    """Runs calls on daemon threads, one at a time per key."""

    def __init__(self) -> None:
        self._hands = _Hands()
        self._lock = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}
        self._stuck: dict[str, threading.Event] = {}

    def run(self, key: str, act: Callable[[], T], *, timeout_s: float) -> T:
        """The value of `act`. Raises `BackendFailed` when it takes longer than `timeout_s`, and
        `DriverBusy` where the host has no thread for it."""
        call = _Call(key, act)
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
            self._hands.take(call)
            self._stuck[key] = call.done
            if not call.done.wait(timeout_s):
                raise errors.BackendFailed(f"{key}: no answer from the driver in {timeout_s} s")
        finally:
            turn.release()
        return call.value()
