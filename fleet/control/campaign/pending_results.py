"""Results on their way from a campaign into the run's record. Pure.

They go out as they come in and are forgotten once the store has them; what a store that is away did
not take goes out again with the next step.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from fleet.control.campaign.ports import CampaignCoordinator
from fleet.core.messages import DeviceResult

APPENDED_MAX = 1000
"""Results handed over in one call: memory and lock of the store are not for one run alone."""


class Keeping:
    """The way of one run's results."""

    def __init__(self, run: str, coordinator: CampaignCoordinator) -> None:
        self._run = run
        self._coordinator = coordinator
        self._left: list[DeviceResult] = []
        self._rest: Iterator[DeviceResult] = iter(())

    def add(self, result: DeviceResult) -> None:
        """One more result."""
        self._left.append(result)

    def end_with(self, rows: Iterator[DeviceResult]) -> None:
        """Results that come last, made only as they are handed over."""
        self._rest = rows

    def save(self) -> None:
        """Hand over all there is. Raises `FleetError`; what was not taken stays."""
        while True:
            if not self._left:
                self._left = list(islice(self._rest, APPENDED_MAX))
            if not self._left:
                return
            self._coordinator.append(self._run, tuple(self._left[:APPENDED_MAX]))
            del self._left[:APPENDED_MAX]
