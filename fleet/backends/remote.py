"""A real back end as the node service holds it: every call goes to a process that can be killed.

One child for each accelerator, and one for what concerns all of them: a driver that hangs on one
card must not keep the others from answering (B29). A child that does not answer in its time is
killed. One that cannot be killed is stuck in the kernel: its accelerator stays unresponsive and no
second child is sent after it, so that nothing piles up, also over restarts of the service.
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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import fleet
from fleet import errors
from fleet.backends import coding
from fleet.backends.base import Grant, Instance, MemorySession, ResetOutcome
from fleet.door import wire
from fleet.health.readings import Readings
from fleet.model import Accelerator, Device, Process, UnitId, Uuid
from fleet.wipe.identity import MARKER, is_dying, marked

QUICK_S = 8.0
"""Time, s, for readings and processes: below `HealthPolicy.reading_timeout_s`."""
WALK_S = 30.0
"""Time, s, for listing instances: walking them all takes a driver about 10 s under load."""
LONG_S = 150.0
"""Time, s, for what changes the device: the kernel may wait a minute for a reset to end, and the
vendor's tool is given longer."""
FIRST_S = 60.0
"""Time, s, for an inventory: a driver that nothing keeps loaded starts up first."""
APART_S = 600.0
"""Time, s, that accelerators are asked one by one after asking all has hung."""
KILL_WAIT_S = 1.0


class NoAnswer(errors.BackendFailed):
    """A child did not answer in its time and was ended."""


class RemoteBackend:
    """`Backend`, `CanReset` and `CanPartition` through children. Safe for several threads."""

    simulated = False

    def __init__(self, kind: str, settings: Mapping[str, Any]) -> None:
        """`kind` and `settings` as `fleet.backends.registry.build` takes them."""
        self.kind = kind
        self._settings = dict(settings)
        self._children = Children(kind, self._settings)
        self._owners: dict[Uuid, Uuid] = {}
        """Accelerator by device: all calls for one go to the same child."""
        self._apart_until = float("-inf")

    def close(self) -> None:
        """End the children."""
        self._children.close()

    def settings(self) -> Mapping[str, Any]:
        """What a worker needs to reach the devices directly."""
        return self._settings

    def inventory(self) -> Sequence[Accelerator]:
        """All accelerators. Raises `DriverAbsent`, `BackendFailed`.

        Where one of them hangs whoever asks all (B29), each is asked by its own child for a while;
        one that does not answer is listed as it is remembered.
        """
        if time.monotonic() >= self._apart_until:
            try:
                found = self._children.call("", "inventory", {}, FIRST_S)
                return self._known(coding.accelerators_from(found))
            except NoAnswer:
                self._apart_until = time.monotonic() + APART_S
        roll = self._children.call("", "roll", {}, QUICK_S)
        if not roll:
            raise errors.BackendFailed("the driver does not answer, and lists no device by itself")
        with ThreadPoolExecutor(len(roll), "inventory") as pool:
            return self._known(tuple(pool.map(self._one, map(Uuid, roll))))

    def _one(self, uuid: Uuid) -> Accelerator:
        given = {"accelerator": uuid, "silent": False}
        try:
            found = self._children.call(uuid, "one", given, QUICK_S)
        except (errors.BackendFailed, errors.DeviceLost):
            found = self._children.call("", "one", {**given, "silent": True}, QUICK_S)
        return coding.accelerators_from(found)[0]

    def _known(self, found: Sequence[Accelerator]) -> Sequence[Accelerator]:
        self._owners = {device.uuid: one.uuid for one in found for device in one.devices}
        return found

    def readings(self, accelerator: Uuid) -> Readings:
        """Health readings. Raises `DeviceLost`, `BackendFailed`."""
        given = {"accelerator": accelerator}
        return Readings.from_json(self._children.call(accelerator, "readings", given, QUICK_S))

    def processes(self, accelerator: Uuid) -> Sequence[Process]:
        """Processes on an accelerator or partition. Raises `BackendFailed`."""
        given = {"accelerator": accelerator}
        owner = self._owners.get(accelerator, accelerator)
        found = self._children.call(owner, "processes", given, QUICK_S)
        return coding.processes_from(found)

    def holders(self, accelerator: Uuid) -> Mapping[Uuid, Sequence[Process]]:
        """Processes on an accelerator and on each of its partitions, in one call."""
        given = {"accelerator": accelerator}
        found = self._children.call(accelerator, "holders", given, WALK_S)
        return {Uuid(name): coding.processes_from(listed) for name, listed in found.items()}

    def strays(self) -> Sequence[str]:
        """Open faults of no device known, in words."""
        return tuple(str(one) for one in self._children.call("", "strays", {}, QUICK_S))

    def grant(self, device: Device) -> Grant:
        """What a container needs. Raises `DeviceLost`, `BackendFailed`."""
        given = {"device": coding.device(device)}
        return coding.grant_from(self._children.call(device.accelerator, "grant", given, QUICK_S))

    def agent_grant(self) -> Grant:
        """What our own node service needs."""
        return coding.grant_from(self._children.call("", "agent_grant", {}, FIRST_S))

    def session(self, accelerator: Uuid, units: Sequence[UnitId]) -> MemorySession:
        """Memory is opened by a wipe worker, never here. Raises `BackendFailed`."""
        raise errors.BackendFailed(
            f"memory of {accelerator} ({len(units)} units) is only opened inside a wipe worker"
        )

    def reset(self, accelerator: Uuid) -> ResetOutcome:
        """Reset. A back end that cannot says so in the outcome.

        Children of other accelerators may have this one open, as drivers open all they see; they
        are ended first and start again when they are asked next.
        """
        given = {"accelerator": accelerator}
        self._children.rest(but=accelerator)
        found = self._children.call(accelerator, "reset", given, LONG_S)
        if found is None:
            detail = f"the {self.kind} back end cannot reset"
            return ResetOutcome(done=False, method="", detail=detail)
        return coding.reset_from(found)

    def partitioned(self, device: Device) -> bool:
        """Whether `device` is reached through an instance now."""
        given = {"device": coding.device(device)}
        return bool(self._children.call(device.accelerator, "partitioned", given, QUICK_S))

    def instances(self, accelerator: Uuid) -> Sequence[Instance]:
        """The instances there are."""
        given = {"accelerator": accelerator}
        found = self._children.call(accelerator, "instances", given, WALK_S)
        return tuple(coding.instance_from(one) for one in found)

    def make(self, device: Device) -> Instance:
        """Make an instance."""
        given = {"device": coding.device(device)}
        return coding.instance_from(self._children.call(device.accelerator, "make", given, LONG_S))

    def unmake(self, instance: Instance) -> None:
        """Remove an instance."""
        given = {"instance": coding.instance(instance)}
        self._children.call(instance.accelerator, "unmake", given, LONG_S)

    def divide(self, accelerator: Uuid, *, on: bool) -> None:
        """Switch partitioning. As for a reset, no child of ours may have the accelerator open."""
        self._children.rest(but=accelerator)
        given = {"accelerator": accelerator, "on": on}
        self._children.call(accelerator, "divide", given, LONG_S)


class Children:
    """The children of one back end, by key. Started by one thread that lives until `close`."""

    def __init__(self, kind: str, settings: Mapping[str, Any]) -> None:
        self._arguments = (kind, json.dumps(dict(settings)))
        self._lock = threading.Lock()
        self._slots: dict[str, _Slot] = {}
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def call(self, key: str, name: str, given: Mapping[str, Any], timeout_s: float) -> Any:
        """The answer of the child `key`, started if need be.

        Raises what the back end raised, or `BackendFailed` when no answer came in `timeout_s`.
        """
        with self._lock:
            slot = self._slots.setdefault(
                key, _Slot(f"{self._arguments[0]} driver, {key or 'all'}")
            )
        deadline = time.monotonic() + timeout_s
        if not slot.turn.acquire(timeout=timeout_s):
            raise errors.BackendFailed(f"{slot.name}: the driver was busy for {timeout_s:.0f} s")
        try:
            child = slot.child
            if child is None or not child.tell(name, given):
                child = slot.child = self._start(slot)
                child.tell(name, given)
            return child.answer(name, deadline)
        finally:
            slot.turn.release()

    def rest(self, *, but: str) -> None:
        """End all children that nobody waits for, except `but`."""
        with self._lock:
            others = [slot for key, slot in self._slots.items() if key != but]
        for slot in others:
            if slot.turn.acquire(timeout=KILL_WAIT_S):
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

    def _start(self, slot: _Slot) -> _Child:
        survivors = [pid for pid in marked(slot.name) if is_dying(pid)]
        if survivors:
            raise errors.BackendFailed(
                f"{slot.name}: process {survivors[0]} still waits for the driver and cannot be"
                " ended",
                remedy="if it never returns the host needs a reboot; other devices go on",
            )
        made: Future[_Child] = Future()

        def start() -> None:
            try:
                made.set_result(_Child(slot.name, self._arguments))
            except OSError as error:
                made.set_exception(
                    errors.BackendFailed(f"{slot.name}: no process can be started: {error}")
                )

        with self._lock:
            if self._closed:
                raise errors.BackendFailed("the node service is closing")
            if self._thread is None:
                # The kernel's parent-death signal fires when the starting *thread* ends.
                self._thread = threading.Thread(target=self._work, name="drivers", daemon=True)
                self._thread.start()
        self._asked.put(start)
        return made.result()

    def _work(self) -> None:
        while (task := self._asked.get()) is not None:
            task()


class _Slot:
    """Whose turn it is with one child."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn = threading.Lock()
        self.child: _Child | None = None


class _Child:
    """One running child. Used by one thread at a time."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        source = str(Path(fleet.__file__).parent.parent)
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._name = name
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-m", "fleet.backends.child", *arguments, str(os.getpid())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, MARKER: name, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self._calls = _stream(self._process.stdin)
        self._answers = _stream(self._process.stdout)
        os.set_blocking(self._answers.fileno(), False)

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
        gone = self._process.poll() is not None
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
        while not found.endswith(b"\n"):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select((self._answers,), (), (), left_s)[0]:
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
