"""Countersigns the nodes' ledgers while claims are served, and copies that to the archive.

A campaign countersigns at its end. A cluster that only serves claims has none: without this its
certificates would never be countersigned, and lists of keys signed meanwhile never be copied.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from fleet.control.binding.loop import Views
from fleet.core import errors
from fleet.core.model import NodeName
from fleet.evidence.ledger import LedgerHead

LOG = logging.getLogger(__name__)

PERIOD_S = 300.0
"""Period, s: how long a wipe may stay one that could be cut off unseen."""
AGAIN_S = 30.0
"""The same after one that failed."""

Ends = Callable[[], Mapping[str, LedgerHead | errors.FleetError]]
"""The end of each node's ledger, or why it is not known."""


class Signing(Protocol):
    """What countersigns; see `fleet.control.coordinator.Coordinator`."""

    def sign_heads(self, heads: Mapping[NodeName, LedgerHead], *, waits: bool = True) -> None: ...


def in_thread(work: Callable[[], None]) -> None:
    """Begin `work` beside the loop: no claim waits for ledgers to be read, or for an archive."""
    threading.Thread(target=work, name="countersigning", daemon=True).start()


class Countersigning:
    """A `fleet.control.binding.loop.Follower`. Steps on one thread."""

    def __init__(
        self, coordinator: Signing, ends: Ends, *, begin: Callable[..., None] = in_thread
    ) -> None:
        """`begin` runs what it is given, once at a time."""
        self._coordinator = coordinator
        self._ends = ends
        self._begin = begin
        self._busy = threading.Lock()
        self._error: errors.FleetError | None = None
        self._missing: dict[str, float] = {}
        """Since when the end of a node's ledger is not known."""
        self._begun_at = float("-inf")

    def step(self, views: Views, now: float) -> None:  # noqa: ARG002 - a follower's signature
        """Begin to, when it is time. Raises why the last time failed, until one went well."""
        # By how the last one ended, which was not known when it began (F73).
        soon = any(0.0 <= now - since < PERIOD_S for since in self._missing.values())
        period_s = AGAIN_S if self._error is not None or soon else PERIOD_S
        due = not 0.0 <= now - self._begun_at < period_s
        if due and self._busy.acquire(blocking=False):
            self._begun_at = now
            self._begin(self._sign)
        if self._error is not None:
            raise self._error

    def _sign(self) -> None:
        try:
            found = self._ends()
            ends = {NodeName(n): e for n, e in found.items() if isinstance(e, LedgerHead)}
            self._coordinator.sign_heads(ends, waits=False)
            gone = {n: e for n, e in found.items() if isinstance(e, errors.FleetError)}
            self._missing = {name: self._missing.get(name, self._begun_at) for name in gone}
            # A node whose owner changes answers the next time: that is no trouble yet.
            lasts = any(self._begun_at - since >= AGAIN_S for since in self._missing.values())
            self._error = next(iter(gone.values())) if gone and not ends and lasts else None
        except errors.FleetError as error:
            self._error = error
        except Exception as error:
            LOG.exception("the ledgers were not countersigned")
            self._error = errors.LedgerUnavailable(f"{type(error).__name__}: {error}")
        finally:
            self._busy.release()
