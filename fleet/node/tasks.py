"""What a wipe is asked to do, and how its flow ends early."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.messages import DeviceResult
from fleet.model import ClaimUid, Device, Token
from fleet.node.registry import Work
from fleet.settings import WipePolicy


@dataclass(frozen=True, slots=True)
class WipeTask:
    """Why and under what a device is wiped."""

    work: Work
    policy: WipePolicy
    token: Token | None = None
    """Token of the lease; None for the idle cleaner, which needs none."""
    run: str = ""
    claim: ClaimUid | None = None
    """Claim for which the device is prepared or torn down."""

    @property
    def device(self) -> Device:
        return self.work.device


class Stopped(Exception):
    """The wipe ends here with a result already settled in the journal."""

    def __init__(self, result: DeviceResult) -> None:
        super().__init__(result.outcome)
        self.result = result
