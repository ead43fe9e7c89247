"""Processes that ask a driver and can be killed: one for each accelerator, none of them trusted.

A child that does not answer in its time is killed. One that cannot be killed is stuck in the
kernel: no second one is sent after it, so that nothing piles up, also over restarts of the service.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fleet
from fleet.core import errors
from fleet.core.processes import MARKER, is_dying, marked
from fleet.rpc import wire
from fleet.rpc.child import DEVNULL, ChildProcess, Starter, complete

FIRST_S = 60.0
"""Time, s, for the first look at devices: a driver that nothing keeps loaded starts up first."""
QUICK_S = 8.0
"""Time, s, for readings and processes: below `HealthPolicy.reading_timeout_s`."""
KILL_WAIT_S = 1.0
NO_DRIVER = "no driver"
"""Key of the child that is asked only what needs no driver: it never waits for one."""


class NoAnswer(errors.BackendFailed):
    """A child did not answer in its time and was ended."""


class Children:
    """The children of one back end, by key. Started by one thread that lives until `close`."""

    def __init__(self, kind: str, settings: Mapping[str, Any]) -> None:
        self._arguments = (kind, json.dumps(dict(settings)))
        self._lock = threading.Lock()
        self._slots: dict[str, _Slot] = {}
        self._starter = Starter("drivers")
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
            if not slot.tell(name, given):
                slot.end()
                self._start(slot)
                slot.tell(name, given)
            return slot.answer(name, deadline)
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
            self._rest(but=key, wait_s=QUICK_S)
            yield
        finally:
            self._alone = None

    def renew(self) -> None:
        """End the children that nobody waits for; the next call starts a new one."""
        self._rest(but=None, wait_s=0.0)

    def _rest(self, *, but: str | None, wait_s: float) -> None:
        with self._lock:
            others = [slot for key, slot in self._slots.items() if key != but]
        for slot in others:
            if slot.turn.acquire(timeout=wait_s):
                try:
                    slot.end()
                finally:
                    slot.turn.release()

    def close(self) -> None:
        """End all children; none is started afterwards."""
        with self._lock:
            slots = list(self._slots.values())
        self._starter.close()
        for slot in slots:
            slot.end()

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
                child = slot.child
                if child is not None and child.code is None:
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
                slot.end()
                self._start(slot)
                slot.tell("open", {"accelerator": key})
                try:
                    slot.answer("open", time.monotonic() + FIRST_S)
                except NoAnswer:
                    raise
                except errors.FleetError:
                    return  # the call it was opened for is told the same

        running = threading.Thread(
            target=complete, args=(opened, open_it), name=f"open {slot.name}", daemon=True
        )
        running.start()
        return opened

    def _start(self, slot: _Slot) -> None:
        survivors = [pid for pid in marked(slot.name) if is_dying(pid)]
        if survivors:
            raise errors.BackendFailed(
                f"{slot.name}: process {survivors[0]} still waits for the driver and cannot be"
                " ended",
                remedy="if it never returns the host needs a reboot; other devices go on",
            )
        source = str(Path(fleet.__file__).parent.parent)
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        given = {**os.environ, MARKER: slot.name, "PYTHONPATH": os.pathsep.join(paths)}
        module = (sys.executable, "-P", "-m", "fleet.devices.child")
        command = (*module, *self._arguments, str(os.getpid()))

        def start() -> ChildProcess:
            try:
                return ChildProcess(command, stderr=DEVNULL, environment=given)
            except (OSError, ValueError) as error:
                raise errors.BackendFailed(
                    f"{slot.name}: no process can be started: {error}"
                ) from error

        made = self._starter.ask(start)
        if made is None:
            raise errors.BackendFailed("the node service is closing")
        slot.child = made.result()


class _Slot:
    """One child and whose turn it is with it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn = threading.Lock()
        self.child: ChildProcess | None = None
        self.lock = threading.Lock()
        self.opening: Future[None] | None = None

    def tell(self, name: str, given: Mapping[str, Any]) -> bool:
        """Send a call; False when the child is gone, which then has heard nothing of it."""
        return self.child is not None and self.child.tell(wire.call(name, given))

    def answer(self, name: str, deadline: float) -> Any:
        """The answer to the call sent last. A child that gives none in time is ended."""
        child = self.child
        lines = child.lines(deadline - time.monotonic()) if child is not None else []
        if lines:
            return wire.parse_answer(lines[0] + b"\n")
        gone = child is None or child.code is not None
        self.end()
        why = "ended without an answer" if gone else "gave no answer in time"
        raise NoAnswer(f"{self.name}: {name} {why}")

    def end(self) -> None:
        """Kill it and wait a moment; what cannot be killed is found again by its mark."""
        child, self.child = self.child, None
        if child is not None:
            child.kill(KILL_WAIT_S)
            child.close()
