"""Proof about tenants where there are only processes to look at: simulated nodes and bare metal.

On Kubernetes the proof is the consumer pods' cgroups; without Kubernetes nobody but processes can
hold a device, and the back end lists every one of them. An accelerator is proven free by this alone
only when it is simulated: on real hardware an empty process list proves nothing (ProvenFree).
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.backends.base import Backend
from fleet.claims import Claim
from fleet.model import ProcessKind, UnitId, Uuid


@dataclass(frozen=True, slots=True)
class ProcessTenants:
    """Tenants are the foreign processes on a device."""

    backend: Backend

    def gone(self, claim: Claim) -> bool:
        """Whether no foreign process is left on any device of the claim."""
        return not any(self._foreign(uuid) for uuid in claim.devices)

    def created(self, accelerator: Uuid) -> bool:  # noqa: ARG002 - part of the protocol
        """Nothing here creates a consumer before it runs."""
        return False

    def free(self, accelerator: Uuid) -> bool:
        """Whether a simulated accelerator has no tenant in its register file; real: never."""
        return self.backend.simulated and not self._foreign(accelerator)

    def _foreign(self, device: Uuid | UnitId) -> bool:
        return any(
            process.kind is ProcessKind.FOREIGN for process in self.backend.processes(Uuid(device))
        )
