"""What a node service is made of, and in which order it is taken apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from fleet.core.messages import Replication
from fleet.core.privileges import Lacks
from fleet.core.settings import WipePolicy
from fleet.devices.remote import RemoteBackend
from fleet.evidence.ledger import Ledger
from fleet.evidence.replication import Replicator
from fleet.node.certification import Certifier
from fleet.node.claims import Holding
from fleet.node.container_runtime import ContainerRuntime
from fleet.node.inventory import Question
from fleet.node.journal.lock import OwnerLock
from fleet.node.orphan_access import Lingering
from fleet.node.outbox import Outbox
from fleet.node.ports import Leases, TenantProof
from fleet.node.preflight import Preflight
from fleet.node.recovery import Recovery
from fleet.node.registry import Registry
from fleet.node.sweep import Sweep
from fleet.node.upkeep import Cadence
from fleet.node.wipe import Wiper

COPY_WAIT_S = 5.0
"""How long, s, the end of the service waits for an archive that answers."""


class Closing(Protocol):
    """What ends with the service."""

    def close(self) -> None:
        """Let nobody in any more."""


@dataclass
class Parts:
    """What a node service is made of; built by `fleet.wiring.adapters` only."""

    registry: Registry
    recovery: Recovery
    wiper: Wiper
    holding: Holding
    sweep: Sweep
    tenants: TenantProof
    store: Leases
    outbox: Outbox
    ledger: Ledger
    certifier: Certifier
    lock: OwnerLock
    policy: WipePolicy
    cadence: Cadence
    labels: Mapping[str, str] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()
    question: Question | None = None
    """The driver asked for its accelerators, aside; None: the service asks it, and waits."""
    lacks: Lacks = field(default_factory=Lacks)
    """What the process has no right to on this host."""
    preflight: Preflight | None = None
    """Whether the runtime will find our specs; only where kubelet hands out real devices."""
    runtime: ContainerRuntime | None = None
    """The host's container runtime; only where it may have a way of its own to give devices."""
    close_store: Callable[[], None] = lambda: None
    """Closes the connection behind `store`."""
    lingering: Lingering | None = None
    """Looks for containers that may still open devices; only where kubelet makes them."""
    alone: Closing | None = None
    """That nobody else on the host speaks for these devices; only where they are real."""
    replicator: Replicator | None = None
    """Copies the ledger to the archive; only where one is named."""
    door: Closing | None = None
    """Where callers of other processes come in; set once the service exists."""

    def copy(self, now: float) -> None:
        """Go on with the copies in the archive; waits for nothing."""
        if self.replicator is not None:
            self.replicator.step(now)

    def copied(self) -> Replication | None:
        """How far the copies in the archive are; None: no archive is named."""
        return self.replicator.view() if self.replicator is not None else None

    def close(self) -> None:
        """Close everything, what writes memory first and the right to own the node last."""
        with ExitStack() as closing:  # in reverse order, each whatever the others do
            closing.callback(self.lock.release)
            if self.alone is not None:
                closing.callback(self.alone.close)
            closing.callback(self.close_store)
            backend = self.registry.backend
            if isinstance(backend, RemoteBackend):
                closing.callback(backend.close)
            closing.callback(self.registry.journal.close)
            if self.replicator is not None:
                closing.callback(self.replicator.close, wait_s=COPY_WAIT_S)
            closing.callback(self.certifier.close)
            closing.callback(self.wiper.close)
            if self.door is not None:
                closing.callback(self.door.close)
