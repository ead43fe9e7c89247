"""Records of the kernel log that were overwritten before they were read (case B58).

A fault may have stood in them. So a loss is told, counted, and answered by one full sweep that
begins after it: what registers and the driver still show is seen then. A loss is what the kernel
says of a reader that was too slow, and a log whose first record lies behind what was read before
the service was restarted.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress

from fleet.core import errors
from fleet.core.model import Uuid
from fleet.devices.health.readings import LogState
from fleet.node.registry import Registry

_KEY = "log-read"
"""Up to which record of this boot's log anything of this node has read."""
KEPT_EVERY = 1000
"""Records between two commits of how far was read; a gap is found to within as many."""


class Losses:
    """What was lost of this node's kernel log. Safe for several threads."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._known: dict[Uuid, tuple[int | None, int]] = {}
        """By accelerator, which has a reader of its own: its first record, its losses so far."""
        self.count = 0
        """Losses since the service began."""
        self._answered = 0
        """How many of them a full sweep has begun and ended after."""

    @property
    def trouble(self) -> str:
        """Why a fault may have been missed, until a full sweep has answered it."""
        if self.count == self._answered:
            return ""
        return (
            f"{self.count - self._answered} times records of the kernel log were overwritten before"
            " they were read: faults may have been missed; every device is read again now"
        )

    @property
    def note(self) -> str:
        """What has been lost since the service began; "" for nothing."""
        if not self.count or self.trouble:
            return ""
        return (
            f"records of the kernel log were lost {self.count} times since the service began; every"
            " device was read again after it"
        )

    def read(self, accelerator: Uuid, log: LogState | None) -> None:
        """Take account of how far the log was read for an accelerator."""
        if log is None:
            return
        with self._lock:
            known = self._known.get(accelerator)
            self._known[accelerator] = (log.first, log.lost)
            fresh = known is None or known[0] != log.first or log.lost < known[1]
            lost = log.lost if fresh or known is None else log.lost - known[1]
            gap = fresh and log.first is not None and log.first > self._last() + 1 > 0
            self.count += lost + int(gap)
            if log.place.sequence is not None:
                self._keep(log.place.sequence)

    def begin(self) -> int:
        """A full sweep begins; give the answer to `end`."""
        with self._lock:
            return self.count

    def end(self, begun: int) -> None:
        """A full sweep has ended: what was lost before it began is answered."""
        with self._lock:
            self._answered = max(self._answered, begun)

    def _last(self) -> int:
        """The newest record known to be read in this boot; below 0: none is known."""
        kept = self._registry.journal.meta.get(_KEY)
        told = json.loads(kept) if kept else {}
        return int(told["sequence"]) if told.get("boot_id") == self._registry.boot_id else -2

    def _keep(self, sequence: int) -> None:
        last = self._last()
        # Not each record is worth a commit; what is kept may only be too old, which is a gap told
        # that was none, never one that was missed.
        if last < 0 or sequence >= last + KEPT_EVERY or sequence < last - KEPT_EVERY:
            with suppress(errors.FleetError), self._registry.commit() as commit:
                told = {"boot_id": self._registry.boot_id, "sequence": sequence}
                commit.set_meta(_KEY, json.dumps(told))
