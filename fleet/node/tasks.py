"""What a wipe is asked to do, and how its flow ends early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet.core import errors
from fleet.core.messages import DeviceResult
from fleet.core.model import ClaimUid, Device, OperationId, Token
from fleet.core.settings import WipePolicy
from fleet.devices.base import Coverage
from fleet.devices.wipe import plan
from fleet.devices.wipe.result import Kind, WipeResult
from fleet.node.registry import Work


@dataclass(frozen=True, slots=True)
class WipeTask:
    """Why and under what a device is wiped."""

    work: Work
    policy: WipePolicy
    """What the worker goes by, time limits too, and what the device is judged by."""
    token: Token | None = None
    """Token of the lease; None for the idle cleaner, which needs none."""
    run: str = ""
    claim: ClaimUid | None = None
    """Claim for which the device is prepared or torn down."""
    demand: WipePolicy | None = None
    """What a claim asks for beyond `policy`. A device that does not meet it is no worse for that:
    the claim is refused, and nobody else."""
    binding: bool = True
    """Whether a demand that is not met ends the wipe as refused. Not in a teardown, which has
    nobody left to refuse."""

    @property
    def device(self) -> Device:
        return self.work.device

    @property
    def facts(self) -> dict[str, object]:
        """What a line of the log about this wipe is about."""
        return {
            "device": self.device.uuid,
            "token": self.token,
            "run": self.run,
            "claim": self.claim,
            "operation": self.work.operation,
        }

    @property
    def asked(self) -> WipePolicy:
        """The policy with the demand."""
        return self.policy.tightened_by(self.demand)

    def short(self, coverage: Coverage) -> str:
        """By what a wipe that passed falls short of the demand; "" when it does not."""
        return plan.coverage_problem(coverage, self.asked.coverage_floor)

    def lacking(self, wipe: WipeResult) -> str:
        """As `short`, of any wipe: one that reads no memory meets no demand for coverage."""
        if wipe.kind is not Kind.RESET:
            return self.short(wipe.coverage)
        if self.asked.coverage_floor <= self.policy.coverage_floor:
            return ""
        return (
            f"a coverage of {self.asked.coverage_floor:.2%} cannot be shown for a device whose"
            " memory is not read back"
        )

    def floor(self, coverage: Coverage) -> float:
        """The highest floor asked for that a wipe reached: its certificate names it."""
        return (self.policy if self.short(coverage) else self.asked).coverage_floor


class Stopped(Exception):
    """The wipe ends here with a result already settled in the journal."""

    def __init__(self, result: DeviceResult) -> None:
        super().__init__(result.outcome)
        self.result = result


def refuse_other(op: OperationId, known: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """A repeated order is harmless, another one under the same id is a mistake of its sender."""
    differing = sorted(name for name in asked if known.get(name) != asked[name])
    if differing:
        raise errors.InputInvalid(
            f"operation {op} is known with another {', '.join(differing)}",
            remedy="give every order an operation id of its own",
        )
