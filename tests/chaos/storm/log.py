"""What happened in a storm: one JSON line for each fault, and the sentences about broken promises.

Safe for threads.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import IO, Any


class Story:
    """Lines of what happened, in order; `broken` is what must never be."""

    def __init__(self, path: Path, *, seed: int) -> None:
        self.path = path
        self.seed = seed
        self.broken: list[str] = []
        self.counts: Counter[str] = Counter()
        self._began = time.monotonic()
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("w")

    @property
    def now_s(self) -> float:
        """Time, s, since the storm began."""
        return time.monotonic() - self._began

    def fault(self, **what: Any) -> None:
        """A fault that was injected."""
        self._write({"event": "fault", "seed": self.seed, **what})
        self.counts[f"{what['kind']}: {what['target']}"] += 1

    def tell(self, event: str, **what: Any) -> None:
        """Something else that a reader of the log needs to understand a fault's effect."""
        self._write({"event": event, **what})
        self.counts[event] += 1

    def breaks(self, sentence: str) -> None:
        """A promise is broken."""
        self._write({"event": "BROKEN", "what": sentence})
        with self._lock:
            self.broken.append(sentence)
        sys.stderr.write(f"BROKEN at {self.now_s:.1f} s: {sentence}\n")

    def close(self) -> None:
        """Nothing more is said."""
        with self._lock:
            self._file.close()

    def _write(self, what: dict[str, Any]) -> None:
        line = json.dumps({"at_s": round(self.now_s, 2), "clock": time.time(), **what})
        with self._lock:
            if not self._file.closed:
                self._file.write(line + "\n")
                self._file.flush()
