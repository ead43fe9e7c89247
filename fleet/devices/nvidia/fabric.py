"""Whether a GPU has to be part of a switch fabric, and whether the service for it runs (F18).

A driver says "not supported" also where the fabric was never set up. So that is believed only of
hardware that is not known to have one: no switch is on this node's bus, and the product is none
whose switches are elsewhere.
"""

from __future__ import annotations

import re
from pathlib import Path

from fleet.core.errors import DriverAbsent
from fleet.devices import sysfs
from fleet.devices.nvidia import nvml
from fleet.devices.nvidia.probe import Probe

VENDOR, SWITCH_CLASS = 0x10DE, 0x068000
"""NVSwitches are bridges of the class "other"."""
PRODUCTS = re.compile(r"\b(GB200|GB300|B200|B300)\b")
"""Products that are built with a switch fabric, though the node's bus may show no switch: those of
a rack have them in trays of their own, and from NVLink 5 on they are reached by other ways."""
SERVICES = ("nv-fabricmanager", "nvidia-fabricmanager")
NOT_SERVED = "NVSwitches are on this node and no fabric manager runs"
START = "start the fabric manager of the driver's version: `systemctl start nvidia-fabricmanager`"
_COMM_LENGTH = 15
_NAMES = frozenset(name[:_COMM_LENGTH] for name in SERVICES)


def switched(root: Path) -> bool:
    """Whether a switch of the fabric is on this node's PCI bus."""
    try:
        found = sysfs.discover(root, vendors={VENDOR}, classes={SWITCH_CLASS})
    except DriverAbsent:
        return False
    return bool(found)


def known_product(probe: Probe) -> bool:
    """Whether a GPU is of a product that is built with a fabric."""
    return PRODUCTS.search(nvml.text(probe.ask("GetName") or "")) is not None


def served(root: Path) -> bool:
    """Whether a process of root by the name of the fabric's service runs on the node.

    In a container of the driver's as well: it is the name in the kernel that is looked at.
    """
    try:
        names = [found for found in (root / "proc").iterdir() if found.name.isdecimal()]
    except OSError:
        return False
    return any(_is_service(process) for process in names)


def _is_service(process: Path) -> bool:
    if (sysfs.read_text(process / "comm") or "").strip() not in _NAMES:
        return False
    status = sysfs.read_text(process / "status") or ""
    user = re.search(r"^Uid:\s+\d+\s+(\d+)", status, re.MULTILINE)
    state = re.search(r"^State:\s+(\w)", status, re.MULTILINE)
    return user is not None and user[1] == "0" and (state is None or state[1] not in "ZX")
