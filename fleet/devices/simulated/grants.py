"""What a container gets to use a simulated device: its memory as files, and a node that does no
harm.

The files are mounted for writing, so that a pod can be a tenant that writes and searches. The node
has the numbers of null, which every container may open anyway: it stands for the device node that a
real device would have.
"""

from __future__ import annotations

from pathlib import Path

from fleet.core.errors import DeviceLost
from fleet.core.model import Device
from fleet.devices.base import DeviceNode, Grant, Mount
from fleet.devices.simulated.memory import Memory

DIRECTORY = "/dev/fleetsim"
"""Where a container finds its simulated devices."""
_NULL = (1, 3)


def of_device(device: Device, memory: Memory, *, read_only: bool = False) -> Grant:
    """The grant of one device: one file under its name, several with ``.0``, ``.1`` ... behind it.

    Raises DeviceLost when a file is missing on this host (B79).
    """
    missing = [str(path) for path in memory.paths if not path.is_file()]
    if missing or not memory.files:
        raise DeviceLost(f"{device.name} has no memory here: {', '.join(missing) or 'no file'}")
    place = f"{DIRECTORY}/{device.name}"
    several = len(memory.files) > 1
    mounts = tuple(
        Mount(
            host_path=str(path.absolute()),
            container_path=f"{place}.{number}" if several else place,
            read_only=read_only,
        )
        for number, path in enumerate(memory.paths)
    )
    return Grant(
        nodes=(_node(device.name),),
        mounts=mounts,
        environment={
            "FLEETSIM_DEVICE": device.name,
            "FLEETSIM_MEMORY": ":".join(mount.container_path for mount in mounts),
        },
    )


def of_agent(root: Path) -> Grant:
    """The grant of our own node service: the whole directory at its own path."""
    path = str(root.absolute())
    return Grant(
        nodes=(_node("agent"),), mounts=(Mount(path, path, read_only=False),), environment={}
    )


def _node(name: str) -> DeviceNode:
    major, minor = _NULL
    return DeviceNode(f"{DIRECTORY}/{name}.node", "c", major, minor, host_path="/dev/null")
