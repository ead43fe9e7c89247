"""What a campaign covers and what an earlier part of the same run left behind. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.campaign import select
from fleet.messages import DeviceResult, Outcome
from fleet.settings import WipePolicy


@dataclass(frozen=True, slots=True)
class Scope:
    """What a campaign covers. `resumed`: the run was begun before; `results` are those kept."""

    selector: select.Selector = select.ALL
    results: tuple[DeviceResult, ...] = ()
    resumed: bool = False
    exit_reason: str = ""
    """Why the resumed run ended: after an open breaker one device at a time goes first."""
    wipe: WipePolicy | None = None
    """None: each node's own policy."""

    def certified(self) -> dict[str, DeviceResult]:
        """Results that stay, as long as the node still shows their certificate in force."""
        return {r.uuid: r for r in self.results if r.outcome is Outcome.CERTIFIED}

    def attempts_made(self) -> dict[str, int]:
        """The highest attempt number each device has a result for, read off the operation ids."""
        made: dict[str, int] = {}
        for result in self.results:
            attempt = result.operation.rpartition("/")[2]
            if attempt.isdecimal():
                made[result.uuid] = max(made.get(result.uuid, 0), int(attempt))
        return made
