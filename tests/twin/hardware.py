"""The things of a twin node: accelerators, memory, containers, CDI specs, workers, evidence.

Nothing here believes anything. The checker looks at these, never at what the product thinks of
them. All of it outlives the service; specs and containers end with a boot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from fleet.core import errors
from fleet.core.claim_states import Claim
from fleet.core.clock import Clock
from fleet.core.model import (
    NO_TOKEN,
    Accelerator,
    BootId,
    ClaimUid,
    Device,
    Digest,
    Token,
    UnitId,
    UnitSpec,
    Uuid,
)

FIRST_BOOT = BootId("boot-1")
MEMORY_BYTES = 80 << 30
ZEROS = "zeros"


class Falsified(AssertionError):
    """The node did with its devices what no node may ever do."""


@dataclass(frozen=True, slots=True)
class Fate:
    """How the next wipe goes: how long it takes, and the reason code it fails with."""

    seconds: float = 1.0
    code: str = ""
    """"": it passes; ``interrupted``: its worker dies; ``hang``: it never ends by itself;
    ``wedged``: nor by being killed; ``hang-check``, ``interrupted-check``: so in the checks."""
    wedged_s: float = 0.0
    """How long, s, the worker of a ``wedged`` one lives on."""


Fates = Callable[[str, str], Fate]
"""By node and device name."""


@dataclass(frozen=True, slots=True)
class Word:
    """Who wrote a unit's memory last: a wipe under a token (zeros), or a tenant."""

    writer: str
    """``zeros``, ``wiping`` or ``claim:<uid>``."""
    token: Token = NO_TOKEN


@dataclass(frozen=True, slots=True)
class Issued:
    """One certificate."""

    digest: Digest
    device: Uuid
    token: Token
    at: float
    boot: BootId


@dataclass
class Evidence:
    """A ledger in memory, as far as a node reads it. What is in it is durable."""

    node: str
    entries: list[Issued] = field(default_factory=list)
    newest: dict[UnitId, Issued] = field(default_factory=dict)
    _known: dict[Digest, Issued] = field(default_factory=dict)

    def __contains__(self, digest: object) -> bool:
        return digest in self._known

    def heads(self) -> dict[UnitId, Digest]:
        """Newest certificate of each unit."""
        return {unit: one.digest for unit, one in self.newest.items()}

    def certificate(self, digest: Digest) -> SimpleNamespace:
        """What exposure and recovery read of a certificate."""
        known = self._known[digest]
        said = {"sanitization": {"technique": "overwrite"}}
        return SimpleNamespace(token=known.token, predicate=said)

    def issue(self, device: Device, token: Token, at: float, boot: BootId) -> Issued:
        """One more certificate of a whole device."""
        text = f"{self.node}/{device.uuid}/{len(self.entries)}"
        digest = Digest(f"sha256:{hashlib.sha256(text.encode()).hexdigest()}")
        issued = Issued(digest, device.uuid, token, at, boot)
        self.entries.append(issued)
        self._known[digest] = issued
        self.newest.update(dict.fromkeys(device.units, issued))
        return issued


@dataclass
class Hardware:
    """The devices of a node, their memory, and who computes on them."""

    node: str
    clock: Clock
    boot_id: BootId = FIRST_BOOT
    devices: dict[Uuid, Device] = field(default_factory=dict)
    memory: dict[UnitId, Word] = field(default_factory=dict)
    containers: dict[str, tuple[ClaimUid, ...]] = field(default_factory=dict)
    """Claims by UID of the pod, of containers that live now."""
    specs: dict[ClaimUid, tuple[Uuid, ...]] = field(default_factory=dict)
    """CDI specs on disk."""
    evidence: Evidence = field(init=False)
    given: dict[ClaimUid, tuple[Uuid, ...]] = field(default_factory=dict)
    """What containers of a claim were started with; outlives the spec."""
    workers: dict[str, tuple[UnitId, ...]] = field(default_factory=dict)
    """Workers that a kill has not ended: they still write."""
    losses: set[tuple[ClaimUid, Uuid]] = field(default_factory=set)
    """Devices recorded as lost after a claim."""
    swapped: int = 0
    revision: int = 0
    """Rises with each change that no journal tells of."""
    kind: str = "simulated"
    simulated: bool = True

    def __post_init__(self) -> None:
        self.evidence = Evidence(self.node)

    @classmethod
    def fitted(cls, node: str, count: int, clock: Clock) -> Hardware:
        """A node of `count` whole accelerators."""
        found = cls(node, clock)
        for index in range(count):
            found._fit(f"gpu-{index}", Uuid(f"GPU-{node}-{index}"))
        return found

    def _fit(self, name: str, uuid: Uuid) -> None:
        unit = UnitId(f"{uuid}/0")
        told = {"simulated": "true"}
        self.devices[uuid] = Device(uuid, name, uuid, (unit,), MEMORY_BYTES, attributes=told)
        self.memory[unit] = Word("claim:before")

    def swap(self, index: int) -> Uuid:
        """Another card takes the place of one, written by whoever had it before; the old UUID."""
        old = list(self.devices.values())[index]
        kept = dict(self.devices)
        self.devices.clear()
        self.swapped += 1
        for uuid, device in kept.items():
            if uuid == old.uuid:
                self._fit(old.name, Uuid(f"GPU-{self.node}-{old.name}-{self.swapped}"))
            else:
                self.devices[uuid] = device
        return old.uuid

    def inventory(self) -> Sequence[Accelerator]:
        """As a back end tells it."""
        return [
            Accelerator(d.uuid, (UnitSpec(d.units[0], d.memory_bytes),), (d,))
            for d in self.devices.values()
        ]

    def certify(self, device: Device, token: Token) -> Digest:
        """Issue a certificate. Promise 8: never for memory that is not verified zeros."""
        for unit in device.units:
            if self.memory[unit] != Word(ZEROS, token):
                raise Falsified(f"promise 8: {unit} is certified, holding {self.memory[unit]}")
        return self.evidence.issue(device, token, self.clock.now(), self.boot_id).digest

    def record(self, claim: Claim, devices: Sequence[Uuid]) -> None:
        """A durable record of devices that are out of service after a claim (D3)."""
        self.losses.update((claim.uid, uuid) for uuid in devices)

    def write(self, device: Device, word: Word) -> None:
        """All memory of a device gets a new writer."""
        self.revision += 1
        for unit in device.units:
            self.memory[unit] = word

    def scribble(self, worker: str) -> None:
        """A worker that outlived its kill writes once more, and ends."""
        self.revision += 1
        for unit in self.workers.pop(worker, ()):
            self.memory[unit] = Word("wiping")

    def tenants(self, device: Device) -> tuple[str, ...]:
        """Pods with a living container that was given the device."""
        return tuple(
            pod
            for pod, claims in self.containers.items()
            if any(device.uuid in self.given.get(claim, ()) for claim in claims)
        )

    def start(self, pod: str, claims: Mapping[ClaimUid, tuple[Uuid, ...]]) -> None:
        """A container starts and writes into every device it got."""
        self.revision += 1
        self.containers[pod] = tuple(claims)
        self.given.update(claims)
        for uid, uuids in claims.items():
            for uuid in uuids:
                self.write(self.devices[uuid], Word(f"claim:{uid}"))

    def stop(self, pod: str) -> None:
        """A container is gone."""
        self.revision += 1
        self.containers.pop(pod, None)

    def boot(self, name: str) -> None:
        """The node has booted: no container, no spec, no worker."""
        self.revision += 1
        self.boot_id = BootId(name)
        self.containers.clear()
        self.specs.clear()
        self.workers.clear()


@dataclass
class Tenants:
    """`fleet.node.ports.TenantProof` by looking at the containers themselves."""

    hardware: Hardware

    def obstacle(self, claim: Claim) -> str:
        """A container of the claim that lives."""
        living = (pod for pod, uids in self.hardware.containers.items() if claim.uid in uids)
        return next((f"pod {pod} still runs" for pod in living), "")

    def running(self, consumers: Sequence[str]) -> tuple[str, ...]:
        """Which of these pods run."""
        return tuple(pod for pod in consumers if pod in self.hardware.containers)

    def created(self, device: Uuid) -> str:
        """Whose container has the device."""
        found = self.hardware.devices.get(device)
        return next(iter(self.hardware.tenants(found)), "") if found is not None else ""

    def trouble(self) -> str:
        """Everything can be seen here."""
        return ""

    def free(self, accelerator: Uuid) -> bool:
        """Whether no container has it."""
        return not self.created(accelerator)


@dataclass
class Shelf:
    """`fleet.node.ports.Specs` over those of the hardware; `exposed` is told of each new one."""

    hardware: Hardware
    exposed: Callable[[Claim], None]
    strikes: Callable[[], bool]
    """Whether the directory cannot be written now."""
    directory: Path = Path("/nonexistent/twin")

    def name(self, uid: ClaimUid) -> str:
        """File name of a claim's spec."""
        return f"fleetscrub-{uid}.json"

    def ids(self, claim: Claim, device: Uuid) -> tuple[str, ...]:
        """CDI ids of one device."""
        return (f"fleetscrub.dev/gpu={claim.uid}-{device}",)

    def write(self, claim: Claim, grants: object = None) -> None:  # noqa: ARG002 - shape of `Specs`
        """From here on a container can start with the devices."""
        if self.strikes():
            raise errors.SpecUnavailable("the CDI directory cannot be written")
        fresh = claim.uid not in self.hardware.specs
        self.hardware.specs[claim.uid] = claim.devices
        if fresh:
            self.hardware.revision += 1
            self.exposed(claim)

    def remove(self, uid: ClaimUid) -> None:
        """Take it away."""
        if uid in self.hardware.specs:
            if self.strikes():
                raise errors.SpecUnavailable("the CDI directory cannot be written")
            del self.hardware.specs[uid]
            self.hardware.revision += 1

    def listed(self) -> Sequence[ClaimUid]:
        """Claims that have one."""
        return tuple(self.hardware.specs)

    def dangling(self, uid: ClaimUid) -> Sequence[str]:  # noqa: ARG002 - shape of `Specs`
        """No mounts here."""
        return ()

    def settle(self, live: Collection[ClaimUid]) -> Sequence[str]:  # noqa: ARG002 - shape of `Specs`
        """No earlier versions here."""
        return ()
