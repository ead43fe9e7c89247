"""What the node service needs from outside itself, as small protocols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fleet.claims import Claim
from fleet.model import ClaimUid, Uuid


class Specs(Protocol):
    """The specs through which a container reaches devices (CDI on a node)."""

    def name(self, uid: ClaimUid) -> str:
        """File name of a claim's spec."""
        ...

    def write(self, claim: Claim, attributes: Mapping[Uuid, Mapping[str, str]]) -> None:
        """Make the claim's spec visible, complete or not at all."""
        ...

    def remove(self, uid: ClaimUid) -> None:
        """Remove the claim's spec; absent is fine."""
        ...

    def listed(self) -> Sequence[ClaimUid]:
        """Claims that have a spec now."""
        ...


class TenantProof(Protocol):
    """Proof that nobody of a claim is left: never an idle device or an empty process list alone."""

    def gone(self, claim: Claim) -> bool:
        """Whether every consumer of the claim is proven gone."""
        ...

    def created(self, accelerator: Uuid) -> bool:
        """Whether a consumer's container or cgroup exists for the accelerator, started or not."""
        ...

    def free(self, accelerator: Uuid) -> bool:
        """Whether the accelerator is proven free of any holder (ProvenFree)."""
        ...
