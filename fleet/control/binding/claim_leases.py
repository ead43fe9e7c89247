"""The leases of claims, for the coordinator: taken all or nothing, given back in two steps.

A claim's lease ends by its node's word alone: the node closes the token (`abandon`), then the store
releases it. A node that has a record of the claim refuses; its teardown gives the lease back.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from fleet.control.binding import pledge
from fleet.core import errors
from fleet.core.leases import AcquireRequest, Closure
from fleet.core.messages import DeviceView, NodeView
from fleet.core.model import NO_TOKEN, Holder, HolderKind, Lease, Token, UnitId
from fleet.rpc.nodes import Abandonment, Nodes
from fleet.stores.base import Release

LOG = logging.getLogger(__name__)


class Granting(Protocol):
    """The coordinator's leases; see `fleet.control.coordinator.Coordinator`."""

    def acquire(self, requests: Sequence[AcquireRequest]) -> list[Lease | errors.FleetError]: ...

    def release_all(self, releases: Sequence[Release]) -> list[bool | errors.FleetError]: ...

    def leases(self, holder: Holder | None = None) -> Sequence[Lease]: ...

    def held_by(self, holders: Collection[Holder]) -> Sequence[Lease]: ...


class ClaimLeases:
    """Leases whose holders are claims. Every method raises the store's errors."""

    def __init__(self, granting: Granting, nodes: Nodes) -> None:
        self._granting = granting
        self._nodes = nodes

    def by_claim(self, uids: Collection[str] | None = None) -> Mapping[str, Sequence[Lease]]:
        """Those of these claims, or all of them, by the claim's UID.

        A step asks for the claims that are due: what it costs must not grow with all the others.
        """
        found: dict[str, list[Lease]] = defaultdict(list)
        if uids is None:
            leases = self._granting.leases()
        else:
            leases = self._granting.held_by([Holder(HolderKind.CLAIM, uid) for uid in uids])
        for lease in leases:
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

    def pledge(self, uid: str, owner: str, ttl_s: float) -> None:
        """Take, or prolong, the right to allocate the claim. Raises `LeaseHeld` where another has
        it, and what the store answers."""
        request = AcquireRequest(frozenset({pledge.unit(uid)}), pledge.holder(owner), ttl_s)
        (answer,) = self._granting.acquire([request])
        if isinstance(answer, errors.FleetError):
            raise answer

    def unpledge(self, uid: str, owner: str) -> None:
        """Give that right back; repeating is harmless."""
        held = self._granting.held_by([pledge.holder(owner)])
        mine = [lease for lease in held if pledge.covers(lease, uid, owner)]
        self._granting.release_all([Release(lease.holder, lease.token) for lease in mine])

    def pledges(self, owners: Mapping[str, str]) -> Mapping[str, Lease]:
        """For each claim (by UID) that is its owner's to allocate, as its pledge names him, the
        lease that says so."""
        if not owners:
            return {}
        held = self._granting.held_by([pledge.holder(owner) for owner in set(owners.values())])
        return {
            uid: lease
            for uid, owner in owners.items()
            for lease in held
            if pledge.covers(lease, uid, owner)
        }

    def undo(
        self,
        leases: Sequence[Lease],
        where: Mapping[UnitId, str],
        views: Mapping[str, NodeView | None],
    ) -> str:
        """Give these leases of one claim back; what is left to wait for, "" when all is done.

        `where`: node of each unit; `views`: nodes as seen last, None for a silent one.
        """
        closed = self.close(leases, where, views)
        words = [one for one in closed if isinstance(one, str)]
        words += self.release([one for one in closed if isinstance(one, Closure)])
        return next((word for word in words if word), "")

    def close(
        self,
        leases: Sequence[Lease],
        where: Mapping[UnitId, str],
        views: Mapping[str, NodeView | None],
    ) -> Sequence[Closure | str]:
        """Have the tokens of these leases closed, all in one batch: a word of a node of each, or
        why there is none yet. See `undo` for what is passed.
        """
        asked = [_abandonments(lease, where, views) for lease in leases]
        batch = [one for each in asked if not isinstance(each, str) for one in each]
        answers = iter(self._nodes.abandon(batch) if batch else ())
        found: list[Closure | str] = []
        for each in asked:
            if isinstance(each, str):
                found.append(each)
                continue
            words = [next(answers) for _ in each]
            refused = [one.detail for one in words if isinstance(one, errors.FleetError)]
            found.append(refused[0] if refused else _word(words))
        return found

    def release(self, closures: Sequence[Closure]) -> Sequence[str]:
        """Give back, in one transaction, what nodes have closed; what is left of each, or ""."""
        if not closures:
            return ()
        answers = self._granting.release_all([Release(c.holder, c.token, c) for c in closures])
        return [one.detail if isinstance(one, errors.FleetError) else "" for one in answers]


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
    units: dict[str, list[str]] = defaultdict(list)
    for unit in sorted(lease.units):
        if unit not in where:
            return "the node of its units is not known yet"
        units[where[unit]].append(unit)
    for node in units:
        if views.get(node) is None:
            return f"node {node} does not answer"
    uid, token = lease.holder.name, str(lease.token)
    return [Abandonment(node, uid, token, tuple(mine)) for node, mine in sorted(units.items())]


def _word(words: Sequence[Closure | errors.FleetError]) -> Closure | str:
    return next((one for one in words if isinstance(one, Closure)), "no node was asked")
