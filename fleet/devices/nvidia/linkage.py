"""Which GPUs are reset together because of the links between them.

GPUs before Ampere that are linked directly can only be reset as a group; from Ampere on, and
through switches, each can be reset alone (reference/gpus.md 1.11). Where a GPU does not tell what
it is, its links count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fleet.core import errors, pci
from fleet.core.model import Uuid
from fleet.devices.nvidia import nvml
from fleet.devices.nvidia.nvml import Library

AMPERE = 7
LINKS_MAX = 36
ACTIVE = 1
_NO_LINK = (nvml.NOT_SUPPORTED, nvml.INVALID_ARGUMENT, nvml.FUNCTION_NOT_FOUND)
_GPU = 0
"""What the driver calls the other end of a link that leads to a GPU directly."""


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU and its slot; `address` is in the form of sysfs."""

    uuid: Uuid
    address: str


def handle(library: Library, card: Card) -> Any:
    """The driver's handle of a GPU, opened by its slot and proven to be the one meant.

    Raises `DeviceLost` where another one is in the slot, `BackendFailed`.
    """
    found = library.call("nvmlDeviceGetHandleByPciBusId", card.address)
    uuid = nvml.text(library.call("nvmlDeviceGetUUID", found))
    if uuid != card.uuid:
        raise errors.DeviceLost(f"slot {card.address} has {uuid} now, not {card.uuid}")
    return found


def group(library: Library, card: Card) -> tuple[Card, ...]:
    """The GPU itself first, then all that reset along with it. Raises as `handle`.

    A GPU that has to be reset before it answers anything is taken alone: the tool refuses where
    that is wrong.
    """
    found, waiting = {card.address: card}, [card]
    while waiting:
        one = waiting.pop()
        for peer in _peers(library, one):
            if peer.address not in found:
                found[peer.address] = peer
                waiting.append(peer)
    return tuple(found.values())


def _peers(library: Library, card: Card) -> list[Card]:
    try:
        found = handle(library, card)
    except errors.DriverRefused as error:
        if error.code != nvml.RESET_REQUIRED:
            raise
        return []
    architecture = library.ask("nvmlDeviceGetArchitecture", found)
    if architecture is not None and AMPERE <= architecture != 0xFFFFFFFF:
        return []
    return [
        peer
        for link in range(LINKS_MAX)
        if _is_up(library, found, link) and (peer := _peer(library, found, link)) is not None
    ]


def _is_up(library: Library, found: Any, link: int) -> bool:
    """Whether a link leads somewhere now. Raises `DriverRefused` where that is not told: a link
    that cannot be read is no link to nobody (F41)."""
    try:
        return bool(library.call("nvmlDeviceGetNvLinkState", found, link) == ACTIVE)
    except errors.DriverRefused as error:
        if error.code not in (*_NO_LINK, nvml.RESET_REQUIRED):
            raise
        return False


def _peer(library: Library, found: Any, link: int) -> Card | None:
    """The GPU at the other end of a link; None: a switch, or a processor.

    Raises `BackendFailed` where the other end cannot be told.
    """
    kind = library.ask("nvmlDeviceGetNvLinkRemoteDeviceType", found, link)
    if kind not in (None, _GPU):
        return None
    remote = library.call("nvmlDeviceGetNvLinkRemotePciInfo", found, link)
    address = pci.address(nvml.text(remote.busId))
    try:
        there = library.call("nvmlDeviceGetHandleByPciBusId", address)
    except errors.DriverRefused as error:
        if error.code == nvml.NOT_FOUND and kind is None:
            return None  # no GPU of ours has that address: a switch on a driver that tells no kinds
        raise
    return Card(Uuid(nvml.text(library.call("nvmlDeviceGetUUID", there))), address)
