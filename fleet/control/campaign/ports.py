"""What a campaign needs from outside: the nodes, and the coordinator that keeps leases and runs.

Both ports are batched, so that an adapter can ask all nodes at once and a slow one delays nobody
beyond the adapter's own time-out. A step of the campaign is one call of each, and one transaction
of the store, however many devices it concerns. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fleet.core.errors import FleetError
from fleet.core.leases import AcquireRequest
from fleet.core.messages import Acceptance, DeviceResult, NodeView, ScrubOrder
from fleet.core.model import Lease
from fleet.stores.base import Release, Renewal

Requests = Mapping[str, Sequence[str]]
"""Operations asked about, by node; a node without any is asked for its view all the same."""


class Nodes(Protocol):
    """The nodes of the fleet. An answer per node: an error of one never hides another's answer."""

    def names(self) -> Sequence[str]:
        """All nodes there should be, reachable or not. Raises `FleetError`."""
        ...

    def views(self, requests: Requests) -> Mapping[str, NodeView | FleetError]:
        """Every node's view, with the results of the operations named."""
        ...

    def scrub_all(
        self, orders: Mapping[str, Sequence[ScrubOrder]]
    ) -> Mapping[str, Sequence[Acceptance] | FleetError]:
        """Give orders; a retryable error means they may or may not have arrived."""
        ...

    def cancel(self, requests: Requests) -> Mapping[str, FleetError | None]:
        """Cancel operations; those that are over already are no error."""
        ...


class CampaignCoordinator(Protocol):
    """Leases and run records. Every method may raise `StoreUnavailable` or `RayUnavailable`."""

    def acquire(self, requests: Sequence[AcquireRequest]) -> Sequence[Lease | FleetError]:
        """One answer per request, in order; asking again for the same units is harmless."""
        ...

    def renew_all(self, renewals: Sequence[Renewal]) -> Sequence[Lease | FleetError]:
        """Lengthen leases, one answer for each in order; `LeaseLost` for one that is gone."""
        ...

    def release_all(self, releases: Sequence[Release]) -> Sequence[bool | FleetError]:
        """Give leases back, one answer for each in order; repeating is harmless."""
        ...

    def append(self, run: str, results: Sequence[DeviceResult]) -> None:
        """Keep results with the run. Repeating one is harmless."""
        ...

    def close(self, run: str, exit_reason: str) -> None:
        """Record why the run ended. A run that was not complete can be resumed."""
        ...
