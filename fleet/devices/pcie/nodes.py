"""Device nodes of a PCI function: what a container gets, and by what its holders are recognised.

Numbers come from ``dev`` files in sysfs, names from the drivers' own rules; whether a node exists
is asked of ``<root>/dev`` only when it is granted.

What is granted is what the rules of a driver name. Who holds a card is a wider question: every
node counts that the kernel registers anywhere below the function, that the compute driver's
topology says leads to it, or of which nobody can tell where it leads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet.core.errors import BackendFailed, DeviceLost
from fleet.core.pci import address as canonical
from fleet.devices.base import DeviceNode, Grant
from fleet.devices.pcie import drm
from fleet.devices.pcie.catalogue import Part
from fleet.devices.sysfs import Function, device_numbers, read_text

PASSTHROUGH = "vfio-pci"
KFD = "/dev/kfd"
AMD = "amdgpu"
ANY = "any"
NVIDIA_MAJOR = 195
"""Of the driver's nodes, the same on every machine."""

Numbers = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Node:
    """One node by its path on the host."""

    path: str
    numbers: Numbers | None
    granted: bool = True
    """Whether a container gets it; the others only show who has the device open."""
    shared: bool = False
    """Whether it reaches the driver and no device: having it open is no sign."""


def nodes_of(function: Function, part: Part) -> tuple[Node, ...]:
    """Every node of the function that its driver has made, by path.

    Empty where a part's nodes are missing: then there is nothing to grant.
    """
    schemes = part.nodes
    if function.driver == PASSTHROUGH:
        schemes = ("vfio",)
    elif ANY in schemes:
        schemes = tuple(name for name in _SCHEMES if name != "accel-flat")
    found = {node.path: node for name in schemes for node in _SCHEMES[name](function)}
    return tuple(found[path] for path in sorted(found))


def reaching(function: Function, part: Part) -> tuple[Node, ...]:
    """Every node by which the function can be reached, granted or not, by path.

    Raises `BackendFailed` where the kernel does not show what it registers below the function.
    """
    known = nodes_of(function, part)
    numbers = {node.numbers for node in known}
    found = {node.path: node for node in _below(function) if node.numbers not in numbers}
    if function.driver == AMD:
        found |= {
            one.path: Node(one.path, one.numbers, granted=False)
            for one in drm.reaches(function.root)
            if one.address in ("", function.address)
        }
    found |= {node.path: node for node in known}
    return tuple(found[path] for path in sorted(found))


def render_nodes(root: Path) -> Mapping[str, Numbers | None]:
    """Render nodes known to lead to one AMD GPU: a client of the shared compute node has some of
    them open, and by these it is known which GPUs it is on."""
    return {
        one.path: one.numbers
        for one in drm.reaches(root)
        if "/renderD" in one.path and one.address and Function(root, one.address).driver == AMD
    }


def _below(function: Function) -> Iterable[Node]:
    """Whatever the kernel registers below the function, by whichever driver."""

    def refused(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise BackendFailed(
                f"the nodes of {function.address} cannot be listed: {error}",
                remedy="show the host's /sys to the node service, with the right to read it",
            ) from error

    home = os.path.realpath(function.path)
    for where, directories, files in os.walk(home, onerror=refused):
        directories[:] = [name for name in directories if not canonical(name)]
        if "dev" in files and (numbers := device_numbers(Path(where, "dev"))):
            uevent = read_text(Path(where, "uevent")) or ""
            told = dict(line.split("=", 1) for line in uevent.splitlines() if "=" in line)
            name = told.get("DEVNAME", "").removeprefix("/dev/") or Path(where).name
            yield Node(f"/dev/{name}", numbers, granted=False)


def grant(function: Function, part: Part, name: str) -> Grant:
    """What a container gets of the function, called `name` in messages.

    Raises `DeviceLost` where a node is missing on the host or has no number.
    """
    wanted = [node for node in nodes_of(function, part) if node.granted]
    if all(node.shared for node in wanted):
        raise DeviceLost(
            f"{name} at {function.address} has no device node ({', '.join(part.nodes)}): its driver"
            f" is {function.driver or 'not bound'}",
            remedy="bind the driver of the device, or vfio-pci, and ask again",
        )
    return Grant(nodes=tuple(_given(function.root, node, name) for node in wanted))


def _given(root: Path, node: Node, name: str) -> DeviceNode:
    if node.numbers is None or not (root / node.path.lstrip("/")).exists():
        raise DeviceLost(
            f"{node.path} of {name} is missing on this host",
            remedy="load the driver of the device, or restart udev, and ask again",
        )
    return DeviceNode(node.path, "c", *node.numbers)


# --- how each kind of driver names its nodes ------------------------------------------------------


def _vfio(function: Function) -> Iterable[Node]:
    """All functions of an IOMMU group are reached by the group's one node."""
    group = function.iommu_group
    if group is None:
        return
    root = function.root
    numbers = device_numbers(root / "sys/class/vfio" / group / "dev")
    if numbers is not None or function.driver == PASSTHROUGH:
        yield Node(f"/dev/vfio/{group}", numbers)
        control = device_numbers(root / "sys/class/misc/vfio/dev")
        yield Node("/dev/vfio/vfio", control, shared=True)
    for found in sorted(function.path.glob("vfio-dev/vfio*/dev")):
        path = f"/dev/vfio/devices/{found.parent.name}"
        yield Node(path, device_numbers(found), granted=False)


def _accel(function: Function) -> Iterable[Node]:
    for found in sorted(function.path.glob("accel/accel*/dev")):
        yield Node(f"/dev/accel/{found.parent.name}", device_numbers(found))
    for found in sorted(function.path.glob("habanalabs/hl*/dev")):
        yield Node(f"/dev/{found.parent.name}", device_numbers(found))


def _accel_flat(function: Function) -> Iterable[Node]:
    """The driver of older TPUs keeps its nodes out of /dev/accel, under a class of its own."""
    for found in sorted(function.path.glob("*/accel*/dev")):
        yield Node(f"/dev/{found.parent.name}", device_numbers(found))


def _render(function: Function) -> Iterable[Node]:
    for found in sorted(function.path.glob("drm/renderD*/dev")):
        yield Node(f"/dev/dri/{found.parent.name}", device_numbers(found))
    for found in sorted(function.path.glob("drm/card*/dev")):
        yield Node(f"/dev/dri/{found.parent.name}", device_numbers(found), granted=False)


def _kfd(function: Function) -> Iterable[Node]:
    """One compute node for all GPUs: the render nodes beside it decide which it reaches."""
    numbers = device_numbers(function.root / "sys/class/kfd/kfd/dev")
    if function.driver == AMD:
        yield Node(KFD, numbers, shared=True)


def _nvidia(function: Function) -> Iterable[Node]:
    """Shows who uses a GPU left to its own driver; to be granted it needs libraries as well."""
    if function.driver != "nvidia":
        return
    told = function.root / "proc/driver/nvidia/gpus" / function.address / "information"
    for line in (read_text(told) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "Device Minor" and value.strip().isdecimal():
            minor = int(value)
            yield Node(f"/dev/nvidia{minor}", (NVIDIA_MAJOR, minor), granted=False)


_SCHEMES: Mapping[str, Callable[[Function], Iterable[Node]]] = {
    "vfio": _vfio,
    "accel": _accel,
    "accel-flat": _accel_flat,
    "render": _render,
    "kfd": _kfd,
    "nvidia": _nvidia,
}
