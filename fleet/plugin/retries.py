"""Waiting out what passes by itself, inside the time kubelet gives a call.

Kubelet comes back only after 60 to 90 s when a prepare fails, so a device that will be free in two
seconds is waited for. A holder that shows no sign of leaving is not: the pod's event should name
it soon.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from fleet.core import errors
from fleet.core.clock import Clock, SystemClock
from fleet.rpc.node_api import NodeApi

T = TypeVar("T")
LOG = logging.getLogger(__name__)

PAUSE_S = 0.1
"""Between two tries: the length of a teardown without a wipe."""
SLOW_PAUSE_S = 1.0
"""Longest pause, s, where pauses grow: each try of a teardown is a transaction of the node."""
HOLDER_WAIT_S = 10.0
"""How long a holder that is not being torn down is waited for: a force-deleted pod whose process
ignores SIGTERM needs two seconds until kubelet asks for its teardown."""
FAIR_S = 1.0
"""A try with less time left than this tells only that time is up; the one before told why."""
PASSING = (
    errors.DeviceBusy,
    errors.LeaseHeld,
    errors.NotOwner,
    errors.StoreUnavailable,
    errors.ApiUnavailable,
    errors.SpecUnavailable,
    errors.BackendFailed,
)


SILENT_S = 10.0
"""Time, s, for which one that did not answer in time is not asked again."""


@dataclass
class ShortLooks:
    """Asks somebody far away and does not wait for long. Safe for threads.

    One that is silent costs a single wait, and not one for every claim that leaves meanwhile.
    """

    clock: Clock = field(default_factory=SystemClock)
    _silent_until: float = float("-inf")

    def within(self, wait_s: float, look: Callable[[], T | None]) -> T | None:
        """What `look` returns within `wait_s`; None: nothing."""
        if self.clock.monotonic() < self._silent_until:
            return None
        found: queue.SimpleQueue[T | None] = queue.SimpleQueue()

        def ask() -> None:
            try:
                found.put(look())
            except Exception:
                LOG.exception("a look at the API failed")
                found.put(None)

        try:
            threading.Thread(target=ask, name="short look", daemon=True).start()
            return found.get(timeout=wait_s)
        except RuntimeError:  # the host has no thread for it
            return None
        except queue.Empty:
            self._silent_until = self.clock.monotonic() + SILENT_S
            return None


def leaving(node: NodeApi) -> Callable[[str], bool]:
    """Whether a holder is a claim in teardown on `node`; an owner that is silent says nothing."""

    def asked(holder: str) -> bool:
        uid = holder.removeprefix("claim:")
        try:
            return any(one.uid == uid and one.state == "UNPREPARING" for one in node.claims())
        except errors.FleetError:
            return True  # who owns the node is changing hands: that passes

    return asked


@dataclass(frozen=True, slots=True)
class Waiting:
    """Repeats a call until it succeeds, fails for good, or its time is over."""

    clock: Clock
    sleep: Callable[[float], None]
    leaving: Callable[[str], bool]
    """Whether the holder named (``claim:<uid>``) is on its way out."""

    def until(
        self, deadline: float, act: Callable[[float], T], *, busy_pause_max_s: float = PAUSE_S
    ) -> T:
        """The value of `act`, called with the seconds left. `deadline` is monotonic time.

        Each `DeviceBusy` doubles the pause, up to `busy_pause_max_s`. Raises what `act` raises: at
        once where waiting changes nothing, else when time is up.
        """
        begun, busy_pause_s = self.clock.monotonic(), PAUSE_S
        told: errors.FleetError | None = None
        while True:
            left_s = max(0.0, deadline - self.clock.monotonic())
            try:
                return act(left_s)
            except PASSING as error:
                told = error if told is None or left_s >= FAIR_S else told
                now = self.clock.monotonic()
                if not self._passes(error, now - begun):
                    raise
                pause_s = PAUSE_S
                if isinstance(error, errors.DeviceBusy):
                    pause_s = busy_pause_s
                    busy_pause_s = min(2 * busy_pause_s, busy_pause_max_s)
                if now + pause_s >= deadline:
                    raise told from error
            self.sleep(pause_s)

    def _passes(self, error: errors.FleetError, waited_s: float) -> bool:
        holder = str(error.fields.get("holder", ""))
        if not holder or waited_s < HOLDER_WAIT_S:
            return True
        return self.leaving(holder)
