"""Who keeps a device, where that keeps it from what has to happen to it (B33, B36).

A quarantine does not remove whoever uses the device: pods that got it through an extended resource
are not evicted by a taint, and nothing is killed by us. And a device that is dirty is not wiped
while somebody has it open. After a while of either it is looked up who it is, for the people of the
node: `fleet status` and `fleet quarantine list` name the claim with its pod, or the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fleet.core import errors
from fleet.core.model import Device, State, Unit, Uuid
from fleet.node import outcomes
from fleet.node.ports import TenantProof
from fleet.node.registry import Registry
from fleet.node.validation import Validator

TOLD_AFTER_S = 120.0
"""Time, s, in which it usually ends by itself: a pod is evicted, a wipe waits for a look."""


@dataclass
class Occupants:
    """Looks at devices that should be free by now. `of` on any thread, `look` on one."""

    registry: Registry
    tenants: TenantProof
    validator: Validator
    after_s: float = TOLD_AFTER_S
    _found: dict[Uuid, str] = field(default_factory=dict)

    def of(self, device: Uuid) -> str:
        """Who keeps the device from being wiped or repaired, in words; "" for nobody known."""
        return self._found.get(device, "")

    def look(self) -> None:
        """Look again. Raises nothing that a driver or a host can cause."""
        found: dict[Uuid, str] = {}
        for device in tuple(self.registry.devices.values()):
            try:
                told = self._who(device)
            except errors.FleetError as error:
                told = f"somebody, for all that is known: {error.detail}"
            if told:
                found[device.uuid] = told
        self._found = found

    def _who(self, device: Device) -> str:
        units, state = self.registry.units(device), self.registry.state(device)
        if state is State.IN_USE:
            return self._tenant(units) if self._is_late(_since_fault, units) else ""
        if state is not State.DIRTY or not self._is_late(_since_change, units):
            return ""
        if self.registry.work_on(device) is not None:
            return ""
        return ", ".join(outcomes.names(self.validator.foreign(device)))

    def _tenant(self, units: Sequence[Unit]) -> str:
        claims = self.registry.journal.claims
        mine = [claims[unit.claim] for unit in units if unit.claim in claims]
        if not mine:
            return "a claim without a record"
        claim = mine[0]
        named = f"claim {claim.namespace}/{claim.name} ({claim.uid})"
        pods = self.tenants.running(claim.consumers)
        if pods:
            return f"{named}: {', '.join(f'pod {uid}' for uid in pods)}"
        why = self.tenants.obstacle(claim)
        return f"{named}: {why}" if why else f"{named}, none of whose pods is seen to run"

    def _is_late(self, since: Callable[[Sequence[Unit]], float], units: Sequence[Unit]) -> bool:
        # A clock that was set back makes the age negative: told too early is better than never.
        begun = since(units)
        return begun != _NEVER and not 0 <= self.registry.clock.now() - begun < self.after_s


_NEVER = float("inf")


def _since_fault(units: Sequence[Unit]) -> float:
    return min((reason.since for unit in units for reason in unit.reasons), default=_NEVER)


def _since_change(units: Sequence[Unit]) -> float:
    return max(unit.since for unit in units)
