"""A simulated back end whose partitions must be made first, and that can be cut at every step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fleet.core import errors
from fleet.core.model import Device, UnitId, Uuid
from fleet.devices.base import Instance
from fleet.devices.simulated.backend import SimulatedBackend
from tests.fleet.node.conftest import Lab

STEPS = ("record", "gi", "ci", "uuid")
"""Where a making can be cut: before anything is there ... before its UUID is written down."""


class Killed(BaseException):
    """The service dies here: nothing of it runs any more, and nothing is tidied up."""


class PartingBackend(SimulatedBackend):
    """Instances live in this object, as a driver's outlive the processes that made them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.there: list[Instance] = []
        self.cut = ""
        self.user = ""
        """Who keeps every instance from being removed."""
        self.refuses = ""
        self.off = False
        self.outsider: Callable[[], None] = lambda: None
        """What somebody else does just before something is made."""
        self.log: list[str] = []
        self._numbers = itertools.count(1)

    def partitioned(self, device: Device) -> bool:
        """Whether it has more than one unit, while partitioning is on."""
        found, _ = self.device(device.accelerator)
        return not self.off and len(found.units) > 1

    def instances(self, accelerator: Uuid) -> Sequence[Instance]:
        """All there are."""
        return [instance for instance in self.there if instance.accelerator == accelerator]

    def make(self, device: Device) -> Instance:
        """As a driver: GPU instance, then compute instance, with an end at any step."""
        self._reached("record")
        self.outsider()
        if self.refuses:
            raise errors.BackendFailed(self.refuses)
        half = next((i for i in self.there if (i.device, i.uuid) == (device.uuid, "")), None)
        taken = [i for i in self.there if i is not half and set(i.units) & set(device.units)]
        if taken:
            raise errors.BackendFailed(f"taken by gi {taken[0].ids['gi']}")
        if half is None:
            half = Instance(
                device.accelerator, "", device.uuid, device.units, {"gi": next(self._numbers)}
            )
            self.there.append(half)
        self._reached("gi")
        made = replace(half, uuid=f"MIG-{half.ids['gi']}", ids={**half.ids, "ci": 0})
        self._become(half, made)
        self.log.append(f"made {device.name}")
        self._reached("ci")
        self._reached("uuid")
        return made

    def unmake(self, instance: Instance) -> None:
        """As a driver: refused while somebody uses it, compute instance first."""
        now = next((i for i in self.there if i.ids["gi"] == instance.ids["gi"]), None)
        if now is None:
            return
        if self.user:
            raise errors.BackendFailed(f"gi {now.ids['gi']} is in use by {self.user}")
        half = replace(now, uuid="", ids={"gi": now.ids["gi"]})
        self._become(now, half)
        self._reached("unmade ci")
        self.there.remove(half)
        self.log.append(f"removed {self.device(instance.device or Uuid(''))[1].name}")
        self._reached("unmade")

    def numbers_again(self) -> None:
        """Numbers are given out from the first one again."""
        self._numbers = itertools.count(1)

    def foreign(self, accelerator: Uuid, units: Iterable[UnitId]) -> Instance:
        """What somebody else makes."""
        gi = next(self._numbers)
        made = Instance(accelerator, f"MIG-foreign-{gi}", None, tuple(units), {"gi": gi, "ci": 0})
        self.there.append(made)
        return made

    def _become(self, old: Instance, new: Instance) -> None:
        self.there[self.there.index(old)] = new

    def _reached(self, step: str) -> None:
        if self.cut == step:
            raise Killed(step)


def parting(lab: Lab) -> PartingBackend:
    """Let the lab's node find that its partitionable accelerator is partitioned."""
    backend = PartingBackend(lab.directory / "sim")
    lab.node._registry.backend = backend
    return backend
