"""The node's gate for acts under a token, with a count of what it refused.

A refused act changes nothing on the node, so the count is the process's own and begins anew with
it: it tells that somebody acts under tokens that are no longer theirs, not how often ever.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from fleet.core import errors, leases
from fleet.core.model import Token, Unit


class Fence:
    """Refuses old and foreign tokens. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refused: Counter[str] = Counter()

    def check(self, units: Iterable[Unit], token: Token, epoch: int) -> None:
        """See `leases.check_token`. Raises `EpochForeign` or `TokenStale`, counted."""
        try:
            leases.check_token(units, token, epoch)
        except (errors.EpochForeign, errors.TokenStale) as error:
            with self._lock:
                self._refused[type(error).__name__] += 1
            raise

    def refused(self) -> dict[str, int]:
        """How many acts were refused since the start, by class of the error."""
        with self._lock:
            return dict(self._refused)
