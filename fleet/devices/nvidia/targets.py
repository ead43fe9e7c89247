"""What a wipe worker opens for some units: a whole GPU, or the instance that is exactly them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fleet.core.errors import BackendFailed, DeviceUnknown
from fleet.core.model import Accelerator, UnitId
from fleet.devices.base import Instance
from fleet.devices.health.readings import Readings
from fleet.devices.nvidia import attributes, nvml
from fleet.devices.nvidia.inventory import Card
from fleet.devices.nvidia.mig import Mig
from fleet.devices.nvidia.probe import Probe
from fleet.devices.nvidia.session import Target


def target(
    card: Card,
    accelerator: Accelerator,
    units: Sequence[UnitId],
    *,
    mig: Mig,
    library: nvml.Library,
    read: Callable[[], Readings],
) -> Target:
    """What to open for `units`, with sizes as the driver has them for just that.

    Raises `DeviceUnknown` for units that are not the GPU's, `BackendFailed` where its memory is not
    its own alone (B64) or nothing can run on these units now, `DeviceLost`.
    """
    wanted = tuple(unit for unit in accelerator.units if unit.id in set(units))
    if not wanted or len(wanted) != len(set(units)):
        raise DeviceUnknown(f"units {', '.join(units)} are not all of {accelerator.uuid}")
    _require_own_memory(accelerator)
    visible: str = accelerator.uuid
    handle = card.handle
    if mig.enabled(card.handle):
        instance, handle = _covering(card, units, mig)
        visible = instance.uuid
    memory = attributes.memory(Probe(library, handle))
    if memory is None:
        raise BackendFailed(f"the driver does not tell how much memory {visible} has")
    return Target(
        visible=visible,
        accelerator=accelerator.uuid,
        units=wanted,
        total_bytes=memory.total,
        reserved_bytes=memory.reserved or 0,  # unknown: what is not covered counts as left over
        read=read,
    )


def _require_own_memory(accelerator: Accelerator) -> None:
    kind = accelerator.device.attributes.get("memory", "")
    if kind != attributes.OWN_MEMORY:
        raise BackendFailed(
            f"{accelerator.device.name} cannot be proven clean: its memory is {kind or 'unknown'}",
            remedy=attributes.COHERENT_REMEDY,
        )


def _covering(card: Card, units: Sequence[UnitId], mig: Mig) -> tuple[Instance, Any]:
    """The instance that is exactly `units`, and the handle of its device."""
    found = mig.find(card.handle, card.uuid, lambda one: set(one.units) == set(units))
    if found is not None:
        return found
    raise BackendFailed(
        f"{card.uuid} is partitioned and no instance is exactly {', '.join(units)}: nothing can run"
        " there, and nothing was written",
        remedy="have the node make the instance first, or switch partitioning off",
    )
