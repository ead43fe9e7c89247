"""The words of the domain as types. Pure: no clock, no file, no process.

A *unit* is the smallest piece of memory with its own state: a whole accelerator, or one memory
slice of a partitionable one (the memory outside every partition is a unit too). A *device* is what
a claim can get and names the units it is made of; two devices overlap when they share a unit. All
sizes are bytes, all times are seconds since the epoch (UTC) unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

UnitId = NewType("UnitId", str)
"""``<accelerator uuid>/<slice>``: stable for ever, independent of index and PCI order."""
Uuid = NewType("Uuid", str)
"""UUID of a device as its driver prints it."""
NodeName = NewType("NodeName", str)
ClaimUid = NewType("ClaimUid", str)
RunId = NewType("RunId", str)
OperationId = NewType("OperationId", str)
BootId = NewType("BootId", str)
Digest = NewType("Digest", str)
"""``sha256:<hex>`` of a signed envelope's stored bytes."""


@dataclass(frozen=True, slots=True, order=True)
class Token:
    """A fencing token (epoch of the store, counter): ordered, strictly increasing per unit."""

    epoch: int
    counter: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.counter}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """Read ``epoch.counter``. Raises ValueError on anything else."""
        epoch, dot, counter = text.partition(".")
        if not (dot and _is_count(epoch) and _is_count(counter)):
            raise ValueError(f"not a token: {text[:60]!r}")
        return cls(int(epoch), int(counter))


COUNT_MAX = 2**63 - 1
"""Largest half of a token: what databases keep as a number."""
_DIGITS_MAX = 20


def _is_count(text: str) -> bool:
    """Whether these are the digits of such a number; stores pad them with zeros, to sort them."""
    digits = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    return digits and int(text) <= COUNT_MAX


NO_TOKEN = Token(0, 0)


class HolderKind(StrEnum):
    """Who may hold a lease (DESIGN 4): each ends in its own way."""

    CLAIM = "claim"
    CAMPAIGN = "campaign"
    QUARANTINE = "quarantine"
    OPERATOR = "operator"
    PUBLISHER = "publisher"
    """Offers hardware to a scheduler; its units are hardware, not memory."""


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """The holder of a lease, printed as ``kind:name``."""

    kind: HolderKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Holder:
        """Read ``kind:name``. Raises ValueError on an unknown kind or an empty name."""
        kind, _, name = text.partition(":")
        if not name:
            raise ValueError(f"not a holder: {text!r}")
        return cls(HolderKind(kind), name)


@dataclass(frozen=True, slots=True)
class Lease:
    """Exclusive right to units, all under one token. ``expires_at`` None: until released."""

    units: frozenset[UnitId]
    holder: Holder
    token: Token
    expires_at: float | None = None


class Source(StrEnum):
    """Where a quarantine reason comes from. The same code from two sources is two reasons."""

    HEALTH = "health"
    WIPE = "wipe"
    WORKER = "worker"
    KERNEL = "kernel"
    OPERATOR = "operator"
    TEARDOWN = "teardown"
    COORDINATOR = "coordinator"
    """What the coordinator, or a slice, knew of while the node itself did not."""


@dataclass(frozen=True, slots=True, order=True)
class Reason:
    """Why a unit is out of service. Identity is (code, source); ``since`` never moves."""

    code: str
    source: Source
    liftable: bool = field(compare=False)
    detail: str = field(default="", compare=False)
    remedy: str = field(default="", compare=False)
    since: float = field(default=0.0, compare=False)

    @property
    def key(self) -> tuple[str, Source]:
        return (self.code, self.source)


class State(StrEnum):
    """Cleanliness of a unit (the first table of DESIGN 4)."""

    HELD = "HELD"
    DIRTY = "DIRTY"
    WIPING = "WIPING"
    CHECKING = "CHECKING"
    CLEAN = "CLEAN"
    IN_USE = "IN_USE"
    QUARANTINED = "QUARANTINED"
    RETESTING = "RETESTING"


EXPOSABLE = frozenset({State.CLEAN})
WORKING = frozenset({State.WIPING, State.CHECKING, State.RETESTING})
OUT_OF_SERVICE = frozenset({State.QUARANTINED, State.RETESTING, State.HELD})
SETTLED = frozenset({State.CLEAN, State.QUARANTINED, State.HELD, State.IN_USE})


@dataclass(frozen=True, slots=True)
class Unit:
    """The durable record of one unit: what the tables read and write."""

    id: UnitId
    state: State = State.HELD
    reasons: frozenset[Reason] = frozenset()
    floor: Token = NO_TOKEN
    """Newest token acted on or closed; an older one is refused."""
    closed: bool = False
    """Whether `floor` itself is closed, so that it is refused too."""
    token: Token | None = None
    """Token of the wipe in work or of the certificate in force."""
    certificate: Digest | None = None
    """Certificate in force: set only in CLEAN and IN_USE."""
    head: Digest | None = None
    """Newest certificate ever issued for this unit: the chain's end, kept through every state."""
    claim: ClaimUid | None = None
    """Claim record that holds the unit, if any."""
    last_holder: str = ""
    """Holder before the current state, for the next certificate ("" unknown)."""
    interruptions: int = 0
    """Wipes in a row whose worker died unasked."""
    boot_id: BootId = BootId("")
    since: float = 0.0
    """When the unit entered its state."""


@dataclass(frozen=True, slots=True)
class UnitSpec:
    """One unit of an accelerator as the back end reports it."""

    id: UnitId
    size_bytes: int
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Device:
    """What a claim can get. ``accelerator``: its own UUID if whole, else the parent's."""

    uuid: Uuid
    name: str
    accelerator: Uuid
    units: tuple[UnitId, ...]
    memory_bytes: int
    profile: str = ""
    """Partition profile such as ``1g.10gb``; empty for a whole accelerator."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Identity for certificates and slices: product, serial, pci, driver, numa ..."""

    @property
    def whole(self) -> bool:
        return self.uuid == self.accelerator


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One physical accelerator: its units (covering all of its memory) and the devices on offer."""

    uuid: Uuid
    units: tuple[UnitSpec, ...]
    devices: tuple[Device, ...]

    @property
    def device(self) -> Device:
        """The whole accelerator as a device."""
        return next(device for device in self.devices if device.whole)

    @property
    def memory_bytes(self) -> int:
        return sum(unit.size_bytes for unit in self.units)


class ProcessKind(StrEnum):
    """What a process on a device is to us."""

    OURS = "ours"
    INFRASTRUCTURE = "infrastructure"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Process:
    """A process that has the device open."""

    pid: int
    name: str
    kind: ProcessKind


def overlapping(devices: Mapping[Uuid, Device], device: Device) -> tuple[Device, ...]:
    """All other devices that share a unit with `device`."""
    mine = set(device.units)
    return tuple(
        other
        for uuid, other in devices.items()
        if uuid != device.uuid and mine.intersection(other.units)
    )
