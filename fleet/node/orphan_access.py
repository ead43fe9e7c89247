"""The orphan sweep's look at device rules: who may still open a device that no claim holds (A3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fleet.core import errors
from fleet.core.model import Device
from fleet.node import device_grants
from fleet.node.device_grants import Permission
from fleet.node.registry import Registry

UNKNOWN = "which containers may still open a device cannot be read from this node's cgroups"


@dataclass
class Lingering:
    """Looks at all devices without a claim; `found` and `note` are of the last look."""

    registry: Registry
    root: Path
    found: tuple[str, ...] = ()
    """Containers that may still open a device nobody holds, in words."""
    notes: tuple[str, ...] = field(default_factory=tuple)
    """What cannot be told on this node."""

    def look(self) -> None:
        """Look again. Never raises for what cannot be read."""
        held = {
            uuid
            for claim in tuple(self.registry.journal.claims.values())
            for uuid in (*claim.devices, *claim.attached)
        }
        units = {
            unit
            for uuid in held
            if uuid in self.registry.devices
            for unit in self.registry.devices[uuid].units
        }
        told: list[str] = []
        notes: set[str] = set()
        for device in tuple(self.registry.devices.values()):
            if not units.intersection(device.units):
                self._look(device, told, notes)
        self.found, self.notes = tuple(told), tuple(sorted(notes))

    def _look(self, device: Device, told: list[str], notes: set[str]) -> None:
        try:
            granted = self.registry.backend.grant(device).nodes
        except errors.FleetError:
            return  # a device that cannot be granted is a matter of its health, not of this
        nodes = [node for node in granted if not node.shared]
        for finding in device_grants.remaining(self.root, nodes):
            if finding.permission is Permission.ALLOWED:
                told.append(
                    f"{finding.cgroup} may still open {device.name} ({finding.numbers}),"
                    " which no claim holds"
                )
            elif finding.permission is Permission.UNKNOWN:
                notes.add(UNKNOWN)
