"""Devices taken out of the slices for good by an operator (`fleet devices retire`).

Kept in the journal, so that no restart and no card that comes back offers them again: only a person
undoes it (`fleet node adopt --device DEVICE`). A retired device is quarantined besides; whoever
takes it back into service clears that too, and then it is wiped like any other. Hardware that the
node does not report any more is retired as well: until then its entry stays in the slice as lost.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from fleet.core import errors
from fleet.core.model import State, Unit, Uuid
from fleet.node.operator import Decisions
from fleet.node.registry import Registry

_KEY = "retired:"


def retired(registry: Registry) -> tuple[str, ...]:
    """UUIDs of the devices that are retired."""
    meta = dict(registry.journal.meta)
    return tuple(sorted(k.removeprefix(_KEY) for k, v in meta.items() if k.startswith(_KEY) and v))


def retire(decisions: Decisions, device: str, *, detail: str, operator: str) -> str:
    """Retire a device by name or UUID, or hardware that is gone by UUID; its UUID.

    Raises `DeviceBusy` while somebody has it, `DeviceUnknown`. Doing it twice changes nothing.
    """
    registry = decisions.registry
    uuid, units, present = _found(registry, device)
    holders = {unit.claim for unit in units if unit.claim} | set(registry.attached((uuid,)))
    if holders or any(unit.state is State.IN_USE for unit in units):
        raise errors.DeviceBusy(
            f"{device} is in use by {', '.join(sorted(holders)) or 'somebody'}",
            remedy="drain the node with `fleet node drain`, or end the claim named; then repeat",
        )
    if uuid in retired(registry):
        return uuid
    if present and not all(unit.reasons for unit in units):
        decisions.quarantine(device, detail=f"retired: {detail}", operator=operator)
    now = registry.clock.now()
    with registry.commit() as commit:
        kept = {"operator": operator, "detail": detail, "at": now}
        commit.set_meta(f"{_KEY}{uuid}", json.dumps(kept))
        commit.record_act("retire", uuid, operator=operator, detail=detail, now=now)
    return uuid


def restore(registry: Registry, devices: Sequence[str], *, operator: str) -> None:
    """Take the devices named back into the slices; those not retired are left as they are."""
    chosen = {_found(registry, device)[0] for device in devices} & set(retired(registry))
    if not chosen:
        return
    now = registry.clock.now()
    with registry.commit() as commit:
        for uuid in sorted(chosen):
            commit.set_meta(f"{_KEY}{uuid}", "")
            commit.record_act("unretire", uuid, operator=operator, detail="", now=now)


def _found(registry: Registry, device: str) -> tuple[Uuid, list[Unit], bool]:
    """UUID, units and whether the node reports the device now."""
    for one in registry.devices.values():
        if device in (one.uuid, one.name):
            return one.uuid, registry.units(one), True
    gone = [u for u in registry.journal.units.values() if u.id.rpartition("/")[0] == device]
    if not gone:
        raise errors.DeviceUnknown(f"node {registry.place.node} never had a device {device!r}")
    return Uuid(device), gone, False
