"""The standby: a process without Ray that owns the node while Ray does not (DESIGN 5, Ray).

It watches the door. While the owner answers there the standby does nothing, and hands the journal
over when a node actor asks for it. Once nobody has answered for `grace_s` it tries to take the
journal; where the journal is locked all the same and nothing is heard for `silence_s` from the
same owner, that owner hangs: it is killed, named by pid, start time and boot, so that nobody else
can be meant. An owner that has just taken the journal opens the node first, which takes a while:
its silence begins then. What its workers left is settled by the start that follows, as after any
crash.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.node.journal.lock import Owner, read_owner
from fleet.node.service import NodeService
from fleet.rpc import trouble as trouble_file
from fleet.rpc.node_api import HandOver

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the standby waits, all in seconds."""

    grace_s: float = 3.0
    """Nobody answers: an actor that Ray restarts is back within this time."""
    silence_s: float = 30.0
    """The journal is locked by one owner that does not answer: it hangs and is killed."""
    yield_s: float = 10.0
    """After a hand-over: the newcomer has this long to take the journal and answer."""
    pulse_s: float = 1.0
    """Between two looks at the door."""


class Watched(Protocol):
    """The door as the standby looks at it."""

    def pulse(self, *, timeout_s: float = 2.0) -> Mapping[str, Any]:
        """Raises `FleetError` when nobody answers."""
        ...


@dataclass
class Standby:
    """Owns the node when nobody better does. `step` a few times a second; `close` at the end."""

    open: Callable[[HandOver], NodeService]
    door: Watched
    lock: Path
    clock: Clock
    patience: Patience = Patience()
    told: Path | None = None
    """The door beside which is told why the node cannot be opened; None: nowhere."""
    service: NodeService | None = None
    trouble: str = ""
    """Why the node could not be opened at the last try; empty when it could or was not tried."""
    _asked: str = ""
    _heard_at: float = field(init=False)
    _looked_at: float = float("-inf")
    _not_before: float = float("-inf")
    _owner: Owner | None = None
    """Who was last seen to have taken the journal."""
    _owned_at: float = float("-inf")
    """When that one was first seen: never before it took the journal."""

    def __post_init__(self) -> None:
        self._heard_at = self.clock.monotonic()

    def step(self) -> None:
        """What is due now. Raises nothing that a later step could mend."""
        if self.service is None:
            self._watch()
        elif self._asked:
            self._let_go()
        else:
            self._tick(self.service)

    def close(self) -> None:
        """Give the journal up, if it is ours."""
        service, self.service = self.service, None
        if service is not None:
            service.close()

    def _tick(self, service: NodeService) -> None:
        try:
            service.tick(self.clock.now())
        except errors.FleetError as error:
            LOG.warning("step failed: %s", error)
        except Exception:
            # The step must go on for the other devices; the log names the fault.
            LOG.exception("step failed")

    def _hand_over(self, by: str) -> bool:
        self._asked = by
        return True

    def _let_go(self) -> None:
        LOG.warning("handing the node over to %s", self._asked)
        self.close()
        self._asked = ""
        now = self.clock.monotonic()
        self._heard_at, self._not_before = now, now + self.patience.yield_s

    def _watch(self) -> None:
        now = self.clock.monotonic()
        apart_s = now - self._looked_at
        if apart_s < self.patience.pulse_s:
            return
        if apart_s > self.patience.silence_s / 2:
            self._heard_at = now  # it was this process that stood still: that is nobody's silence
        self._looked_at = now
        answered = self._answers()
        self._look_at_owner()
        if answered:
            self._heard_at = self.clock.monotonic()
            self._not_before = float("-inf")  # the newcomer came
            self.trouble = ""
            return
        silent_s = self.clock.monotonic() - self._heard_at
        if silent_s >= self.patience.grace_s and now >= self._not_before:
            self._take(silent_s)

    def _answers(self) -> bool:
        try:
            self.door.pulse()
        except errors.FleetError:
            return False
        return True

    def _look_at_owner(self) -> None:
        owner = read_owner(self.lock)
        if owner is None:
            return
        now = self.clock.monotonic()
        if owner != self._owner:
            self._owner, self._owned_at = owner, now
        if now < self._not_before and owner.pid != os.getpid() and not owner.alive():
            # The newcomer came, and has gone between two looks.
            self._heard_at, self._not_before = now, float("-inf")

    def _take(self, silent_s: float) -> None:
        try:
            self.service = self.open(self._hand_over)
        except errors.NotOwner as error:
            self.trouble = error.detail
            silent_since = max(self._heard_at, self._owned_at)
            if self.clock.monotonic() - silent_since >= self.patience.silence_s:
                self._kill()
        except (errors.FleetError, OSError) as error:
            if self.told is not None:
                trouble_file.tell(self.told, error)
            trouble = error.detail if isinstance(error, errors.FleetError) else str(error)
            if self.trouble != trouble:
                LOG.warning("the node cannot be opened: %s", error)
            self.trouble = trouble
        else:
            self.trouble = ""
            if self.told is not None:
                trouble_file.end(self.told)
            LOG.warning("nobody answered for %.1f s: this standby owns the node now", silent_s)

    def _kill(self) -> None:
        owner = read_owner(self.lock)
        if owner is None or owner.pid == os.getpid() or not owner.alive():
            return  # it has gone, or cannot be named: nobody is killed on a guess
        if owner != self._owner:
            return  # it was another one's silence
        LOG.warning("%s (pid %d) owns the node and is silent: killed", owner.owner, owner.pid)
        try:
            os.kill(owner.pid, signal.SIGKILL)
        except OSError as error:
            self.trouble = f"{owner.owner} (pid {owner.pid}) hangs and cannot be killed: {error}"
        # What the killed one still had in work is not waited for here: the next tries find it gone.
        self._heard_at = self.clock.monotonic() - self.patience.grace_s
