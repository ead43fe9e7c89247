"""What a container needs to use one NVIDIA device, and nothing that reaches another one.

Nothing here asks the driver: numbers, version and which GPU is where come from the kernel's files
below `root`, at every call, so that a plugin that opens no device can answer too, and an answer
after a driver update or a switch of partitioning is about what is there now.

Environment: ``NVIDIA_VISIBLE_DEVICES=void`` keeps a vendor runtime, where it is the default one,
from adding devices of its own. ``CUDA_VISIBLE_DEVICES`` is not set: a container sees what its nodes
reach; an instance's UUID is another one when it is made again after a reboot while the claim stays;
and a value of ours would replace the one a pod sets for itself.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fleet.core import errors
from fleet.core.model import Device
from fleet.devices import host_paths
from fleet.devices.base import DeviceNode, Grant, Instance
from fleet.devices.nvidia import libraries, nodes
from fleet.devices.nvidia.nodes import Listed

ENVIRONMENT = {"NVIDIA_VISIBLE_DEVICES": "void"}
KERNEL_LOG = DeviceNode("/dev/kmsg", "c", 1, 11, shared=True)
"""Read for fault codes; written to note that we reset a device."""
_MAKE = "run `nvidia-modprobe -u -c {minor}` on the host, or `nvidia-smi` once, then ask again"


def grant(
    device: Device, instance: Instance | None, *, address: str, partitioned: bool, root: Path
) -> Grant:
    """Nodes, libraries and environment of one device.

    `address`: PCI address of its GPU in the form of sysfs. `instance`: through which it is reached
    while the GPU is `partitioned`. Raises `DeviceLost` where the GPU or its node is not on this
    host, `BackendFailed` naming the file, capability or instance that is missing (B79).
    """
    gpu = located(address, uuid=device.accelerator, root=root)
    own = nodes.of_gpu(gpu.minor, root=root)
    controls = nodes.controls(root)
    _require(device, own, controls, root=root)
    found = [own]
    if partitioned:
        if instance is None or not {"gi", "ci"} <= instance.ids.keys():
            raise errors.BackendFailed(
                f"{device.name} has no instance now through which a container could reach it",
                remedy="the partition is made before it is exposed; ask again then",
            )
        gi, ci = instance.ids["gi"], instance.ids["ci"]
        parent = replace(own, shared=True)
        found = [parent, *nodes.of_instance(gpu.minor, gi=gi, ci=ci, root=root)]
    return Grant(
        nodes=(*found, *controls), mounts=libraries.mounts(root), environment=dict(ENVIRONMENT)
    )


def agent_grant(root: Path) -> Grant:
    """What our own node service needs: every GPU, the controls, every capability there can be, the
    switch fabric, the kernel log, and the libraries.

    Nothing has to exist as a node yet: a GPU that is dead today must not keep the service from
    starting. Raises `DriverAbsent` without the kernel module, `BackendFailed` without libraries.
    """
    gpus = nodes.listed(root)
    minors = frozenset(gpu.minor for gpu in gpus)
    return Grant(
        nodes=(
            *(nodes.of_gpu(minor, root=root) for minor in sorted(minors)),
            *nodes.controls(root),
            *nodes.capabilities(root, gpus=minors),
            *nodes.switches(root),
            KERNEL_LOG,
        ),
        mounts=libraries.mounts(root),
        environment=dict(ENVIRONMENT),
    )


def located(address: str, *, uuid: str, root: Path) -> Listed:
    """The GPU in this slot as the kernel module lists it now. Raises `DeviceLost`.

    Its minor may be another one than before, after partitioning was switched; a card that is not
    the one expected in this slot is never taken for it.
    """
    for gpu in nodes.listed(root):
        if gpu.address == address:
            if gpu.uuid and gpu.uuid != uuid:
                raise errors.DeviceLost(f"slot {address} has {gpu.uuid} now, not {uuid}")
            return gpu
    raise errors.DeviceLost(f"{uuid} in slot {address} is not driven by the kernel module now")


def _require(
    device: Device, own: DeviceNode, controls: tuple[DeviceNode, ...], *, root: Path
) -> None:
    for node in (own, *controls):
        if not host_paths.exists(root, node.path):
            raise errors.DeviceLost(
                f"{node.path}, which {device.name} needs, is missing on the host",
                remedy=_MAKE.format(minor=own.minor),
            )
    if nodes.is_another(own, host_paths.located(root, own.path).stat()):
        raise errors.DeviceLost(
            f"{own.path} has the numbers of another device than {device.name}",
            remedy=f"remove the node; then {_MAKE.format(minor=own.minor)}",
        )
