"""What a node of the twin keeps: the part that survives a crash, and what a wipe came out as."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fleet import errors
from fleet.claims import Claim, ClaimEvent
from fleet.clock import Clock
from fleet.kube.base import Object
from fleet.messages import DeviceResult, Owed
from fleet.model import BootId, ClaimUid, Device, Digest, OperationId, Token, Unit, UnitId, Uuid
from tests.twin.clock import Timer

FIRST_BOOT = BootId("boot-1")
MEMORY_BYTES = 80 << 30
IDLE = Token(0, 0)
TROUBLES = ("memory-mismatch", "interrupted", "interrupted", "hang", "ecc-uncorrectable")


@dataclass(frozen=True, slots=True)
class Fate:
    """How the next wipe goes: how long it takes, and the reason code it fails with."""

    seconds: float = 1.0
    code: str = ""
    """"": it passes; ``interrupted``: its worker dies; ``hang``: it never ends by itself."""


Fates = Callable[[str, str], Fate]
"""By node and device name."""


@dataclass(frozen=True, slots=True)
class Word:
    """Who wrote a unit's memory last: a wipe under a token (zeros), or a tenant."""

    writer: str
    """``zeros``, ``wiping`` or ``claim:<uid>``."""
    token: Token = IDLE


@dataclass(frozen=True, slots=True)
class Issued:
    """One certificate."""

    digest: Digest
    device: Uuid
    token: Token
    at: float


@dataclass
class Work:
    """One wipe in work."""

    operation: OperationId
    device: Device
    token: Token | None
    claim: ClaimUid | None
    on_end: Callable[[DeviceResult], None]
    idle: bool = False
    timer: Timer | None = None
    fate: Fate = Fate()


@dataclass
class Flight:
    """One operation on one claim; lost in a crash."""

    uid: ClaimUid
    kind: ClaimEvent
    begun: float
    works: list[Work] = field(default_factory=list)
    results: list[DeviceResult] = field(default_factory=list)
    done: bool = False
    error: errors.FleetError | None = None


@dataclass
class Row:
    """One thing owed to the lease store, and after it to the API."""

    holder: str
    token: str
    owed: Owed | None = None
    released: bool = False
    attempts: int = 0
    next_at: float = 0.0


@dataclass
class Journal:
    """Everything durable of one node. Memory and wipes' certificates are the hardware's and the
    ledger's, and survive as well.
    """

    units: dict[UnitId, Unit] = field(default_factory=dict)
    claims: dict[ClaimUid, Claim] = field(default_factory=dict)
    tombstones: set[ClaimUid] = field(default_factory=set)
    requests: dict[OperationId, Object] = field(default_factory=dict)
    results: dict[OperationId, DeviceResult] = field(default_factory=dict)
    outbox: list[Row] = field(default_factory=list)
    epoch: int = 0
    boot_id: BootId = FIRST_BOOT


@dataclass
class Hardware:
    """The devices of a node, their memory, and who computes on them."""

    node: str
    clock: Clock
    devices: dict[Uuid, Device] = field(default_factory=dict)
    memory: dict[UnitId, Word] = field(default_factory=dict)
    containers: dict[str, tuple[ClaimUid, ...]] = field(default_factory=dict)
    """Claims by UID of the pod, of containers that live now."""
    specs: dict[ClaimUid, tuple[Uuid, ...]] = field(default_factory=dict)
    """CDI specs on disk."""
    ledger: list[Issued] = field(default_factory=list)
    given: dict[ClaimUid, tuple[Uuid, ...]] = field(default_factory=dict)
    """What containers of a claim were started with; outlives the spec."""

    @classmethod
    def fitted(cls, node: str, count: int, clock: Clock) -> Hardware:
        """A node of `count` whole accelerators."""
        found = cls(node, clock)
        for index in range(count):
            uuid = Uuid(f"GPU-{node}-{index}")
            unit = UnitId(f"{uuid}/0")
            found.devices[uuid] = Device(uuid, f"gpu-{index}", uuid, (unit,), MEMORY_BYTES)
            found.memory[unit] = Word("claim:before")
        return found

    def certify(self, device: Device, token: Token) -> Digest:
        """Issue a certificate."""
        text = f"{self.node}/{device.uuid}/{len(self.ledger)}"
        digest = Digest(f"sha256:{hashlib.sha256(text.encode()).hexdigest()}")
        self.ledger.append(Issued(digest, device.uuid, token, self.clock.now()))
        return digest

    def write(self, device: Device, word: Word) -> None:
        """All memory of a device gets a new writer."""
        for unit in device.units:
            self.memory[unit] = word

    def tenants(self, device: Device) -> tuple[str, ...]:
        """Pods with a living container that was given the device."""
        return tuple(
            pod
            for pod, claims in self.containers.items()
            if any(device.uuid in self.given.get(claim, ()) for claim in claims)
        )

    def start(self, pod: str, claims: Mapping[ClaimUid, tuple[Uuid, ...]]) -> None:
        """A container starts and writes into every device it got."""
        self.containers[pod] = tuple(claims)
        self.given.update(claims)
        for uid, uuids in claims.items():
            for uuid in uuids:
                self.write(self.devices[uuid], Word(f"claim:{uid}"))

    def stop(self, pod: str) -> None:
        """A container is gone."""
        self.containers.pop(pod, None)


def drawn(rng: random.Random, *, trouble: float = 0.0, slow: float = 0.0) -> Fates:
    """Wipes of half a second to three; a share of `trouble` goes wrong in some way, and a share
    of `slow` takes up to a minute.
    """

    def fate(_node: str, _device: str) -> Fate:
        seconds = rng.uniform(5.0, 55.0) if rng.random() < slow else rng.uniform(0.5, 3.0)
        return Fate(seconds, rng.choice(TROUBLES) if rng.random() < trouble else "")

    return fate
