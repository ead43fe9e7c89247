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

from fleet.core.model import Accelerator, Device, Process, UnitId, Uuid
from fleet.devices.health.readings import LogState, Readings

NOBODY_SEEN = "in use by nobody who can be seen"
"""How a holder without a pid is named that is known only by the memory it keeps."""
Progress = Callable[[int], None]
"""Called with the bytes done in the current pass, often."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One stretch of memory that did not read back as written."""

    unit: UnitId
    offset_bytes: int
    length_bytes: int
    located: bool = True
    """False: that much more differs, from this place on, and where is not told."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Byte figures of an allocation. ``residual = total - reserved - covered``."""

    total: int
    reserved: int
    covered: int
    free: int | None = None
    """What the driver called free before anything was taken; None: there is no such figure."""

    @property
    def residual(self) -> int:
        return self.total - self.reserved - self.covered


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node a container gets, made from its type and numbers."""

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
    shared: bool = False
    """Whether containers with other devices get it too: it gives none by itself."""
    made_late: bool = False
    """Whether the host may be without it: it makes the node when somebody there first needs it."""


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
class TimesItself(Protocol):
    """A memory session that has the device's own clock, which a busy host does not disturb."""

    def device_seconds(self) -> float | None:
        """Time, s, of the last pass on the device; None where it was not taken."""


@runtime_checkable
class CountsCompared(Protocol):
    """A memory session whose verifier counts what it looks at, where it looks (F85)."""

    def compared_bytes(self) -> int:
        """Bytes the last `verify` or `verify_zero` looked at."""


@runtime_checkable
class TellsMore(Protocol):
    """A memory session with more to say than figures."""

    def extra(self) -> Mapping[str, Any]:
        """Facts for the certificate, JSON-safe, once the passes are over."""


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


@runtime_checkable
class ShowsOnly(Protocol):
    """A back end that can let a container read a device without its being able to write to it.

    Few can: where a driver takes commands through a device node, a node opened for reading takes
    them as well.
    """

    def grant_to_look(self, device: Device) -> Grant:
        """As `Backend.grant`, for reading alone."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A partition as the driver has it at this moment. Identity is (accelerator, ids)."""

    accelerator: Uuid
    uuid: str
    """As the driver prints it, for ``CUDA_VISIBLE_DEVICES``; "" while half made or half deleted."""
    device: Uuid | None
    """The device of the inventory with the same profile and placement; None: fits none of them."""
    units: tuple[UnitId, ...]
    """Units its memory lies in, also where it fits no device."""
    ids: Mapping[str, int] = field(default_factory=dict)
    """The driver's own numbers: ``gi`` and, where it exists, ``ci``."""


@runtime_checkable
class FindsOne(Protocol):
    """A back end that can look at one accelerator without touching the others."""

    def roll(self) -> Sequence[Uuid]:
        """UUIDs of all accelerators, asking no driver."""

    def accelerator(self, uuid: Uuid) -> Accelerator:
        """One accelerator as the inventory has it. Raises `DeviceLost`."""

    def silent(self, uuid: Uuid) -> Accelerator:
        """What is known of an accelerator that does not answer, asking no driver."""


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


@dataclass(frozen=True, slots=True)
class ResetScrub:
    """What was done to an accelerator whose memory nothing of ours can reach."""

    performed: bool
    """Whether it was reset."""
    method: str
    """By what; "" when it was not."""
    vendor_scrub: str
    """The vendor's own switch for clearing memory: ``on``, ``off``, ``unknown``, or ``none`` where
    no such switch is known."""
    switch: str = ""
    """What that switch is called."""
    before: Sequence[Process] = ()
    after: Sequence[Process] = ()
    """Who had it open just before and just after."""
    problem: str = ""
    """Why this is not enough to count, "" when it is."""


@runtime_checkable
class CanScrubByReset(Protocol):
    """A back end that cannot reach memory: all it can do is reset, with nobody on the device."""

    def scrub_by_reset(self, accelerator: Uuid) -> ResetScrub:
        """Reset the accelerator, and judge the vendor's switch and who has it open.

        Raises `DeviceLost`, `BackendFailed`. Only ever called inside a wipe worker.
        """


@runtime_checkable
class CanPartition(Protocol):
    """A back end whose partitions must be made before their memory can be reached.

    It keeps no record of whose an instance is: the node does (`fleet.node.partitions`).
    """

    def partitioned(self, device: Device) -> bool:
        """Whether `device` is reached only through an instance now. Raises `DeviceLost`."""

    def instances(self, accelerator: Uuid) -> Sequence[Instance]:
        """All instances there are, half made ones too. Raises `DeviceLost`, `BackendFailed`."""

    def make(self, device: Device) -> Instance:
        """Make the instance of `device` at its placement, complete.

        Goes on with a half made one at the same placement. Raises `BackendFailed` where the
        placement is taken, naming by what.
        """

    def unmake(self, instance: Instance) -> None:
        """Remove an instance, whatever of it is left; gone already is fine.

        Raises `BackendFailed` while a process uses it, naming the process: ask again.
        """


@runtime_checkable
class CanDivide(Protocol):
    """A back end that can switch partitioning of an accelerator on and off."""

    def divide(self, accelerator: Uuid, *, on: bool) -> None:
        """Switch it. It may reset the accelerator, and its units are others afterwards.

        Raises `BackendFailed` unless it is so afterwards, naming whoever is in the way; it refuses
        while a process has the accelerator open, infrastructure included.
        """


@runtime_checkable
class TellsHolders(Protocol):
    """A back end that tells the holders of an accelerator and all its devices in one look."""

    def holders(self, accelerator: Uuid) -> Mapping[Uuid, Sequence[Process]]:
        """By device what `processes` says of it; a device left out has nobody.

        The accelerator itself is always in it. Raises `BackendFailed`, `DeviceLost`.
        """


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why nothing can be wiped on this node, or some accelerators of it: no fault of theirs."""

    detail: str
    remedy: str
    accelerators: tuple[Uuid, ...] = ()
    """Those it concerns; empty: all."""

    def concerns(self, accelerator: Uuid) -> bool:
        """Whether it keeps this one from being wiped."""
        return not self.accelerators or accelerator in self.accelerators


@runtime_checkable
class TellsFitness(Protocol):
    """A back end that knows beforehand what would fail every wipe of this node (F44)."""

    def unfit(self) -> Sequence[Unfit]:
        """What keeps accelerators from being wiped; empty: nothing. Raises `BackendFailed`."""


@runtime_checkable
class TellsOpeners(Protocol):
    """A back end that tells who has a device open while its driver does not answer."""

    def openers(self, device: Device, ids: Mapping[str, int]) -> Sequence[Process]:
        """Every process that has `device` open by the kernel's word alone, classified.

        `ids`: the driver's numbers of the instance it was reached through, if it was. Raises
        `BackendFailed` where that cannot be told.
        """


@runtime_checkable
class TellsStrays(Protocol):
    """A back end whose sources may speak of devices that its inventory does not have."""

    def strays(self) -> Sequence[str]:
        """Open faults that belong to no device known, in words: the node's matter (B39, B70)."""


@runtime_checkable
class TellsLog(Protocol):
    """A back end that reads the kernel log of its node."""

    def log_state(self) -> LogState | None:
        """How far the log was read, now; None: it cannot be read. Asks no device."""
