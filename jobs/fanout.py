"""One question to all nodes at once, and the ports of a campaign over Ray.

Calls go out together and are waited for together under one deadline: a node that hangs delays an
answer by the deadline, never by its own time, and never hides another node's answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from actors.handles import CALL_TIMEOUT_S, RemoteCoordinator, RemoteNode, gather
from actors.node_actor import ACCEPTANCES, ORDERS
from fleet.control.campaign.ports import Requests
from fleet.core.errors import FleetError, RayUnavailable
from fleet.core.leases import AcquireRequest
from fleet.core.messages import Acceptance, DeviceResult, NodeView, ScrubOrder
from fleet.core.model import Lease
from fleet.evidence.ledger import LedgerHead
from fleet.stores.base import Release, Renewal

VIEW_TIMEOUT_S = 5.0
"""Time, s, a node has to show itself; the campaign asks again at its next step."""

T = TypeVar("T")


class RayNodes:
    """`fleet.control.campaign.ports.Nodes` over node actors."""

    def __init__(
        self,
        nodes: Sequence[RemoteNode],
        absent: Sequence[str] = (),
        *,
        view_timeout_s: float = VIEW_TIMEOUT_S,
        call_timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """`absent`: nodes there should be that have no actor; they answer `RayUnavailable`."""
        self._call_timeout_s = call_timeout_s
        self._view_timeout_s = view_timeout_s
        self._nodes = {node.name: node for node in nodes}
        self._absent = tuple(absent)

    def names(self) -> Sequence[str]:
        """All nodes, reachable or not."""
        return sorted({*self._nodes, *self._absent})

    def views(self, requests: Requests) -> Mapping[str, NodeView | FleetError]:
        """Every node's view, with the results of the operations named."""
        asked = {name: (tuple(requests.get(name, ())),) for name in self.names()}
        return self._ask("view", asked, NodeView.model_validate_json, self._view_timeout_s)

    def scrub_all(
        self, orders: Mapping[str, Sequence[ScrubOrder]]
    ) -> Mapping[str, Sequence[Acceptance] | FleetError]:
        """Give orders; `RayUnavailable` means they may or may not have arrived."""
        asked = {name: (ORDERS.dump_json(tuple(some)).decode(),) for name, some in orders.items()}
        return self._ask("scrub", asked, ACCEPTANCES.validate_json, self._call_timeout_s)

    def cancel(self, requests: Requests) -> Mapping[str, FleetError | None]:
        """Cancel operations."""
        asked = {name: (tuple(some),) for name, some in requests.items()}
        return self._ask("cancel", asked, lambda _: None, self._view_timeout_s)

    def heads(self) -> Mapping[str, LedgerHead | FleetError]:
        """The end of each node's ledger."""
        asked: dict[str, tuple[object, ...]] = dict.fromkeys(self.names(), ())
        return self._ask("head", asked, LedgerHead.from_json, self._call_timeout_s)

    def _ask(
        self,
        method: str,
        asked: Mapping[str, tuple[object, ...]],
        read: Callable[[Any], T],
        timeout_s: float,
    ) -> dict[str, T | FleetError]:
        found: dict[str, T | FleetError] = {}
        refs = {}
        for name, arguments in asked.items():
            if name in self._nodes:
                refs[name] = self._nodes[name].call(method, *arguments)
            else:
                found[name] = RayUnavailable(
                    f"{name}: no node actor runs", remedy="start the node, then run again"
                )
        for name, answer in gather(refs, call=method, timeout_s=timeout_s).items():
            found[name] = answer if isinstance(answer, FleetError) else read(answer)
        return found


class RayCoordinator:
    """`fleet.control.campaign.ports.CampaignCoordinator` over the coordinator actor."""

    def __init__(
        self, coordinator: RemoteCoordinator, *, out_of_service_max: int | None = None
    ) -> None:
        """`out_of_service_max`: devices the whole fleet may miss because of us at one time."""
        self._coordinator = coordinator
        self._out_of_service_max = out_of_service_max

    def acquire(self, requests: Sequence[AcquireRequest]) -> Sequence[Lease | FleetError]:
        """One answer per request, all in one call."""
        return self._coordinator.acquire(requests, out_of_service_max=self._out_of_service_max)

    def renew_all(self, renewals: Sequence[Renewal]) -> Sequence[Lease | FleetError]:
        """Lengthen leases, all in one call."""
        return self._coordinator.renew_all(renewals)

    def release_all(self, releases: Sequence[Release]) -> Sequence[bool | FleetError]:
        """Give leases back, all in one call."""
        return self._coordinator.release_all(releases)

    def append(self, run: str, results: Sequence[DeviceResult]) -> None:
        """Keep results with the run."""
        self._coordinator.append(run, results)

    def close(self, run: str, exit_reason: str) -> None:
        """Record why the run ended."""
        self._coordinator.close(run, exit_reason)
