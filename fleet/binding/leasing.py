"""The leases of claims, for the coordinator: taken all or nothing, given back in two steps.

A claim's lease ends by its node's word alone: the node closes the token (`abandon`), then the store
releases it. A node that has a record of the claim refuses; its teardown gives the lease back.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from fleet import errors
from fleet.binding.ports import Abandonment, Nodes
from fleet.leases import AcquireRequest
from fleet.messages import DeviceView, NodeView
from fleet.model import NO_TOKEN, Holder, HolderKind, Lease, Token, UnitId
from fleet.stores.base import Release

LOG = logging.getLogger(__name__)


class Granting(Protocol):
    """The coordinator's leases; see `fleet.coordinator.Coordinator`."""

    def acquire(self, requests: Sequence[AcquireRequest]) -> list[Lease | errors.FleetError]: ...

    def release_all(self, releases: Sequence[Release]) -> list[bool | errors.FleetError]: ...

    def leases(self, holder: Holder | None = None) -> Sequence[Lease]: ...


class ClaimLeases:
    """Leases whose holders are claims. Every method raises the store's errors."""

    def __init__(self, granting: Granting, nodes: Nodes) -> None:
        self._granting = granting
        self._nodes = nodes

    def by_claim(self) -> Mapping[str, Sequence[Lease]]:
        """All of them by the claim's UID."""
        found: dict[str, list[Lease]] = defaultdict(list)
        for lease in self._granting.leases():
            if lease.holder.kind is HolderKind.CLAIM:
                found[lease.holder.name].append(lease)
        return found

    def acquire(
        self, wanted: Sequence[tuple[str, Sequence[DeviceView]]]
    ) -> Sequence[Lease | errors.FleetError]:
        """A lease of all units of each claim's devices, or why not; one answer for each."""
        if not wanted:
            return ()
        return self._granting.acquire([_request(uid, devices) for uid, devices in wanted])

    def undo(
        self,
        leases: Sequence[Lease],
        where: Mapping[UnitId, str],
        views: Mapping[str, NodeView | None],
    ) -> str:
        """Give these leases of one claim back; what is left to wait for, "" when all is done.

        `where`: node of each unit; `views`: nodes as seen last, None for a silent one.
        """
        left = ""
        for lease in leases:
            asked = _abandonments(lease, where, views)
            if isinstance(asked, str):
                left = asked
                continue
            closures = self._nodes.abandon(asked)
            refused = [one for one in closures if isinstance(one, errors.FleetError)]
            if refused:
                left = refused[0].detail
                continue
            closure = next(
                (one for one in closures if not isinstance(one, errors.FleetError)), None
            )
            (released,) = self._granting.release_all([Release(lease.holder, lease.token, closure)])
            if isinstance(released, errors.FleetError):
                left = released.detail
        return left


def _request(uid: str, devices: Iterable[DeviceView]) -> AcquireRequest:
    listed = tuple(devices)
    newest = max(
        ((Token.parse(device.floor), device.closed) for device in listed), default=(NO_TOKEN, False)
    )
    return AcquireRequest(
        units=frozenset(UnitId(unit) for device in listed for unit in device.units),
        holder=Holder(HolderKind.CLAIM, uid),
        min_token=newest[0],
        closed=newest[1],
    )


def _abandonments(
    lease: Lease, where: Mapping[UnitId, str], views: Mapping[str, NodeView | None]
) -> list[Abandonment] | str:
    """What to ask of which node; or whom there is to wait for."""
    nodes = sorted({where[unit] for unit in lease.units if unit in where})
    if not nodes:
        return "the node of its units is not known yet"
    asked = []
    for node in nodes:
        view = views.get(node)
        if view is None:
            return f"node {node} does not answer"
        devices = [d.uuid for d in view.devices if d.units and lease.units.issuperset(d.units)]
        asked.append(Abandonment(node, lease.holder.name, str(lease.token), tuple(devices)))
    return asked
