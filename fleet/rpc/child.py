"""Children of ours: started, followed, ended with what they started, and never believed gone.

The child's side, who it is and the proof that nothing of it lives are in `fleet.core.processes`.
No code of ours runs between fork and exec, so that gRPC's threads are no hazard (case B81).
"""

from __future__ import annotations

import os
import queue
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import IO, TypeVar

from fleet.core.processes import group, marked, start_time

PIPE, STDOUT, DEVNULL = subprocess.PIPE, subprocess.STDOUT, subprocess.DEVNULL
_STEP_S = 0.01
_PIECE = 1 << 20
"""More than a pipe holds: one reading takes all that a child that ended has said."""
_LEFT: list[subprocess.Popen[bytes]] = []
"""Children that outlived their kill: whoever lets go of one that runs is warned about it."""

_T = TypeVar("_T")


def complete(future: Future[_T], act: Callable[[], _T]) -> None:
    """Do it and end what waits for it, whatever comes of it: nothing stays "starting" for ever."""
    try:
        future.set_result(act())
    except BaseException as error:  # noqa: BLE001 - whoever waits must get it
        future.set_exception(error)


class Starter:
    """One thread that starts children, from the first until `close`: then they all die with it.

    The kernel's parent-death signal fires when the starting *thread* ends.
    """

    def __init__(self, name: str) -> None:
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, act: Callable[[], _T]) -> Future[_T] | None:
        """Have that thread do it; None: it is closed."""
        made: Future[_T] = Future()
        with self._lock:
            if self._closed:
                return None
            if self._thread.ident is None:
                self._thread.start()
            self._asked.put(lambda: complete(made, act))
        return made

    def close(self) -> None:
        """End the thread, and with it every child that is tied to it."""
        with self._lock:
            self._closed = True
        self._asked.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        while (task := self._asked.get()) is not None:
            task()


class ChildProcess:
    """One running child. Any thread may wait for it, kill it or end it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        stdin: int | IO[bytes] = PIPE,
        stdout: int | IO[bytes] | None = PIPE,
        stderr: int | IO[bytes] | None = None,
        directory: str | None = None,
        mark: tuple[str, str] | None = None,
        leads: bool = False,
    ) -> None:
        """Start it. Raises OSError or ValueError where that cannot be done.

        `mark`: the variable and the value by which everything it starts is known. `leads`: it leads
        a process group, and is killed with all of that; the session stays ours, and ends it, too.
        """
        _LEFT[:] = [left for left in _LEFT if left.poll() is None]
        self._leads, self._mark = leads, mark
        given = os.environ if environment is None else environment
        self._process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=given if mark is None else {**given, mark[0]: mark[1]},
            cwd=directory,
            process_group=0 if leads else None,
        )
        self.pid = self._process.pid
        self._orders, self._said = self._process.stdin, self._process.stdout
        self._life = None if self._said is None else _life_of(self.pid)
        self.silent = self._said is None
        """Whether nothing more will be heard of it."""
        self.unfinished = b""
        """What it has said of a line that has not ended yet."""

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def tell(self, text: bytes) -> bool:
        """Write to its input; False when it is gone or its input is closed."""
        try:
            if self._orders is not None:
                self._orders.write(text)
                self._orders.flush()
        except (OSError, ValueError):
            return False
        return True

    def lines(self, wait_s: float = 0.0) -> list[bytes]:
        """Lines it has said since, without their ends; waits up to `wait_s` for the next one."""
        deadline = time.monotonic() + wait_s
        found: list[bytes] = []
        while not found and self._said is not None and not self.silent:
            left_s = max(0.0, deadline - time.monotonic())
            watched = select.poll()  # a node with many devices has descriptors beyond 1,024
            try:
                watched.register(self._said, select.POLLIN)
                if not watched.poll(left_s * 1000.0):
                    break
                piece = os.read(self._said.fileno(), _PIECE)
            except (OSError, ValueError):  # closed meanwhile
                piece = b""
            self.silent = not piece
            *found, self.unfinished = (self.unfinished + piece).split(b"\n")
            if not left_s:
                break
        return found

    def watch(self) -> select.poll | None:
        """What wakes up once it says something or ends; None after `close`, which must not run
        meanwhile.
        """
        if self._said is None or self._said.closed:
            return None
        watched = select.poll()
        if self._life is not None:
            watched.register(self._life, select.POLLIN)
        if not self.silent:
            watched.register(self._said, select.POLLIN)
        return watched

    def wait(self, wait_s: float | None = None) -> bool:
        """Wait for its end; False when it has not come in `wait_s` seconds."""
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def left(self) -> tuple[int, ...]:
        """Pids of what lives of it, of the group it leads and of what carries its mark."""
        own = (self.pid,) if self.code is None and start_time(self.pid) is not None else ()
        led = group(self.pid) if self._leads else ()
        known = marked(self._mark[1], variable=self._mark[0]) if self._mark else ()
        return tuple(sorted({*own, *led, *known}))

    def kill(self, wait_s: float = 0.0) -> tuple[int, ...]:
        """kill -9, it or the group it leads; what is `left` after `wait_s`. Empty: proven gone.

        What is stuck in the kernel lives on, and may still do what it was about to.
        """
        deadline = time.monotonic() + wait_s
        with suppress(OSError):
            # Not reaped yet: the number is its own, and nobody else's group has it.
            if self._leads and self._process.returncode is None:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self.wait(wait_s)
        while alive := self.left():
            if time.monotonic() >= deadline:
                _LEFT.append(self._process)
                break
            time.sleep(_STEP_S)
        return alive

    def end(self, farewell_s: float) -> None:
        """Close its input, then terminate it, then kill it, each after `farewell_s` seconds."""
        self.hang_up()
        for harder in (self._process.terminate, self._process.kill):
            if self.wait(farewell_s):
                return
            harder()
        self.wait(farewell_s)

    def hang_up(self) -> None:
        """Close our end of its standard input; again is fine."""
        if self._orders is not None:
            with suppress(OSError):
                self._orders.close()

    def close(self) -> None:
        """Let go of its pipes."""
        self.hang_up()
        self.silent = True
        if self._said is not None:
            self._said.close()
        if self._life is not None:
            os.close(self._life)
            self._life = None


def _life_of(pid: int) -> int | None:
    """A descriptor that tells when the child `pid` ends; None: it is looked at now and then."""
    with suppress(OSError):
        return os.pidfd_open(pid)
    return None
