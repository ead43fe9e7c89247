"""One watch as a state machine: what to ask the server next, and what its answers mean. Pure.

The client performs the steps (list, open a stream, read it) and reports what came; this module
decides. A stream that ends at the time asked for goes on from the last version seen. Everything
else (closed early, broken, 410, a line cut short) counts as a loss: all objects are listed again
and `SYNCED` tells the watcher that what it did not see again is gone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from fleet.core import errors
from fleet.kube import answers, json_limits
from fleet.kube.base import Change, Event, Listing, Object, version_of

SEGMENT_S = 300
"""Longest time, s, one stream is asked for; the server closes it then."""

MARGIN_S = 2.0
"""How much longer, s, a stream is waited for than it was asked for: a silent one is dead."""

SILENCE_S = 90.0
"""Longest silence, s, of a stream: we ask for bookmarks, and a server sends one about every minute,
so that one silent for longer hangs on a connection whose other end is gone."""

STEADY_S = 5.0
"""Time, s, after which a stream counts as healthy although nothing came."""

PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 10.0

LINE_MAX = 16 * 1024 * 1024
"""Bytes of one line above which a stream is broken; etcd holds objects of 1.5 MB."""

_CHANGES = {str(kind): kind for kind in (Change.ADDED, Change.MODIFIED, Change.DELETED)}


class Act(StrEnum):
    """What the client does next."""

    LIST = "list"
    STREAM = "stream"
    END = "end"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, after waiting `delay_s`."""

    act: Act
    delay_s: float = 0.0
    resource_version: str = ""
    server_timeout_s: int = 0
    """For a stream: what the server is told, s."""
    read_timeout_s: float = 0.0
    """Longest silence, s, before the attempt counts as lost."""


class Watching:
    """The state of one watch of `timeout_s` seconds. All times are monotonic."""

    def __init__(self, *, what: str, timeout_s: float, now: float, alive: bool = False) -> None:
        """`what` names the watch in errors; `alive`: bookmarks are told too."""
        self._what = what
        self._alive = alive
        self._ends = now + timeout_s
        self._version = ""
        self._losses = 0
        self._pausing = False
        self._hint_s = 0.0
        self._error: errors.FleetError | None = None
        self._buffer = bytearray()
        self._opened = now
        self._due = now
        self.streaming = False
        """Whether the stream is worth reading on."""
        self.skipped = 0
        """Entries of streams that were no objects (case B19)."""

    def step(self, now: float, *, chance: float) -> Step:
        """What to do next. `chance` in [0, 1) spreads the retries of many watchers."""
        left_s = self._ends - now
        if left_s <= 0:
            return Step(Act.END)
        delay_s = min(self._pause(chance), left_s)
        left_s -= delay_s
        if left_s <= 0:
            return Step(Act.END, delay_s=delay_s)
        if not self._version:
            return Step(Act.LIST, delay_s=delay_s, read_timeout_s=left_s)
        asked_s = max(1, min(SEGMENT_S, math.ceil(left_s)))
        return Step(
            Act.STREAM,
            delay_s=delay_s,
            resource_version=self._version,
            server_timeout_s=asked_s,
            read_timeout_s=min(asked_s + MARGIN_S, left_s, SILENCE_S),
        )

    def listed(self, listing: Listing) -> Iterator[Event]:
        """The list arrived: all objects, then SYNCED."""
        self._error = None
        self._version = listing.resource_version
        if not self._version:
            self._count_loss()
        for found in listing.items:
            yield Event(Change.ADDED, found)
        yield Event(Change.SYNCED)

    def opened(self, step: Step, now: float) -> None:
        """The server began to answer the stream that `step` asked for."""
        self._error = None
        self._buffer.clear()
        self._opened = now
        self._due = now + step.server_timeout_s
        self.streaming = True

    def received(self, chunk: bytes, now: float) -> Iterator[Event]:
        """A piece of the stream, cut anywhere."""
        self._buffer += chunk
        while self.streaming and (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            if event := self._line(line):
                yield event
        if len(self._buffer) > LINE_MAX:
            self._lose(now)
        if now >= self._ends:
            self.streaming = False

    def closed(self, now: float) -> None:
        """The stream ended. In good order only when whole and about when it was asked to end."""
        if not self.streaming:
            return
        if self._buffer.strip() or now < self._due - 1.0:
            self._lose(now)
        else:
            self._losses = 0
        self.streaming = False

    def failed(self, error: errors.FleetError, now: float) -> None:
        """A list, an opening or a stream failed. Raises `ApiInvalid`, and `ApiForbidden` where a
        right is missing: the next one would be refused as well. A credential may be renewed."""
        lacking = isinstance(error, errors.ApiForbidden) and error.fields.get("status") != 401
        if lacking or isinstance(error, errors.ApiInvalid):
            raise error
        if not self.streaming and error.fields.get("status") != answers.GONE:
            self._error = error
            self._hint_s = float(error.fields.get("retry_after_s", 0.0))
        self._lose(now)

    def outcome(self) -> errors.FleetError | None:
        """At the end: why the server could not be reached any more; None when it could."""
        error = self._error
        if error is None or isinstance(error, errors.ApiUnavailable | errors.ApiForbidden):
            return error
        return errors.ApiUnavailable(
            error.detail, status=error.fields.get("status", 0), retry_after_s=0.0
        )

    def _line(self, line: bytes) -> Event | None:
        if not line.strip():
            return None
        entry = json_limits.parsed(line)
        found = entry.get("object") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(found, dict):
            self.skipped += 1
            return None
        return self._entry(str(entry.get("type")), found)

    def _entry(self, kind: str, found: Object) -> Event | None:
        if kind == "ERROR":
            self.streaming = False
            self._count_loss()
            return None
        metadata = found.get("metadata")
        if kind == "BOOKMARK" and isinstance(metadata, dict):
            self._seen(found)
            return Event(Change.ALIVE) if self._alive else None
        if kind not in _CHANGES or not answers.is_entry(found):
            self.skipped += 1
            return None
        self._seen(found)
        return Event(_CHANGES[kind], found)

    def _seen(self, found: Object) -> None:
        self._version = version_of(found) or self._version
        self._losses = 0

    def _lose(self, now: float) -> None:
        if self.streaming and now - self._opened >= STEADY_S:
            self._losses = 0
        self.streaming = False
        self._count_loss()

    def _count_loss(self) -> None:
        self._version = ""
        self._losses += 1
        self._pausing = True

    def _pause(self, chance: float) -> float:
        if not self._pausing:
            return 0.0
        self._pausing = False
        hint_s, self._hint_s = min(self._hint_s, PAUSE_MAX_S), 0.0
        pause_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(self._losses - 1, 10))
        return max(hint_s, pause_s * (0.5 + chance / 2))
