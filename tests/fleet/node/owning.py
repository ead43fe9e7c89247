"""Other processes that own a node, for tests: ``python -m tests.fleet.node.owning NAME PLAN``.

Such a process opens the node of the plan, says "up" and serves at the door, ticking, until its
standard input ends. It hands nothing over: kill it, stop it or close it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fleet.core.clock import SystemClock
from fleet.wiring import adapters
from fleet.wiring.adapters import NodePlan
from tests.freezing import freeze

END_S = 20.0
"""Longest time, s, an owner may need to end."""


class Owner:
    """An owner as its parent sees it."""

    def __init__(self, plan: NodePlan, name: str) -> None:
        """Start it and wait until it owns the node."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, name, plan.model_dump_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said == b"up\n", said

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended; a stopped one has not."""
        return self._process.poll() is None

    def stop(self) -> None:
        """SIGSTOP: it holds the lock and answers nothing."""
        freeze(self.pid)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._process.kill()
        self.wait()

    def wait(self) -> int:
        """Wait for its end; the exit status, negative for a signal."""
        status = self._process.wait(END_S)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        return status

    def end(self) -> int:
        """Let it give the journal back; the exit status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.wait()


@contextmanager
def owner(plan: NodePlan, name: str = "node actor") -> Iterator[Owner]:
    """Another process that owns the node of `plan` until the block ends at the latest."""
    found = Owner(plan, name)
    try:
        yield found
    finally:
        if found.running:
            found.kill()


def main(name: str, plan: str) -> None:
    """Own the node until standard input ends."""
    node = adapters.open_node(NodePlan.model_validate_json(plan), owner=name)
    stop = threading.Event()
    threading.Thread(target=_watch, args=(stop,), daemon=True).start()
    sys.stdout.write("up\n")
    sys.stdout.flush()
    clock = SystemClock()
    while not stop.wait(0.05):
        node.tick(clock.now())
    node.close()


def _watch(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
