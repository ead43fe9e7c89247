"""Child processes that are kept running: started again with growing pauses when they end.

A child learns that this process is gone by the end of its standard input, also after kill -9. It is
started without any code of ours between fork and exec, so that gRPC's threads are no hazard (B81).
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

LOG = logging.getLogger(__name__)

PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 30.0
STEADY_S = 60.0
"""A child that ran this long is not failing: the next pause is the first one again."""


@dataclass
class Child:
    """One supervised child process."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] | None = None
    farewell_s: float = 15.0
    """Time, s, it has to end by itself once its standard input is closed."""
    pauses_s: tuple[float, float] = (PAUSE_FIRST_S, PAUSE_MAX_S)
    """First and longest pause, s, before it is started again; the pause doubles."""
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """Its process id, while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start it and keep it running."""
        self._thread = threading.Thread(target=self._keep, name=f"child {self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it: its input is closed, then it is terminated, then killed."""
        self._stop.set()
        process = self._process
        if process is not None:
            self._end(process)
        if self._thread is not None:
            self._thread.join(self.farewell_s)

    def kill(self) -> None:
        """kill -9: it is started again, like any that ended."""
        process = self._process
        if process is not None:
            process.kill()

    def _keep(self) -> None:
        first_s, longest_s = self.pauses_s
        pause_s = first_s
        while not self._stop.is_set():
            began = time.monotonic()
            code = self._run()
            if self._stop.is_set():
                return
            if time.monotonic() - began >= STEADY_S:
                pause_s = first_s
            LOG.warning("%s ended with %s; started again in %.0f s", self.name, code, pause_s)
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    def _run(self) -> int | str:
        try:
            process = subprocess.Popen(
                list(self.command), stdin=subprocess.PIPE, env=self.environment, cwd="/"
            )
        except OSError as error:
            return str(error)
        self.starts += 1
        self._process = process
        if self._stop.is_set():
            self._end(process)
        code = process.wait()
        _hang_up(process)
        return code

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        _hang_up(process)
        for end in (process.terminate, process.kill):
            try:
                process.wait(self.farewell_s)
            except subprocess.TimeoutExpired:
                end()
            else:
                return
        with suppress(subprocess.TimeoutExpired):
            process.wait(self.farewell_s)


def _hang_up(process: subprocess.Popen[bytes]) -> None:
    """Close our end of its standard input; again is fine."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
