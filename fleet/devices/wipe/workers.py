"""Starting wipe workers, following them, and proving them gone.

A worker must not outlive the service, and nobody may believe that it is gone without proof. So all
workers are started by one thread that lives as long as the service (the kernel's parent-death
signal fires when the starting *thread* ends), each waits for `go` until its identity is in the
journal, and `kill` answers True only when no living process is the worker or comes from it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from fleet.core.boot import kernel_boot_id
from fleet.core.errors import BackendFailed
from fleet.core.processes import MARKER, WorkerIdentity, end, survivors
from fleet.devices.wipe.environment import environment
from fleet.devices.wipe.plan import WipeOrder
from fleet.devices.wipe.result import WipeResult
from fleet.rpc.child import ChildProcess, Starter

__all__ = [
    "Died",
    "Ended",
    "Finished",
    "Progressed",
    "Spawner",
    "Worker",
    "WorkerIdentity",
    "end",
    "survivors",
]

READY_WAIT_S = 30.0
_TAIL_BYTES = 2000
_ABANDON_WAIT_S = 1.0
_LONGEST_LINE = 16 << 20


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far a wipe is: bytes over all passes."""

    phase: str = ""
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The worker told its whole story and left."""

    result: WipeResult


@dataclass(frozen=True, slots=True)
class Died:
    """The worker left without a complete report. `exit_code` is negative for a signal."""

    detail: str
    exit_code: int


Ended = Finished | Died


class Spawner:
    """Starts workers from one thread that lives until `close`: then they all die with it."""

    def __init__(self, *, spares: int = 0) -> None:
        """`spares`: devices for which `keep_ready` is worth calling."""
        self.spares = spares
        self._starter = Starter("wipe-spawner")
        self._spares: dict[str, Worker] = {}
        self._lock = threading.Lock()

    def keep_ready(self, device: str, backend: str) -> None:
        """Have a worker for `device` started already when it is asked for; does not wait.

        A spare has imported what it needs and has been told nothing: it opens no device before its
        order, and it is journalled like any other before its `go`.
        """
        with self._lock:
            spare = self._spares.get(device)
            if spare is not None and spare.waiting:
                return
        self._starter.ask(lambda: self._add_spare(device, backend))

    def next_id(self, device: str) -> str:
        """The id to order a wipe of `device` under: the spare's, or a new one."""
        with self._lock:
            spare = self._spares.get(device)
            if spare is not None and spare.waiting:
                return spare.worker_id
        return uuid.uuid4().hex

    def spawn(self, order: WipeOrder, *, ready_wait_s: float = READY_WAIT_S) -> Worker:
        """Start a worker and wait until it is ready; it touches nothing before `Worker.go`.

        Raises BackendFailed when it cannot be started, refuses, or is not ready in time.
        """

        def start() -> Worker:
            try:
                seen = order.visible or order.device
                worker = self._spare(order) or Worker(order.worker_id, seen, order.backend)
                worker.give(order)
            except (OSError, ValueError) as error:
                raise BackendFailed(f"no wipe worker could be started: {error}") from error
            return worker

        made = self._starter.ask(start)
        if made is None:
            raise BackendFailed("no wipe worker is started any more: the service is closing")
        try:
            worker = made.result(ready_wait_s)
        except TimeoutError:
            made.add_done_callback(_abandon)
            raise BackendFailed(f"no wipe worker was started in {ready_wait_s:.0f} s") from None
        worker.wait_ready(ready_wait_s)
        return worker

    def close(self) -> None:
        """End the thread, and with it every worker still running."""
        self._starter.close()
        with self._lock:
            spares, self._spares = list(self._spares.values()), {}
        for spare in spares:
            spare.abandon(0.0)

    def _spare(self, order: WipeOrder) -> Worker | None:
        """The spare of exactly this order's id, taken from the shelf.

        A spare was started for the device under its own UUID: it cannot see an instance of it.
        """
        if order.visible not in ("", order.device):
            return None
        with self._lock:
            spare = self._spares.get(order.device)
            if spare is None or spare.worker_id != order.worker_id:
                return None
            return self._spares.pop(order.device)

    def _add_spare(self, device: str, backend: str) -> None:
        with self._lock:
            known = self._spares.get(device)
            if known is not None and known.waiting:
                return
            self._spares.pop(device, None)
        if known is not None:
            known.abandon(0.0)
        with suppress(OSError, ValueError):  # without a spare the wipe starts its own worker
            spare = Worker(uuid.uuid4().hex, device, backend)
            with self._lock:
                self._spares[device] = spare


class Worker:
    """One running worker. Safe to use from several threads."""

    def __init__(self, worker_id: str, device: str, backend: str) -> None:
        """Start the process: only called by the spawner's thread. It waits for its order.

        `device`: as its driver names it.
        """
        self.worker_id = worker_id
        self._lock = threading.Lock()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self._process = ChildProcess(
            (sys.executable, "-P", "-m", "fleet.devices.wipe.worker", backend),
            stderr=self._errors,
            environment=environment(os.environ, worker_id, device),
            mark=(MARKER, worker_id),
        )
        self._identity: WorkerIdentity | None = None
        self._progress = Progressed()
        self._result: WipeResult | None = None
        self._complete = False
        self._malformed = ""
        self._killed = False
        self._ended: Ended | None = None

    @property
    def waiting(self) -> bool:
        """Whether the process runs; before `give` it waits for its order."""
        return self._process.code is None

    def give(self, order: WipeOrder) -> None:
        """Hand the order over. A worker that is gone is found by `wait_ready`."""
        envelope = {"order": order.as_json(), "parent": os.getpid()}
        self._process.tell(json.dumps(envelope).encode() + b"\n")

    @property
    def identity(self) -> WorkerIdentity:
        """Who the worker is: to be journalled before `go`."""
        if self._identity is None:
            raise BackendFailed("the wipe worker has not said who it is")
        return self._identity

    def wait_ready(self, wait_s: float) -> None:
        """Wait for the ready line. Raises BackendFailed and kills the worker otherwise."""
        deadline = time.monotonic() + wait_s
        while self._identity is None and not self._process.silent:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            with self._lock:
                self._drain(min(left, 0.2))
        if self._identity is None:
            raise BackendFailed(f"the wipe worker did not become ready: {self.abandon(wait_s)}")

    def abandon(self, waited_s: float) -> str:
        """End a worker that never got its `go`; returns what is known about why."""
        self._process.kill(_ABANDON_WAIT_S)
        detail = self._malformed or self._tail() or f"nothing heard in {waited_s:.0f} s"
        self._close()
        return detail

    def go(self) -> None:
        """Let it begin. Raises BackendFailed when the worker is gone."""
        if not self._process.tell(b"go\n"):
            raise BackendFailed("the wipe worker was gone before it could begin")

    def progress(self) -> Progressed:
        """How far it is."""
        with self._lock:
            self._drain()
            return self._progress

    def wait(self, wait_s: float) -> None:
        """Return once it has said something or has ended, at the latest after `wait_s` seconds."""
        with self._lock:
            watched = self._process.watch()
        if watched is not None:
            watched.poll(wait_s * 1000.0)

    def poll(self) -> Ended | None:
        """How it ended, None while it runs. Finished only after the process has left too."""
        with self._lock:
            if self._ended is None:
                code = self._process.code
                self._drain()
                if code is not None:
                    self._ended = self._judge(code)
                    self._close()
            return self._ended

    def kill(self, wait_s: float) -> bool:
        """Kill it and wait up to `wait_s`: True only when nothing of it is alive."""
        self._killed = True
        left = self._process.kill(wait_s)
        self.poll()
        return not left

    def _judge(self, code: int) -> Ended:
        if self._malformed:
            return Died(f"malformed report: {self._malformed}", code)
        if not self._complete or self._result is None:
            return Died(f"no complete report (exit {code}) {self._tail()}".strip(), code)
        if code != 0 and not self._killed:
            return Died(f"exit {code} after the report {self._tail()}".strip(), code)
        return Finished(self._result)

    def _drain(self, wait_s: float = 0.0) -> None:
        """Read what the worker has said, waiting up to `wait_s` for a word."""
        for line in self._process.lines(wait_s):
            self._hear(line)
        if len(self._process.unfinished) > _LONGEST_LINE:
            self._malformed, self._process.unfinished = "a line without end", b""

    def _hear(self, line: bytes) -> None:
        try:
            said: Mapping[str, Any] = json.loads(line)
            ((topic, content),) = said.items()
            if topic == "progress":
                self._progress = Progressed(*content)
            elif topic == "ready":
                self._identity = WorkerIdentity(
                    self.worker_id,
                    int(content["pid"]),
                    int(content["start_time"]),
                    kernel_boot_id(),
                )
            elif topic == "result":
                self._result = WipeResult.from_json(content)
            elif topic == "end":
                self._complete = content == self.worker_id
            else:
                self._malformed = self._malformed or f"{topic}: {content}"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._malformed = self._malformed or f"{type(error).__name__} in {line[:200]!r}"

    def _tail(self) -> str:
        """The end of what it wrote to stderr."""
        if self._errors.closed:
            return ""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _TAIL_BYTES))
        return self._errors.read().decode(errors="replace").strip()

    def _close(self) -> None:
        self._process.close()
        self._errors.close()


def _abandon(late: Future[Worker]) -> None:
    """End a worker that was started after nobody waited for it any more."""
    if late.exception() is None:
        late.result().abandon(0.0)
