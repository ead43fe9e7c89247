"""The content of a CDI spec, as strict as the strictest runtime reads it. Pure.

Closed: a runtime refuses a whole file for one field it does not know. Names are those of the file;
every optional field is absent rather than empty. `fleet.node.cdi.rules` holds what types cannot
say.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

INT64_MAX = 2**63 - 1

Unsigned = Annotated[int, Field(ge=0, le=2**32 - 1)]
Number = Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)]


class Part(BaseModel):
    """Base of all parts of a spec: closed, immutable, no conversions."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, alias_generator=to_camel)


class DeviceNode(Part):
    """A device node a container gets. With type and numbers the host needs no such node."""

    path: str
    host_path: str | None = None
    type: str | None = None
    """"" or absent, ``b``, ``c``, ``u``, ``p``."""
    major: Number | None = None
    minor: Number | None = None
    file_mode: Unsigned | None = None
    """Decimal in the file: 0660 is 432."""
    permissions: str | None = None
    """Subset of ``rwm``; absent means all three."""
    uid: Unsigned | None = None
    gid: Unsigned | None = None


class NetDevice(Part):
    """A network interface moved into the container (1.1.0)."""

    host_interface_name: str
    name: str


class Hook(Part):
    """A program the runtime starts at a point of the container's life. We write none."""

    hook_name: str
    path: str
    args: tuple[str, ...] | None = None
    env: tuple[str, ...] | None = None
    timeout: Number | None = None
    """Seconds."""


class Mount(Part):
    """A mount a container gets."""

    host_path: str
    container_path: str
    type: str | None = None
    options: tuple[str, ...] | None = None


class IntelRdt(Part):
    """Cache and bandwidth allocation (0.7.0)."""

    clos_id: str | None = Field(default=None, alias="closID")
    l3_cache_schema: str | None = Field(default=None, alias="l3CacheSchema")
    mem_bw_schema: str | None = None
    enable_cmt: bool | None = Field(default=None, alias="enableCMT")
    """Removed in 1.1.0, as is the next: read, so that the rules can say so."""
    enable_mbm: bool | None = Field(default=None, alias="enableMBM")
    schemata: tuple[str, ...] | None = None
    enable_monitoring: bool | None = None


class Edits(Part):
    """What is changed in a container: by a device, or once for a whole file."""

    env: tuple[str, ...] | None = None
    device_nodes: tuple[DeviceNode, ...] | None = None
    net_devices: tuple[NetDevice, ...] | None = None
    hooks: tuple[Hook, ...] | None = None
    mounts: tuple[Mount, ...] | None = None
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[Unsigned, ...] | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing is changed: then a device is no device to a runtime."""
        return self.intel_rdt is None and not (
            self.env
            or self.device_nodes
            or self.net_devices
            or self.hooks
            or self.mounts
            or self.additional_gids
        )


class Device(Part):
    """One device of a spec; its qualified id is ``<kind>=<name>``."""

    name: str
    annotations: dict[str, str] | None = None
    container_edits: Edits


class Spec(Part):
    """One file."""

    cdi_version: str
    kind: str
    annotations: dict[str, str] | None = None
    devices: tuple[Device, ...]
    container_edits: Edits | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """The qualified ids of the devices, in the order of the file."""
        return tuple(f"{self.kind}={device.name}" for device in self.devices)
