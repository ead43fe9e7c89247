"""What the claims of a cluster meet: API, leases, nodes; who lets go, who sees, who tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fleet.control.binding.claim_facts import Rules
from fleet.control.binding.claim_leases import ClaimLeases
from fleet.control.binding.decisions import PodFact
from fleet.control.binding.object_cache import Cached
from fleet.control.binding.shard import Charge
from fleet.core.settings import Finalizing, Settings, Unexposed, WipePolicy
from fleet.kube.base import Cluster, Name
from fleet.kube.claim import ClaimReading
from fleet.kube.marks import Marks
from fleet.rpc.nodes import Nodes

Job = Callable[[], None]


def in_turn(jobs: Sequence[Job]) -> None:
    """One after the other; a host with threads may do them side by side."""
    for job in jobs:
        job()


class Releasing(Protocol):
    """Takes hold and finalizer off; see `fleet.kube.claim_holds.Holds`."""

    def release(self, name: Name, uid: str, *, of: ClaimReading | None = None) -> object: ...


class Seeing(Protocol):
    """What the scheduler can see of quarantines; see `fleet.control.binding.visibility.Visible`."""

    def hidden(self, node: str, names: Iterable[str]) -> frozenset[str]: ...

    def take_over(self, node: str, devices: Mapping[str, Iterable[str]], now: float) -> bool: ...


class Telling(Protocol):
    """Tells owners of claims and pods; see `fleet.kube.events.Events`."""

    def claim(self, reading: ClaimReading, reason: str, message: str) -> None: ...

    def waiting(self, reading: ClaimReading, why: str) -> None: ...

    def pod(self, namespace: str, pod: PodFact, reason: str, message: str) -> None: ...


@dataclass(frozen=True, slots=True)
class BinderTerms:
    """What the coordinator binds by."""

    rules: Rules
    hold_event_after_s: float
    """Time, s, after which a claim held without a user is told about."""
    unexposed: Unexposed
    wipe: WipePolicy
    """The fleet's own policy; a claim may demand more."""

    @classmethod
    def from_settings(cls, settings: Settings) -> BinderTerms:
        """The terms that the settings say."""
        kubernetes = settings.kubernetes
        return cls(
            rules=Rules(
                marks=Marks(kubernetes.driver),
                binding_timeout_s=kubernetes.binding_timeout_s,
                fresh_s=settings.health.fresh_s,
                until_verified=kubernetes.finalizer is Finalizing.UNTIL_VERIFIED,
                admins=kubernetes.admins,
            ),
            hold_event_after_s=kubernetes.hold_event_after_s,
            unexposed=kubernetes.unexposed,
            wipe=settings.wipe,
        )


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything the coordinator's claims meet."""

    cluster: Cluster
    leases: ClaimLeases
    nodes: Nodes
    holds: Releasing
    visible: Seeing
    tell: Telling
    claims: Cached
    """All claims of the cluster."""
    charge: Charge = field(default_factory=Charge)
    """Which of them, and of the nodes, are this coordinator's."""
    each: Callable[[Sequence[Job]], None] = in_turn
