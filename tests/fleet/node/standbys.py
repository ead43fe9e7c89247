"""Impatient standbys for tests: they do in tenths of a second what takes half a minute else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fleet.core.clock import SystemClock
from fleet.core.messages import TeardownOrder
from fleet.node.standby import Patience, Standby
from fleet.rpc.client import DoorNode
from fleet.wiring import adapters, plugin
from tests.fleet.node.conftest import Lab, wait_for

QUICK = Patience(grace_s=0.05, silence_s=0.25, yield_s=0.3, pulse_s=0.01)
TEARDOWN = TeardownOrder(uid="claim-a")


@dataclass
class QuickDoor:
    """The door with a short wait for the pulse."""

    door: DoorNode

    def pulse(self, *, timeout_s: float = 0.1) -> Mapping[str, Any]:
        """Proof of life of the owner."""
        return self.door.pulse(timeout_s=timeout_s)


@contextmanager
def standby(lab: Lab, patience: Patience = QUICK) -> Iterator[Standby]:
    """An impatient standby of the lab's node, in this process."""
    door = adapters.open_door(lab.plan)
    made = replace(plugin.open_standby(lab.plan), door=QuickDoor(door), patience=patience)
    try:
        yield made
    finally:
        made.close()
        door.close()


def step_until(standing: Standby, fact: Callable[[], bool]) -> None:
    """Step until `fact` holds."""

    def stepped() -> bool:
        standing.step()
        return fact()

    wait_for(stepped)


def steps(standing: Standby, *, seconds: float) -> None:
    """Step for a while."""
    clock = SystemClock()
    until = clock.monotonic() + seconds
    step_until(standing, lambda: clock.monotonic() >= until)


def owns(standing: Standby) -> bool:
    return standing.service is not None
