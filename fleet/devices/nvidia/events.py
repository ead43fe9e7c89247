"""Fault codes the driver reports by itself, from the moment a GPU was first opened here.

The kernel log has the history; this stream also tells what the log lost or never got. One event
set for each GPU, so that no event has to be assigned, and nothing is ever waited for.

A set does not outlive the library it was made in: one from before that was closed is dropped
without a word to the driver, and made anew by the next `listen`. The kernel log has what happened
between.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from fleet.core.clock import Clock, SystemClock
from fleet.core.errors import DriverRefused
from fleet.core.model import Uuid
from fleet.devices.nvidia import nvml

XID = 0x8
NO_INSTANCE = 0xFFFFFFFF
Heard = tuple[int, int | None]
"""A fault code and the GPU instance it is about; None: the whole GPU."""
HeardAt = tuple[int, int | None, float]
KEPT = 1024
"""Codes kept for each GPU, and events taken at once: a storm must neither fill memory nor hold up a
reading."""


T = TypeVar("T", Heard, HeardAt)


@dataclass(frozen=True, slots=True)
class _Set:
    """An event set of the driver, and the generation of the library it was made in."""

    handle: Any
    generation: int


class EventStream:
    """Fault codes by GPU, for one process."""

    def __init__(self, library: nvml.Library, clock: Clock | None = None) -> None:
        self._library = library
        self._clock = clock or SystemClock()
        self._sets: dict[Uuid, _Set] = {}
        self._heard: dict[Uuid, deque[HeardAt]] = {}

    def listen(self, accelerator: Uuid, handle: Any) -> bool:
        """Register for a GPU's fault codes, once; whether it is registered. Raises `DeviceLost`.

        What was heard before the library was closed and opened again stays.
        """
        if self._live(accelerator) is not None:
            return True
        supported = self._library.ask("nvmlDeviceGetSupportedEventTypes", handle)
        if supported is not None and not supported & XID:
            return False
        made = self._library.ask("nvmlEventSetCreate")
        if made is None:
            return False
        try:
            self._library.call("nvmlDeviceRegisterEvents", handle, XID, made)
        except DriverRefused:
            self._library.ask("nvmlEventSetFree", made)
            return False
        self._sets[accelerator] = _Set(made, self._library.generation)
        self._heard.setdefault(accelerator, deque(maxlen=KEPT))
        return True

    def heard(self, accelerator: Uuid) -> tuple[Heard, ...] | None:
        """Codes since `listen`, in order, each with the GPU instance it is about (None: all of it).

        None without `listen`. Raises `DeviceLost`.
        """
        found = self.heard_at(accelerator)
        return None if found is None else tuple((code, gi) for code, gi, _ in found)

    def heard_at(self, accelerator: Uuid) -> tuple[HeardAt, ...] | None:
        """The same, each with when it was taken here, s since boot."""
        kept = self._heard.get(accelerator)
        if kept is None:
            return None
        made = self._live(accelerator)
        if made is None:
            return tuple(kept)
        for _ in range(KEPT):
            try:
                event = self._library.call("nvmlEventSetWait_v2", made, 0)
            except DriverRefused:
                break  # a time-out says that there is none; anything else that there is none now
            if event.eventType & XID:
                gi = int(event.gpuInstanceId)
                about = None if gi == NO_INSTANCE else gi
                kept.append((int(event.eventData), about, self._clock.monotonic()))
        return tuple(kept)

    def forget(self, accelerator: Uuid) -> None:
        """Let a GPU's event set go with what was heard: it is about to be reset."""
        made = self._live(accelerator)
        self._sets.pop(accelerator, None)
        self._heard.pop(accelerator, None)
        if made is not None:
            self._library.ask("nvmlEventSetFree", made)

    def close(self) -> None:
        """Let all event sets go; codes heard are forgotten."""
        for accelerator in tuple(self._heard):
            self.forget(accelerator)

    def _live(self, accelerator: Uuid) -> Any:
        """A GPU's event set; None: there is none, or it died with the library it was made in."""
        made = self._sets.get(accelerator)
        if made is None or made.generation == self._library.generation:
            return made and made.handle
        del self._sets[accelerator]
        return None


def unlogged(logged: Iterable[int], heard: Iterable[T] | None) -> tuple[T, ...]:
    """What was heard beyond the codes `logged`: one event seen by both counts once."""
    counted = Counter(logged)
    found: list[T] = []
    for one in heard or ():
        code = one[0]
        if counted[code]:
            counted[code] -= 1
        else:
            found.append(one)
    return tuple(found)
