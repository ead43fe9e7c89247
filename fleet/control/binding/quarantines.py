"""Quarantine as a lease: what is out of service is so in the store too, whoever asks there.

A node's journal is the truth about quarantine. The lease beside it keeps campaigns and claims from
being granted a device that the node would refuse anyway, counts in the budget of devices out of
service (B50), and outlives the journal: a new one takes the quarantine from it
(`fleet.node.recovery`).

Level-triggered: each step compares leases with views. A unit is leased once, to the largest device
that is out of service as a whole; a partition quarantined alone never takes its neighbours along.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.messages import DeviceView, NodeView
from fleet.core.model import NO_TOKEN, Holder, HolderKind, Lease, State, UnitId
from fleet.stores.base import Release

VIEW_AGE_MAX_S = 60.0
"""An older view, or one of another clock, gives no lease back."""
_OUT = frozenset({State.QUARANTINED, State.RETESTING})
_DOUBTFUL = frozenset({State.HELD, *_OUT})
"""States in which a lease is kept. HELD: the journal is new, and may not have read the lease."""


class Leases(Protocol):
    """What is asked of the coordinator; batched."""

    def acquire(self, requests: Sequence[AcquireRequest]) -> Sequence[Lease | errors.FleetError]:
        """One answer for each request, in order."""
        ...

    def release_all(self, releases: Sequence[Release]) -> Sequence[bool | errors.FleetError]:
        """One answer for each release, in order."""
        ...

    def leases(self) -> Sequence[Lease]:
        """All leases in force."""
        ...


@dataclass(frozen=True, slots=True)
class Balance:
    """What one step did."""

    acquired: tuple[Lease, ...] = ()
    released: tuple[Lease, ...] = ()
    waiting: Mapping[Holder, errors.FleetError] = field(default_factory=dict)
    """Quarantines whose units somebody still has (a claim, a campaign): asked again next time."""


@dataclass(frozen=True, slots=True)
class QuarantineLeases:
    """Keeps the store's quarantine leases in line with what nodes say."""

    coordinator: Leases

    def step(self, views: Mapping[str, NodeView | errors.FleetError | None], now: float) -> Balance:
        """One comparison. `now`: seconds since the epoch. Raises what the store raises as a whole,
        and `SettingsInvalid` naming nodes whose clocks are apart from ours, once all is done.

        A node that is missing here, silent or long unheard of gives no lease back; one that shows a
        device out of service gets the lease whatever its clock says.
        """
        balance = self._compare(views, now)
        if apart := {v.node: now - v.at for v in _heard(views) if abs(now - v.at) > VIEW_AGE_MAX_S}:
            told = ", ".join(f"{node} ({apart_s:+.0f} s)" for node, apart_s in apart.items())
            raise errors.SettingsInvalid(
                f"our clock is ahead of, or behind that of {told}: leases of quarantines there are"
                " taken, and not given back",
                remedy="set the clocks of these nodes and of the coordinator's host (NTP)",
            )
        return balance

    def _compare(
        self, views: Mapping[str, NodeView | errors.FleetError | None], now: float
    ) -> Balance:
        heard = _heard(views)
        fresh = [view for view in heard if abs(now - view.at) <= VIEW_AGE_MAX_S]
        known = {u: d for view in fresh for u, d in _by_unit(view.devices).items()}
        held = [
            lease
            for lease in self.coordinator.leases()
            if lease.holder.kind is HolderKind.QUARANTINE
        ]
        released = self._release([lease for lease in held if _ended(lease, known)])
        kept = {unit for lease in held if lease not in released for unit in lease.units}
        wanted = [request for view in heard for request in _requests(view.devices, kept)]
        if not wanted:
            return Balance(released=tuple(released))
        acquired, waiting = [], {}
        for request, answer in zip(wanted, self.coordinator.acquire(wanted), strict=True):
            if isinstance(answer, Lease):
                acquired.append(answer)
            else:
                waiting[request.holder] = answer
        return Balance(tuple(acquired), tuple(released), waiting)

    def _release(self, ended: Sequence[Lease]) -> list[Lease]:
        if not ended:
            return []
        answers = self.coordinator.release_all([Release(one.holder, one.token) for one in ended])
        return [
            lease
            for lease, answer in zip(ended, answers, strict=True)
            if not isinstance(answer, errors.FleetError)
        ]


def _heard(views: Mapping[str, NodeView | errors.FleetError | None]) -> list[NodeView]:
    return [view for view in views.values() if isinstance(view, NodeView)]


def _by_unit(devices: Iterable[DeviceView]) -> Mapping[UnitId, DeviceView]:
    """The smallest device of each unit: its state is the unit's own as nearly as a view tells."""
    found: dict[UnitId, DeviceView] = {}
    for device in sorted(devices, key=lambda one: (-len(one.units), one.uuid)):
        found.update(dict.fromkeys(map(UnitId, device.units), device))
    return found


def _ended(lease: Lease, known: Mapping[UnitId, DeviceView]) -> bool:
    """Whether a unit of the lease is in service again; the others are then leased anew."""
    found = [known[unit] for unit in lease.units if unit in known]
    if len(found) < len(lease.units):
        return False
    return any(one.state not in _DOUBTFUL and not _is_new(one) for one in found)


def _is_new(device: DeviceView) -> bool:
    """Whether its node has yet to read the store's word: the card may have been another node's.

    A lease taken for it now could not be told from that of the other node.
    """
    return device.floor == str(NO_TOKEN)


def _requests(devices: Sequence[DeviceView], kept: AbstractSet[UnitId]) -> Iterator[AcquireRequest]:
    smallest = _by_unit(devices)
    left = {
        unit
        for unit, device in smallest.items()
        if device.state in _OUT and not device.claim and unit not in kept and not _is_new(device)
    }
    for device in sorted(devices, key=lambda one: (-len(one.units), one.uuid)):
        units = frozenset(map(UnitId, device.units))
        if units and units <= left:
            left -= units
            yield AcquireRequest(units, Holder(HolderKind.QUARANTINE, device.uuid))
    for device in sorted(devices, key=lambda one: (-len(one.units), one.uuid)):
        units = frozenset(map(UnitId, device.units)) & left
        if units:
            left -= units
            yield AcquireRequest(units, Holder(HolderKind.QUARANTINE, device.uuid))
