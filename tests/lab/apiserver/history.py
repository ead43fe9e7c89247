"""Every change of one kind in order: what watches read, and how far back they may start.

Not safe for threads by itself: the engine holds its lock around every call.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from tests.lab.apiserver.refusal import expired

ENTRIES_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One change: the object after it (or its last state, when deleted) and the one before, as
    JSON text. `before` is "" for a new object."""

    version: int
    deleted: bool
    after: str
    before: str


class History:
    """The changes of one kind, the oldest forgotten beyond `entries_max` or on request."""

    def __init__(self, *, entries_max: int = ENTRIES_MAX) -> None:
        """`entries_max`: changes kept before the oldest are forgotten."""
        self._entries: list[Entry] = []
        self._entries_max = entries_max
        self._forgotten = 0

    def append(self, entry: Entry) -> None:
        """Add the newest change."""
        self._entries.append(entry)
        if len(self._entries) > self._entries_max:
            self.forget(self._entries[len(self._entries) // 10].version)

    def since(self, version: int) -> list[Entry]:
        """Changes after `version`. Raises `Refusal` 410 when some of them are forgotten."""
        if version < self._forgotten:
            raise expired(f"too old resource version: {version} ({self._forgotten})")
        at = bisect.bisect_right(self._entries, version, key=lambda entry: entry.version)
        return self._entries[at:]

    def forget(self, version: int) -> None:
        """Forget everything up to `version`: watches that start there or before get a 410."""
        at = bisect.bisect_right(self._entries, version, key=lambda entry: entry.version)
        del self._entries[:at]
        self._forgotten = max(self._forgotten, version)
