"""Waiting for what other processes do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from fleet.core import errors

DEADLINE_S = 60.0
_PAUSE_S = 0.05

T = TypeVar("T")


def until(ask: Callable[[], T | None], limit_s: float = DEADLINE_S) -> T:
    """The first answer that is something; errors that waiting mends are waited out."""
    end, pause = time.monotonic() + limit_s, threading.Event()
    while True:
        answer = None
        with suppress(errors.Retryable):
            answer = ask()
        if answer:
            return answer
        assert time.monotonic() < end, "not in time"
        pause.wait(_PAUSE_S)
