"""What the node service needs from outside itself, as small protocols."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from fleet.core import errors
from fleet.core.claim_states import Claim
from fleet.core.leases import AcquireRequest
from fleet.core.model import ClaimUid, Holder, Lease, Token, UnitId, Uuid
from fleet.devices.base import Grant
from fleet.stores.base import Release


class Specs(Protocol):
    """The specs through which a container reaches devices (CDI on a node)."""

    @property
    def directory(self) -> Path:
        """Where they are written."""
        ...

    def name(self, uid: ClaimUid) -> str:
        """File name of a claim's spec."""
        ...

    def ids(self, claim: Claim, device: Uuid) -> tuple[str, ...]:
        """Fully qualified CDI ids of one device of the claim, the first unique per device."""
        ...

    def write(self, claim: Claim, grants: Mapping[Uuid, Grant]) -> None:
        """Make the claim's spec visible, complete or not at all. Raises `SpecUnavailable`."""
        ...

    def remove(self, uid: ClaimUid) -> None:
        """Remove the claim's spec; absent is fine."""
        ...

    def listed(self) -> Sequence[ClaimUid]:
        """Claims that have a spec now."""
        ...

    def dangling(self, uid: ClaimUid) -> Sequence[str]:
        """Host paths that a claim's spec mounts and the host does not have any more."""
        ...

    def settle(self, live: Collection[ClaimUid]) -> Sequence[str]:
        """Once, at start, before anything is written: files of earlier versions and damaged ones.

        `live` have a record. Returns what was found and done, in words. Raises `SpecUnavailable`.
        """
        ...


class Leases(Protocol):
    """What a node needs of the lease store. Any `FleetError` means: not now."""

    def newest(self) -> Token:
        """The epoch and the last counter issued."""
        ...

    def leases(self) -> Sequence[Lease]:
        """The leases in force: of the whole fleet, so that only a start asks for them."""
        ...

    def held_by(self, holders: Collection[Holder]) -> Sequence[Lease]:
        """The leases in force of these holders, by token."""
        ...

    def holder(self, unit: UnitId) -> Lease | None:
        """The lease in force on `unit`."""
        ...

    def acquire(self, requests: Sequence[AcquireRequest]) -> Sequence[Lease | errors.FleetError]:
        """Grant each request, or say why not."""
        ...

    def release(self, releases: Sequence[Release]) -> Sequence[bool | errors.FleetError]:
        """Give leases back by token; each answered on its own."""
        ...


class TenantProof(Protocol):
    """Proof that nobody of a claim is left: never an idle device or an empty process list alone."""

    def obstacle(self, claim: Claim) -> str:
        """Why the consumers of the claim are not all proven gone; empty when they are."""
        ...

    def running(self, consumers: Sequence[str]) -> tuple[str, ...]:
        """Which of these pods run now for certain; without pods to look at: none."""
        ...

    def created(self, device: Uuid) -> str:
        """Whose container exists for memory of the device, started or not; empty: nobody's."""
        ...

    def trouble(self) -> str:
        """Why nothing can be told of tenants on this node now, with what to do; empty: it can."""
        ...

    def free(self, accelerator: Uuid) -> bool:
        """Whether the accelerator is proven free of any holder (ProvenFree)."""
        ...
