"""The protocol every kind of accelerator speaks.

`Backend` lives in the node service and must answer quickly or raise; `MemorySession` lives in the
wipe worker, one process per accelerator. Optional abilities are protocols of their own, asked for
by ``isinstance``. The contract suite in tests/contracts holds for every implementation.

An absent driver is `DriverAbsent`, never an empty inventory: "no devices" and "all clean" are
different facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from fleet.health.readings import Readings
from fleet.model import Accelerator, Device, Process, UnitId, Uuid

Progress = Callable[[int], None]
"""Called with the bytes done in the current pass, often."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One stretch of memory that did not read back as written."""

    unit: UnitId
    offset_bytes: int
    length_bytes: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """Byte figures of an allocation. ``residual = total - reserved - covered``."""

    total: int
    reserved: int
    covered: int

    @property
    def residual(self) -> int:
        return self.total - self.reserved - self.covered


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node a container gets. Type and numbers suffice; the node need not exist yet."""

    path: str
    """Path in the container."""
    kind: str
    """``c`` or ``b``."""
    major: int
    minor: int
    file_mode: int = 0o660
    permissions: str = "rw"
    """Subset of ``rwm``."""
    host_path: str = ""
    """Path on the host where it differs."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount a container gets."""

    host_path: str
    container_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Grant:
    """What a container needs to use one device: nodes, mounts, environment."""

    nodes: Sequence[DeviceNode] = ()
    mounts: Sequence[Mount] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class MemorySession(Protocol):
    """All memory of some units, opened for wiping. Sizes and offsets are 64-bit byte counts."""

    pattern_name: str

    def allocate(self, *, largest_bytes: int, smallest_bytes: int) -> Coverage:
        """Take all that can be had, in chunks from large to small. Raises `DeviceLost`."""

    def fill(self, nonce: bytes, progress: Progress) -> None:
        """Write the nonce-and-address pattern over everything allocated."""

    def verify(
        self, nonce: bytes, progress: Progress, *, within: tuple[int, int] | None = None
    ) -> Sequence[Mismatch]:
        """Read everything back from the device and compare with the pattern.

        `within` limits it to (offset, length) in bytes of what is allocated, counted in order of
        allocation as `disturb` counts: the self-test reads one word again without a fifth pass.
        """

    def zero(self, progress: Progress) -> None:
        """Write zeros over everything allocated."""

    def verify_zero(self, progress: Progress) -> Sequence[Mismatch]:
        """Read everything back from the device and compare with zero."""

    def disturb(self, offset_bytes: int) -> Callable[[], None]:
        """Flip one word for the verifier's self-test; the function returned puts it back."""

    def readings(self) -> Readings:
        """Health readings now, while the memory is under load."""

    def close(self) -> None:
        """Give everything back."""


@runtime_checkable
class Backend(Protocol):
    """One kind of accelerator on this node."""

    kind: str
    """``simulated``, ``nvidia``, ``pcie``: also the name the worker resolves."""
    simulated: bool

    def inventory(self) -> Sequence[Accelerator]:
        """All accelerators. Raises `DriverAbsent`."""

    def readings(self, accelerator: Uuid) -> Readings:
        """Health readings, without disturbing tenants. Raises `DeviceLost`, `BackendFailed`."""

    def processes(self, accelerator: Uuid) -> Sequence[Process]:
        """Every process that has the accelerator open, classified. Raises `BackendFailed`."""

    def grant(self, device: Device) -> Grant:
        """What a container needs to use `device` and nothing that reaches another one.

        Raises `DeviceLost` where a path it would name is missing on this host (B79).
        """

    def agent_grant(self) -> Grant:
        """What our own node service needs to reach every accelerator (DESIGN 7, Privilege)."""

    def session(self, accelerator: Uuid, units: Sequence[UnitId]) -> MemorySession:
        """Open memory for wiping; only ever called inside a wipe worker."""

    def settings(self) -> Mapping[str, Any]:
        """JSON-safe arguments from which a worker process rebuilds this back end."""


@dataclass(frozen=True, slots=True)
class ResetOutcome:
    """What a reset did: the method used and whether the device answered afterwards."""

    done: bool
    method: str
    detail: str = ""
    holders: Sequence[Process] = field(default_factory=tuple)


@runtime_checkable
class CanReset(Protocol):
    """A back end that can reset an accelerator."""

    def reset(self, accelerator: Uuid) -> ResetOutcome:
        """Reset. Refuses while any process, infrastructure included, has the device open."""
