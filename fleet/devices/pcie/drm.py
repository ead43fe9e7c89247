"""DRM nodes of the machine and the PCI function each of them reaches.

A card in a partition mode (AMD's DPX, QPX, CPX) has one render node below its own PCI function and
the others below platform devices (``amdgpu_xcp_<n>``) that name no card: only the topology of the
compute driver tells whose they are. A node that nobody tells the owner of may reach any AMD GPU.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet.core.pci import address as canonical
from fleet.devices.sysfs import PCI_DEVICES, Function, device_numbers, read_text

ENTRIES = ("sys/class/drm/*/dev", "sys/devices/platform/amdgpu_xcp*/drm/*/dev")
TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"
MODES = {"current_compute_partition": "SPX", "current_memory_partition": "NPS1"}
"""Files that tell how a card is partitioned, and what they say of one that is not."""
_SLOT = 0xFFFF
"""Bits of a topology's location that are bus, device and function; above is the partition."""

Numbers = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Reach:
    """One DRM node and the card it leads to."""

    path: str
    """On the host."""
    numbers: Numbers | None
    address: str
    """Of the PCI function; "": nobody tells."""


def reaches(root: Path) -> tuple[Reach, ...]:
    """Every DRM node of the machine, by path."""
    told = {f"renderD{minor}": address for minor, address in _located(root).items()}
    owned = {
        entry.parent.name: canonical(entry.parents[2].name)
        for entry in (root / PCI_DEVICES).glob("*/drm/*/dev")
    }
    found: dict[str, Reach] = {}
    for entry in sorted(entry for pattern in ENTRIES for entry in root.glob(pattern)):
        name, home = entry.parent.name, Path(os.path.realpath(entry.parent))
        # Render and primary node of one card, or of one partition, stand side by side.
        beside = (told[one] for one in _beside(home) if one in told)
        address = owned.get(name) or _above(home) or told.get(name) or next(beside, "")
        if address or not _is_of_another_driver(home):
            path = f"/dev/dri/{name}"
            found[path] = Reach(path, device_numbers(entry), address)
    return tuple(found[path] for path in sorted(found))


def partitioning(function: Function) -> str:
    """How a card is partitioned, in words; "" where it is one whole."""
    said = [
        f"{name} is {text or 'not readable'}"
        for name, whole in MODES.items()
        if (function.path / name).exists()
        and (text := read_text(function.path / name) or "") != whole
    ]
    parts = list(_located(function.root).values()).count(function.address)
    if parts > 1:
        said.append(f"the compute driver lists {parts} parts of it")
    return ", ".join(said)


def _located(root: Path) -> Mapping[int, str]:
    """PCI address by minor number of the render node, as the compute driver tells."""
    found: dict[int, str] = {}
    for entry in sorted((root / TOPOLOGY).glob("*/properties")):
        facts = dict(
            line.split(maxsplit=1)
            for line in (read_text(entry) or "").splitlines()
            if len(line.split(maxsplit=1)) == 2
        )
        try:
            minor, place = int(facts["drm_render_minor"]), int(facts["location_id"])
            domain = int(facts.get("domain", "0"))
        except (KeyError, ValueError):
            continue
        if minor > 0:
            place &= _SLOT
            slot = f"{place >> 8:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
            found[minor] = canonical(f"{domain:04x}:{slot}") or ""
    return found


def _beside(home: Path) -> tuple[str, ...]:
    if home.parent.name != "drm" or "platform" not in home.parts:
        return ()  # the class itself, where the nodes of all cards stand
    try:
        return tuple(sorted(os.listdir(home.parent)))  # noqa: PTH208 - names alone
    except OSError:
        return ()


def _above(home: Path) -> str:
    """The PCI function below which a node is registered; "": none."""
    return next((found for part in reversed(home.parts) if (found := canonical(part))), "")


def _is_of_another_driver(home: Path) -> bool:
    """Whether a device outside PCI has a driver of its own, as a firmware's frame buffer has."""
    device = home.parent.parent
    return (device / "driver").exists() and "amdgpu" not in device.name
