"""Whether somebody else offers the same hardware: another driver's slice, or an extended resource.

Pure. Two publishers of one accelerator would give it to two tenants, so ours stops and says why
(B4). Only what the other one publishes about this node can be compared: UUIDs and PCI addresses, by
the names that drivers use for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fleet.core import pci
from fleet.core.messages import DeviceView
from fleet.kube.base import Object, object_in
from fleet.plugin.slices.pool_view import devices_of, read_pools

_UUIDS = frozenset({"uuid", "parentuuid", "deviceuuid", "gpuuuid"})
_ADDRESSES = frozenset({"pcibusid", "pciaddress", "pcieaddress", "busid", "bdf"})
VENDOR_PREFIXES: Mapping[str, tuple[str, ...]] = {
    "nvidia": ("nvidia.com/",),
    "amd": ("amd.com/",),
    "intel": ("gpu.intel.com/", "habana.ai/"),
    "google": ("google.com/tpu",),
}
"""Extended resources a vendor's device plugin offers whole accelerators or parts of them under."""


def covered(
    devices: Sequence[DeviceView], *, slices: Iterable[Object], driver: str, node: Object
) -> Mapping[str, str]:
    """Why each device that somebody else offers must not be published, by UUID.

    `slices`: all of the node's, of any driver; `node`: the Node object.
    """
    found: dict[str, str] = {}
    for (other, pool), reading in read_pools(slices).items():
        if other == driver:
            continue
        for entry in (entry for part in reading.slices for entry in devices_of(part)):
            uuids, addresses = _marks(entry)
            for device in devices:
                if mark := _overlap(device, uuids, addresses, simulated=_simulated(entry)):
                    name = entry.get("name", "")
                    found.setdefault(
                        device.uuid,
                        f"driver {other} publishes the same hardware ({mark}) as {name!r} in pool"
                        f" {pool!r}",
                    )
    for device in devices:
        if resource := _extended(device, node):
            found.setdefault(
                device.uuid, f"the extended resource {resource} offers the node's accelerators too"
            )
    return found


def own_marks(device: DeviceView) -> tuple[frozenset[str], str]:
    """UUIDs (its own and its parent's, lower case) and PCI address ("" unknown) of a device.

    The address of simulated hardware is made up and so names no real slot.
    """
    uuids = {device.uuid, device.accelerator, device.attributes.get("parent", "")} - {""}
    return (
        frozenset(uuid.lower() for uuid in uuids),
        pci.address(device.attributes.get("pci", "")),
    )


def is_simulated(device: DeviceView) -> bool:
    """Whether the device is simulated."""
    return device.attributes.get("simulated") == "true"


def _overlap(
    device: DeviceView, uuids: frozenset[str], addresses: frozenset[str], *, simulated: bool
) -> str:
    """What both have in common, or "".

    Two partitions of one parent in the hands of two drivers count as common too: they share its
    resets and faults.
    """
    own, address = own_marks(device)
    if common := own & uuids:
        return f"UUID {min(common)}"
    if address and address in addresses and is_simulated(device) == simulated:
        return f"PCI address {address}"
    return ""


def _marks(entry: Object) -> tuple[frozenset[str], frozenset[str]]:
    """All UUIDs and PCI addresses another driver's device shows."""
    uuids, addresses = set(), set()
    for name, value in object_in(entry.get("attributes")).items():
        text = value.get("string") if isinstance(value, Mapping) else None
        plain = name.rpartition("/")[2].lower()
        if not isinstance(text, str) or not text:
            continue
        if plain in _UUIDS:
            uuids.add(text.lower())
        elif plain in _ADDRESSES and (found := pci.address(text)):
            addresses.add(found)
    return frozenset(uuids), frozenset(addresses)


def _simulated(entry: Object) -> bool:
    value = object_in(object_in(entry.get("attributes")).get("simulated"))
    return value.get("bool") is True


def _extended(device: DeviceView, node: Object) -> str:
    """Name of an extended resource of the device's vendor that the node has some of."""
    prefixes = VENDOR_PREFIXES.get(device.attributes.get("vendor", "").lower(), ())
    for name, amount in object_in(object_in(node.get("status")).get("capacity")).items():
        if name.startswith(prefixes) and str(amount) not in ("0", "") and prefixes:
            return str(name)
    return ""
