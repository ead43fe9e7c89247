"""What comes after a reset that was refused or failed: one step up, then a person.

A device that needs a reset and does not get it would be tried at every retest for ever. The first
failure asks for a reboot of the node, and until that has happened nothing more is tried by itself;
a reset that fails after it too is a person's matter. Where somebody merely has the device open, no
step is taken: it is tried again, and whoever it is can be ended.

In which boot a reset failed is written down with the reason; what was cleared counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from fleet.core.model import Device, Reason, Unit, Uuid
from fleet.devices.health import reasons
from fleet.node.journal.journal import Commit
from fleet.node.registry import Registry

FAILED, EXHAUSTED = "reset-failed", "reset-exhausted"
_BOOT = "reset-failed:"
"""Beginning of the journal's words for the boot in which a reset of an accelerator failed."""


def climbed(registry: Registry, device: Device, found: AbstractSet[Reason]) -> frozenset[Reason]:
    """`found`, with a failed reset as the step it is by now."""
    return frozenset(_step(registry, device, reason) for reason in found)


def remember(registry: Registry, commit: Commit, device: Device, found: Iterable[Reason]) -> None:
    """Write the boot down, with the transaction that adds the reasons."""
    if any(reason.code == FAILED for reason in found):
        commit.set_meta(f"{_BOOT}{device.accelerator}", registry.boot_id)


def waits(registry: Registry, units: Iterable[Unit]) -> bool:
    """Whether a retest would only try what has failed in this boot, or needs a person by now."""
    return any(
        reason.code == EXHAUSTED
        or (reason.code == FAILED and _failed_now(registry, Uuid(unit.id.rpartition("/")[0])))
        for unit in units
        for reason in unit.reasons
    )


def _step(registry: Registry, device: Device, reason: Reason) -> Reason:
    if reason.code != FAILED:
        return reason
    before = any(one.code == FAILED for unit in registry.units(device) for one in unit.reasons)
    if not before or _failed_now(registry, device.accelerator):
        return reason
    last = reasons.make(EXHAUSTED, reason.source, detail=reason.detail, since=reason.since)
    return replace(last, since=reason.since)


def _failed_now(registry: Registry, accelerator: Uuid) -> bool:
    return registry.journal.meta.get(f"{_BOOT}{accelerator}") == registry.boot_id
