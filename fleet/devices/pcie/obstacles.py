"""What keeps a card that is there from being wiped and handed out, in words.

The same words at every sweep, at a scrub and at a grant: nobody has to try one to hear of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from fleet.devices.pcie import drm
from fleet.devices.pcie.catalogue import part_of
from fleet.devices.pcie.nodes import PASSTHROUGH
from fleet.devices.sysfs import Function

BRIDGE = 0x0604


def obstacles(function: Function) -> tuple[str, ...]:
    """Everything in the way; empty where there is nothing."""
    return tuple(_obstacles(function))


def _obstacles(function: Function) -> Iterator[str]:
    if said := drm.partitioning(function):
        yield (
            f"it is partitioned ({said}), and only a whole card is wiped and handed out: write SPX"
            f" to current_compute_partition below {function.path}"
        )
    if function.driver == PASSTHROUGH and (others := sharing(function)):
        yield (
            f"it is in one IOMMU group with {', '.join(others)}: whoever gets one reaches all of"
            " them; plug it into a slot with a group of its own"
        )
    if function.windowless:
        yield (
            "no window onto it is mapped: its BARs have no size; let the firmware map large BARs"
            " (above 4 GiB), then reboot"
        )


def sharing(function: Function) -> tuple[str, ...]:
    """Addresses of everything else in its IOMMU group: its VFIO node reaches all of it.

    Ports pass traffic on and nothing more. What stands in the same slot and is no accelerator (its
    sound or USB function) is a part of the card itself.
    """
    own = function.address.rpartition(".")[0]
    return tuple(
        other.address
        for other in function.group_members()
        if other != function and not _belongs(other, own)
    )


def _belongs(other: Function, slot: str) -> bool:
    ids = other.ids
    if ids is None:
        return False
    if ids.class_code >> 8 == BRIDGE:
        return True
    return other.address.rpartition(".")[0] == slot and part_of(ids) is None
