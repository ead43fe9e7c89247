"""Which devices the server refused, and when they may be tried again. Pure.

A refused body stays refused (422): it is never sent again at once. The device is left out of the
slice so that its neighbours are published, and comes back when it looks different, or after a wait
that doubles each time. Where the server does not say which device it minds, every device that
changed is suspect; suspects come back one at a time, which finds the culprit by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.kube.base import Object
from fleet.kube.slice_equality import same_device, same_devices
from fleet.plugin.slices.pool_view import carries_counters

FIRST_WAIT_S = 5.0
"""Wait, s, after the first refusal."""
LONGEST_WAIT_S = 300.0
"""Wait, s, that is never exceeded: a changed admission policy is noticed within it."""

_PLACE = re.compile(r"spec\.devices\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class _Refusal:
    body: Object
    times: int
    until: float
    why: str


def blamed(devices: Sequence[Object], causes: Iterable[Any]) -> tuple[Object, ...]:
    """The devices a refusal names by their place in the body; none when it names no place.

    `causes` are those of `ApiInvalid`: (reason, field, message).
    """
    places = {
        int(found[1]) for cause in causes for part in cause for found in _PLACE.finditer(str(part))
    }
    return tuple(devices[place] for place in sorted(places) if place < len(devices))


def about_counters(body: Object, causes: Iterable[Any]) -> bool:
    """Whether a refusal is about counters: without them the slice may well be taken.

    So a server of Kubernetes 1.34 with the gate on refuses devices whose sets are in another slice.
    A slice of sets has nothing else that could be refused.
    """
    named = any("consumesCounters" in str(cause[1]) for cause in causes if len(cause) > 1)
    return named or carries_counters(body)


def suspects(devices: Iterable[Object], stored: Mapping[str, Object]) -> tuple[Object, ...]:
    """The devices that differ from what the server accepted before."""
    return tuple(
        device for device in devices if not same_device(device, stored.get(str(device["name"]), {}))
    )


class Refusals:
    """Refused devices by name. Times are seconds of a clock that never goes back, passed in."""

    def __init__(self) -> None:
        self._refused: dict[str, _Refusal] = {}
        self.total = 0
        """Refusals so far, for the counter: none is swallowed."""

    def refuse(self, devices: Iterable[Object], *, now: float, why: str) -> None:
        """Leave these devices out from now on; several are tried again one after the other."""
        self.total += 1
        for place, device in enumerate(devices):
            name = str(device["name"])
            earlier = self._refused.get(name)
            times = earlier.times + 1 if earlier and same_device(earlier.body, device) else 1
            wait = min(FIRST_WAIT_S * 2 ** min(times - 1, 16), LONGEST_WAIT_S)
            self._refused[name] = _Refusal(device, times, now + wait + place * FIRST_WAIT_S, why)

    def withheld(self, device: Object, *, now: float) -> str:
        """Why the device is left out now, or "" when it may be sent."""
        found = self._refused.get(str(device["name"]))
        if found is None or now >= found.until or not same_device(found.body, device):
            return ""
        return found.why

    def accepted(self, devices: Iterable[Object]) -> None:
        """Forget the refusals of devices the server has taken."""
        for device in devices:
            self._refused.pop(str(device["name"]), None)


class Pause:
    """A wait of the whole pool that doubles with each failure in a row, from 1 s.

    It holds for the content that failed only: other content is tried at once, so that a quarantine
    does not wait for a complaint about something else. Times as for `Refusals`.
    """

    def __init__(self) -> None:
        self._times = 0
        self._until = 0.0
        self._content: Sequence[Object] | None = None

    def begin(self, *, now: float, content: Sequence[Object] | None, longest_s: float) -> None:
        """Wait from `now`, `longest_s` at most; `content` None: whatever is to be written."""
        self._until = now + min(2.0 ** min(self._times, 16), longest_s)
        self._times += 1
        self._content = content

    def holds(self, *, now: float, content: Sequence[Object]) -> bool:
        """Whether `content` has to wait."""
        if now >= self._until:
            return False
        return self._content is None or same_devices(self._content, content)

    def end(self) -> None:
        """A write succeeded."""
        self._times = 0
        self._until = 0.0
