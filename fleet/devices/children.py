"""Processes that ask a driver and can be killed: one for each accelerator, none of them trusted.

A child that does not answer in its time is killed. One that cannot be killed is stuck in the
kernel: no second one is sent after it, so that nothing piles up, also over restarts of the service.
"""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import fleet
from fleet.core import errors
from fleet.devices.wipe.identity import MARKER, is_dying, marked
from fleet.rpc import wire

FIRST_S = 60.0
"""Time, s, for the first look at devices: a driver that nothing keeps loaded starts up first."""
QUICK_S = 8.0
"""Time, s, for readings and processes: below `HealthPolicy.reading_timeout_s`."""
KILL_WAIT_S = 1.0
NO_DRIVER = "no driver"
"""Key of the child that is asked only what needs no driver: it never waits for one."""


_T = TypeVar("_T")


class NoAnswer(errors.BackendFailed):
    """A child did not answer in its time and was ended."""


class Children:
    """The children of one back end, by key. Started by one thread that lives until `close`."""

    def __init__(self, kind: str, settings: Mapping[str, Any]) -> None:
        self._arguments = (kind, json.dumps(dict(settings)))
        self._lock = threading.Lock()
        self._slots: dict[str, _Slot] = {}
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._alone: str | None = None
        """The only key that may be asked now."""

    def call(self, key: str, name: str, given: Mapping[str, Any], timeout_s: float) -> Any:
        """The answer of the child `key`, started if need be.

        Raises what the back end raised, `NoAnswer` when none came in `timeout_s`, and `DriverBusy`
        while the driver starts or another accelerator must have it alone.
        """
        deadline = time.monotonic() + timeout_s
        slot = self._slot(key)
        if self._alone not in (None, key):
            raise errors.DriverBusy(f"{slot.name}: waits for the work on {self._alone}")
        if key not in ("", NO_DRIVER):
            self._open(slot, key, deadline)
        if not slot.turn.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise errors.BackendFailed(f"{slot.name}: the driver was busy for {timeout_s:.0f} s")
        try:
            if slot.child is None or not slot.child.tell(name, given):
                slot.child = self._start(slot)
                slot.child.tell(name, given)
            return slot.child.answer(name, deadline)
        finally:
            slot.turn.release()

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Keep every other child from the driver: it opens all it sees, and what is open is not
        reset. What they are asked for now is waited for; new calls raise `DriverBusy`.

        Raises `DriverBusy` while another key is alone.
        """
        with self._lock:
            if self._alone not in (None, key):
                raise errors.DriverBusy(f"{self._alone} has the driver alone")
            self._alone = key
        try:
            self._rest(but=key)
            yield
        finally:
            self._alone = None

    def _rest(self, *, but: str) -> None:
        with self._lock:
            others = [slot for key, slot in self._slots.items() if key != but]
        for slot in others:
            if slot.turn.acquire(timeout=QUICK_S):
                try:
                    child, slot.child = slot.child, None
                    if child is not None:
                        child.end()
                finally:
                    slot.turn.release()

    def renew(self) -> None:
        """End the children that nobody waits for; the next call starts a new one."""
        with self._lock:
            slots = list(self._slots.values())
        for slot in slots:
            if slot.turn.acquire(blocking=False):
                try:
                    child, slot.child = slot.child, None
                    if child is not None:
                        child.end()
                finally:
                    slot.turn.release()

    def close(self) -> None:
        """End all children; none is started afterwards."""
        with self._lock:
            self._closed = True
            slots, thread = list(self._slots.values()), self._thread
        for slot in slots:
            if slot.child is not None:
                slot.child.end()
        if thread is not None:
            self._asked.put(None)
            thread.join()

    def _slot(self, key: str) -> _Slot:
        with self._lock:
            name = f"{self._arguments[0]} driver, {key or 'all'}"
            return self._slots.setdefault(key, _Slot(name))

    def _open(self, slot: _Slot, key: str, deadline: float) -> None:
        """See to it that the child has opened its accelerator, which may take a driver's start.

        Nobody waits for that longer than for an answer: to end a child that starts the driver
        would only make the next one start it again.
        """
        with slot.lock:
            if slot.opening is None:
                if slot.child is not None and slot.child.running:
                    return
                slot.opening = self._opening(slot, key)
            opening = slot.opening
        try:
            opening.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise errors.DriverBusy(f"{slot.name}: the driver is starting") from None
        finally:
            with slot.lock:
                if opening.done() and slot.opening is opening:
                    slot.opening = None

    def _opening(self, slot: _Slot, key: str) -> Future[None]:
        opened: Future[None] = Future()

        def open_it() -> None:
            with slot.turn:
                child, slot.child = slot.child, None
                if child is not None:
                    child.end()
                slot.child = self._start(slot)
                slot.child.tell("open", {"accelerator": key})
                try:
                    slot.child.answer("open", time.monotonic() + FIRST_S)
                except NoAnswer:
                    raise
                except errors.FleetError:
                    return  # the call it was opened for is told the same

        running = threading.Thread(
            target=_complete, args=(opened, open_it), name=f"open {slot.name}", daemon=True
        )
        running.start()
        return opened

    def _start(self, slot: _Slot) -> _Child:
        survivors = [pid for pid in marked(slot.name) if is_dying(pid)]
        if survivors:
            raise errors.BackendFailed(
                f"{slot.name}: process {survivors[0]} still waits for the driver and cannot be"
                " ended",
                remedy="if it never returns the host needs a reboot; other devices go on",
            )
        made: Future[_Child] = Future()

        def start() -> _Child:
            try:
                return _Child(slot.name, self._arguments)
            except (OSError, ValueError) as error:
                raise errors.BackendFailed(
                    f"{slot.name}: no process can be started: {error}"
                ) from error

        with self._lock:
            if self._closed:
                raise errors.BackendFailed("the node service is closing")
            if self._thread is None:
                # The kernel's parent-death signal fires when the starting *thread* ends.
                self._thread = threading.Thread(target=self._work, name="drivers", daemon=True)
                self._thread.start()
        self._asked.put(lambda: _complete(made, start))
        return made.result()

    def _work(self) -> None:
        while (task := self._asked.get()) is not None:
            task()


def _complete(future: Future[_T], act: Callable[[], _T]) -> None:
    """Do it and end what waits for it, whatever comes of it: nothing stays "starting" for ever."""
    try:
        future.set_result(act())
    except BaseException as error:  # noqa: BLE001 - whoever waits must get it
        future.set_exception(error)


class _Slot:
    """Whose turn it is with one child."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn = threading.Lock()
        self.child: _Child | None = None
        self.lock = threading.Lock()
        self.opening: Future[None] | None = None


class _Child:
    """One running child. Used by one thread at a time."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        source = str(Path(fleet.__file__).parent.parent)
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._name = name
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-m", "fleet.devices.child", *arguments, str(os.getpid())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, MARKER: name, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self._calls = _stream(self._process.stdin)
        self._answers = _stream(self._process.stdout)
        os.set_blocking(self._answers.fileno(), False)

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def tell(self, name: str, given: Mapping[str, Any]) -> bool:
        """Send a call; False when the child is gone, which then has heard nothing of it."""
        try:
            self._calls.write(wire.call(name, given))
            self._calls.flush()
        except (OSError, ValueError):
            self.end()
            return False
        return True

    def answer(self, name: str, deadline: float) -> Any:
        """The answer to the call sent last. A child that gives none in time is ended."""
        try:
            line = self._line(deadline)
        except (OSError, ValueError):
            line = b""
        if line.endswith(b"\n"):
            return wire.parse_answer(line)
        gone = not self.running
        self.end()
        why = "ended without an answer" if gone else "gave no answer in time"
        raise NoAnswer(f"{self._name}: {name} {why}")

    def end(self) -> None:
        """Kill it and wait a moment; what cannot be killed is found again by its mark."""
        with suppress(OSError):
            self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_WAIT_S)
        for stream in (self._calls, self._answers):
            with suppress(OSError):
                stream.close()

    def _line(self, deadline: float) -> bytes:
        found = b""
        watched = select.poll()  # a node with many devices has descriptors beyond 1,024
        watched.register(self._answers, select.POLLIN)
        while not found.endswith(b"\n"):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not watched.poll(left_s * 1000.0):
                return found
            piece = os.read(self._answers.fileno(), 1 << 20)
            if not piece:
                return found
            found += piece
        return found


def _stream(found: IO[bytes] | None) -> IO[bytes]:
    if found is None:
        raise errors.BackendFailed("the driver's process has no pipe")
    return found
