"""Watching our own standby: one that hangs is killed, and its supervision starts it again.

The standby ends any other owner of the node's journal that hangs (DESIGN 5, Ray), but nobody in the
node does that for the standby itself. This side can, since the standby is its child: kill -9 is
safe at any moment, and what its workers left is settled by the start that follows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

LOG = logging.getLogger(__name__)

SILENCES_MIN = 3
"""A single pulse that failed may be our own standing still."""


class Killable(Protocol):
    """A supervised child; see `node_plugin.children`."""

    @property
    def pid(self) -> int | None:
        """Its process id, while it runs."""
        ...

    def kill(self) -> None:
        """kill -9."""
        ...


@dataclass
class Vigil:
    """Over one standby. `owner`: the process id of the journal's owner, None while it has none."""

    standby: Killable
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
