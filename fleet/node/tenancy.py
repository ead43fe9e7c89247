"""Proof about tenants where there are only processes to look at: simulated nodes and bare metal.

On Kubernetes the proof is the consumer pods' cgroups; without Kubernetes nobody but processes can
hold a device, and the back end lists every one of them. An accelerator is proven free by this alone
only when it is simulated: on real hardware an empty process list proves nothing (ProvenFree).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.core.claim_states import Claim
from fleet.core.model import Process, ProcessKind, Uuid
from fleet.core.processes import start_time
from fleet.node.registry import Registry
from fleet.node.validation import Validator

EXPOSED_TICKS = "exposed-ticks"
"""Attribute of a claim: when it was exposed, in clock ticks since boot."""


@dataclass(frozen=True, slots=True)
class ProcessTenants:
    """Tenants are the foreign processes on a device. Every look is bounded in time (B29)."""

    registry: Registry
    validator: Validator

    def obstacle(self, claim: Claim) -> str:
        """Which foreign process is left on a device of the claim that still exists; empty: none."""
        exposed = claim.attributes.get(EXPOSED_TICKS)
        since = int(exposed) if exposed is not None else None
        found = (self.registry.devices.get(uuid) for uuid in claim.devices)
        left = next(
            (
                (device, process)
                for device in found
                if device
                for process in self.validator.processes(device)
                if self._is_tenant(process, since)
            ),
            None,
        )
        if left is None:
            return ""
        device, process = left
        return (
            f"process {process.name} (pid {process.pid}) still has {device.name}"
            f" of claim {claim.uid} open"
        )

    def gone(self, claim: Claim) -> bool:
        """Whether no foreign process is left on any device of the claim."""
        return not self.obstacle(claim)

    def _is_tenant(self, process: Process, since: int | None) -> bool:
        """A process of the tenant: foreign, or come after the exposure under any name."""
        if process.kind is not ProcessKind.INFRASTRUCTURE or since is None:
            return process.kind is ProcessKind.FOREIGN
        started = start_time(process.pid)
        return started is not None and started >= since

    def running(self, consumers: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002 - part of the protocol
        """There are no pods here to look at."""
        return ()

    def created(self, device: Uuid) -> str:  # noqa: ARG002 - part of the protocol
        """Nothing here creates a consumer before it runs."""
        return ""

    def trouble(self) -> str:
        """Processes are read from each device's driver: nothing of the node can be missing."""
        return ""

    def free(self, accelerator: Uuid) -> bool:
        """Whether a simulated accelerator has no tenant in its register file; real: never."""
        if not self.registry.backend.simulated:
            return False
        return not self.validator.foreign(self.registry.accelerators[accelerator].device)
