"""How a story is told: numbered steps, what kubelet did, what held and what did not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.lab.kubelet.pods import PodEvent

Say = Callable[[str], None]
"""Takes one line for a person."""


@dataclass(slots=True)
class Telling:
    """Prints steps and keeps count of what held. Lines may come from several threads."""

    say: Say
    began: float = field(default_factory=time.monotonic)
    held: int = 0
    broken: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _steps: int = 0

    def step(self, title: str) -> None:
        """Begin a step."""
        self._steps += 1
        self.line("")
        self.line(f"{self._steps}. {title}")

    def line(self, text: str) -> None:
        """Say one line."""
        with self._lock:
            self.say(text)

    def heard(self, event: PodEvent) -> None:
        """Something kubelet did."""
        took = f" in {event.took_s * 1000:.0f} ms" if event.took_s else ""
        about = f"{event.pod}: " if event.pod else ""
        detail = f" ({event.detail})" if event.detail else ""
        at = time.monotonic() - self.began
        self.line(f"   {at:6.2f} s  kubelet: {about}{event.what}{took}{detail}")

    def expect(self, promise: str, *, holds: bool) -> bool:
        """Count and say whether a promise holds."""
        if holds:
            self.held += 1
        else:
            self.broken.append(promise)
        self.line(f"   {'holds' if holds else 'BROKEN'}: {promise}")
        return holds

    def end(self) -> int:
        """The summary; exit code 0 only when everything held."""
        took = time.monotonic() - self.began
        total = self.held + len(self.broken)
        self.line("")
        self.line(f"{self.held} of {total} expectations held, {took:.1f} s")
        for promise in self.broken:
            self.line(f"   BROKEN: {promise}")
        return 1 if self.broken else 0
