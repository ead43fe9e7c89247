"""Waiting for what a cluster does by itself: with a deadline, and a reason when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PERIOD_S = 0.05


class Hopeless(Exception):
    """What is waited for cannot come any more."""


def eventually(
    what: str,
    look: Callable[[], T | None],
    *,
    timeout_s: float,
    period_s: float = PERIOD_S,
    tell: Callable[[], str] = str,
) -> T:
    """The first true value of `look`; an AssertionError with `what` and `tell` when time is up.

    An AssertionError of `look` means: not yet; the last one is told. `Hopeless` ends the waiting.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        trouble = ""
        try:
            found = look()
        except AssertionError as error:
            found, trouble = None, str(error)
        if found:
            return found
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}\n{trouble}\n{tell()}")
        time.sleep(period_s)


def throughout(what: str, look: Callable[[], bool], *, for_s: float) -> None:
    """Asserts that `look` is true for this long."""
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        assert look(), f"not true any more: {what}"
        time.sleep(PERIOD_S)
