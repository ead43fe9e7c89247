"""Device nodes of NVIDIA GPUs by name and number, from what the kernel says about them.

Numbers come from ``<root>/proc`` only, never from a node that exists: a node may be missing after
a boot until somebody makes it, and one left over may have the numbers of another device.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from fleet.core import errors
from fleet.core.pci import address as canonical
from fleet.devices.base import DeviceNode
from fleet.devices.sysfs import PCI_DEVICES, device_numbers, read_text

CONTROL_MINOR = 255
MODESET_MINOR = 254
UVM_MINOR = 0
UVM_TOOLS_MINOR = 1
CAPABILITIES = "/dev/nvidia-caps"
MIG_MINORS = "proc/driver/nvidia-caps/mig-minors"
GPUS = "proc/driver/nvidia/gpus"
CONFIGURE, MONITOR = "config", "monitor"
"""Names of the two capabilities that belong to no GPU: to make instances, to see all of them."""
_FRONTENDS = ("nvidia", "nvidia-frontend")
"""Names of the driver's major number: today's, and that of drivers before 545."""
_UVM, _CAPS = "nvidia-uvm", "nvidia-caps"
_GPU_CAPABILITY = re.compile(r"^gpu(\d+)/")
_INSTALL = "load the driver's kernel modules on the host (`nvidia-modprobe`), then ask again"


@dataclass(frozen=True, slots=True)
class Listed:
    """One GPU as the kernel module lists it."""

    address: str
    """PCI address in the form of sysfs."""
    minor: int
    """N of ``/dev/nvidia<N>``. It is no index, and may change when partitioning is switched."""
    uuid: str
    """"" where the GPU was not initialised yet, and the module does not know it."""


def listed(root: Path) -> tuple[Listed, ...]:
    """All GPUs the kernel module drives, by address. Raises `DriverAbsent` where it lists none."""
    try:
        names = sorted(found.name for found in (root / GPUS).iterdir())
    except OSError as error:
        raise errors.DriverAbsent(
            f"no NVIDIA kernel module shows its GPUs at {root / GPUS}: {error.strerror}"
        ) from error
    return tuple(found for name in names if (found := _listed(root, name)))


def is_loaded(root: Path) -> bool:
    """Whether the driver's kernel module is loaded; also where the kernel does not tell."""
    majors = _majors(root)
    return not majors or any(name in majors for name in _FRONTENDS)


def of_gpu(minor: int, *, root: Path) -> DeviceNode:
    """The node of one GPU by its device minor. Raises `BackendFailed` without a major number."""
    return DeviceNode(f"/dev/nvidia{minor}", "c", _major(root, *_FRONTENDS), minor)


def controls(root: Path) -> tuple[DeviceNode, ...]:
    """Nodes every user of CUDA needs, for whichever GPU. Raises `BackendFailed`.

    They reach no memory by themselves. The node for display modes is named only where it exists:
    servers often have none.
    """
    driver, uvm = _major(root, *_FRONTENDS), _major(root, _UVM)
    found = [
        ("/dev/nvidiactl", driver, CONTROL_MINOR),
        ("/dev/nvidia-uvm", uvm, UVM_MINOR),
        ("/dev/nvidia-uvm-tools", uvm, UVM_TOOLS_MINOR),
    ]
    if (root / "dev/nvidia-modeset").exists():
        found.append(("/dev/nvidia-modeset", driver, MODESET_MINOR))
    return tuple(DeviceNode(path, "c", major, minor, shared=True) for path, major, minor in found)


def of_instance(minor: int, *, gi: int, ci: int, root: Path) -> tuple[DeviceNode, DeviceNode]:
    """The two capability nodes that open one partition of the GPU with this device minor.

    Both are needed, and neither opens anything else. Raises `BackendFailed` naming the capability
    that the driver does not list.
    """
    minors = capability_minors(root)
    names = (f"gpu{minor}/gi{gi}/access", f"gpu{minor}/gi{gi}/ci{ci}/access")
    for name in names:
        if name not in minors:
            raise errors.BackendFailed(
                f"the driver lists no capability {name} in {root / MIG_MINORS}",
                remedy="the instance is gone or the GPU has another minor now; ask again",
            )
    opened, computed = (_capability(minors[name], root=root) for name in names)
    return opened, computed


def capabilities(root: Path, *, gpus: Collection[int]) -> tuple[DeviceNode, ...]:
    """Capability nodes of every instance that GPUs with these minors can ever have.

    The driver numbers all of them when it is loaded, so that the nodes need not exist yet; with
    them come the two that allow to make instances and to see them. Empty without partitioning.
    """
    found = [
        number
        for name, number in capability_minors(root).items()
        if name in (CONFIGURE, MONITOR)
        or ((match := _GPU_CAPABILITY.match(name)) and int(match[1]) in gpus)
    ]
    return tuple(_capability(number, root=root) for number in sorted(found))


def capability_minors(root: Path) -> dict[str, int]:
    """Minor number by capability name; empty where the driver has no partitioning."""
    found = {}
    for line in (read_text(root / MIG_MINORS) or "").splitlines():
        name, _, number = line.rpartition(" ")
        if name and number.isdecimal():
            found[name.strip()] = int(number)
    return found


def instances(root: Path, minor: int) -> tuple[str, ...]:
    """``gi<N>`` of every instance the kernel module knows, also half made ones without compute."""
    place = root / "proc/driver/nvidia/capabilities" / f"gpu{minor}" / "mig"
    try:
        return tuple(sorted(one.name for one in place.iterdir() if one.name.startswith("gi")))
    except OSError:
        return ()


def rendering(root: Path, address: str) -> tuple[DeviceNode, ...]:
    """Nodes by which the kernel's graphics layer offers the GPU: a second way to hold it."""
    place = root / PCI_DEVICES / address / "drm"
    try:
        names = sorted(one.name for one in place.iterdir())
    except OSError:
        return ()
    return tuple(
        DeviceNode(f"/dev/dri/{name}", "c", *numbers)
        for name in names
        if name.startswith(("card", "renderD"))
        and (numbers := device_numbers(place / name / "dev"))
    )


def is_another(node: DeviceNode, found: os.stat_result) -> bool:
    """Whether the file found in the place of `node` is a device with other numbers."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev != os.makedev(node.major, node.minor)


def switches(root: Path) -> tuple[DeviceNode, ...]:
    """Control nodes of the switch fabric, where the host has one, as their nodes say."""
    return tuple(_existing(root))


def _existing(root: Path) -> Iterator[DeviceNode]:
    majors = _majors(root)
    major = majors.get("nvidia-nvswitch")
    if major is None:
        return
    for path in sorted((root / "dev").glob("nvidia-nvswitch*")):
        number = path.name.removeprefix("nvidia-nvswitch")
        if number == "ctl":
            yield DeviceNode(f"/dev/{path.name}", "c", major, CONTROL_MINOR)
        elif number.isdecimal():
            yield DeviceNode(f"/dev/{path.name}", "c", major, int(number))


def _listed(root: Path, name: str) -> Listed | None:
    fields = {}
    for line in (read_text(root / GPUS / name / "information") or "").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields[key.strip()] = value.strip()
    address, minor = canonical(name), fields.get("Device Minor", "")
    if not address or not minor.isdecimal():
        return None
    uuid = fields.get("GPU UUID", "")
    return Listed(address, int(minor), "" if "?" in uuid else uuid)


def _capability(number: int, *, root: Path) -> DeviceNode:
    path = f"{CAPABILITIES}/nvidia-cap{number}"
    return DeviceNode(path, "c", _major(root, _CAPS), number, permissions="r", made_late=True)


def _major(root: Path, *names: str) -> int:
    found = _majors(root)
    for name in names:
        if name in found:
            return found[name]
    raise errors.BackendFailed(
        f"{root / 'proc/devices'} lists no character device {names[0]}", remedy=_INSTALL
    )


def _majors(root: Path) -> dict[str, int]:
    """Major number by name, of character devices: block devices follow and have names of theirs."""
    found: dict[str, int] = {}
    for line in (
        (read_text(root / "proc/devices") or "").partition("Block devices:")[0].splitlines()
    ):
        words = line.split()
        if len(words) == 2 and words[0].isdecimal():
            found.setdefault(words[1], int(words[0]))
    return found
