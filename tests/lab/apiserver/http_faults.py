"""What goes wrong next at the stand-in, and what was asked of it."""

from __future__ import annotations

import re
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request as it arrived."""

    method: str
    path: str
    """With its query."""
    content_type: str
    body: Any
    token: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong with requests that match."""

    method: str = ""
    """Empty: any method."""
    path: str = ""
    """A regular expression found in the path; empty: any path."""
    status: int = 0
    """Answer this instead of carrying the request out; 0: do not."""
    body: dict[str, Any] | bytes | None = None
    """The body of that answer; None: a plain Status."""
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    """Wait so long, s, before anything else."""
    drop: str = ""
    """Close the connection ``before`` or ``after`` carrying the request out; ``during`` a watch
    closes it after the first event."""

    def fits(self, method: str, path: str) -> bool:
        """Whether the request is one of those."""
        return self.method in ("", method) and re.search(self.path, path) is not None


class Faults:
    """The faults that wait for their request. Safe for threads."""

    def __init__(self) -> None:
        """Nothing goes wrong."""
        self._lock = threading.Lock()
        self._waiting: deque[Fault] = deque()
        self._lasting: list[Fault] = []
        self.junk: list[Any] = []
        """Entries mixed into every list though they are no objects (case B19)."""

    def add(self, fault: Fault, *, times: int = 1) -> None:
        """The next `times` requests that match meet `fault`."""
        with self._lock:
            self._waiting.extend([fault] * times)

    def keep(self, fault: Fault) -> None:
        """All requests that match meet `fault`, until `clear`."""
        with self._lock:
            self._lasting.append(fault)

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        with self._lock:
            self._waiting.clear()
            self._lasting.clear()
            self.junk = []

    def take(self, method: str, path: str) -> Fault:
        """The fault of this request; a harmless one when there is none."""
        with self._lock:
            for fault in self._waiting:
                if fault.fits(method, path):
                    self._waiting.remove(fault)
                    return fault
            for fault in self._lasting:
                if fault.fits(method, path):
                    return fault
        return Fault()
