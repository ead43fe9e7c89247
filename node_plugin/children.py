"""Child processes that are kept running: started again with growing pauses when they end.

A child learns that this process is gone by the end of its standard input, also after kill -9. It is
started without any code of ours between fork and exec, so that gRPC's threads are no hazard (B81).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.rpc.child import ChildProcess

LOG = logging.getLogger(__name__)

PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 30.0
STEADY_S = 60.0
"""A child that ran this long is not failing: the next pause is the first one again."""
SILENCES_MIN = 3
"""A single pulse that failed may be our own standing still."""


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
    _process: ChildProcess | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """Its process id, while it runs."""
        process = self._process
        return process.pid if process is not None and process.code is None else None

    def start(self) -> None:
        """Start it and keep it running."""
        self._thread = threading.Thread(target=self._keep, name=f"child {self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it: its input is closed, then it is terminated, then killed."""
        self._stop.set()
        process = self._process
        if process is not None:
            process.end(self.farewell_s)
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
            process = ChildProcess(
                self.command, environment=self.environment, stdout=None, directory="/"
            )
        except OSError as error:
            return str(error)
        self.starts += 1
        self._process = process
        if self._stop.is_set():
            process.end(self.farewell_s)
        process.wait()
        process.hang_up()
        return process.code or 0


@dataclass
class Vigil:
    """Over our standby: one that hangs is killed, and its supervision starts it again.

    The standby ends any other owner of the node's journal that hangs (DESIGN 5, Ray), but nobody in
    the node does that for the standby itself. This side can, since the standby is its child: kill
    -9 is safe at any moment, and what its workers left is settled by the start that follows.
    `owner`: the process id of the journal's owner, None while it has none.
    """

    standby: Child
    owner: Callable[[], int | None]
    teller: Callable[[], int | None] = lambda: None
    """The process id of who tells now why the node cannot be opened; None: nobody."""
    silence_s: float = 30.0
    """Silence, s, after which a standby that owns the journal hangs, as for any owner. It counts
    anew from when the standby is first seen to own it: it opens the node before it answers."""
    unowned_s: float = 120.0
    """The same where nobody owns it: a standby that cannot open the node tries for ever, and is
    better started anew now and then than watched."""
    _since: float = 0.0
    _owner: int | None = None
    """Who was last seen to own the journal in this silence."""
    _owned_since: float = 0.0
    _silences: int = field(default=0)

    def step(self, now: float, *, answered: bool) -> bool:
        """Once per pulse, at monotonic time `now`; whether the standby was killed."""
        pid = self.standby.pid
        if answered or pid is None:
            self._silences = 0  # while it does not run, the silence is not its own
            return False
        if self.teller() == pid:
            self._silences = 0  # it knows why it cannot serve, says so, and goes on trying
            return False
        owner = self.owner()
        if not self._silences:
            self._since = self._owned_since = now
            self._owner = owner
        elif owner not in (None, self._owner):
            self._owner, self._owned_since, self._silences = owner, now, 0
        self._silences += 1
        if self._silences < SILENCES_MIN:
            return False
        if owner not in (None, pid):
            return False  # the standby's own business
        silent_s = now - (self._since if owner is None else self._owned_since)
        if silent_s < (self.unowned_s if owner is None else self.silence_s):
            return False
        LOG.warning("the standby (pid %d) has been silent for %.0f s: killed", pid, silent_s)
        self.standby.kill()
        self._silences = 0
        return True
