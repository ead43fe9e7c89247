"""Whether a node of the twin takes a claim: the refusals of `fleet.node.admitting`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet import claims, errors, leases, lifecycle
from fleet.claims import Claim, ClaimEvent, ClaimFact, ClaimState
from fleet.clock import Clock
from fleet.messages import ClaimOrder
from fleet.model import NO_TOKEN, OUT_OF_SERVICE, ClaimUid, Device, State, Token, Unit
from fleet.node import confirming
from fleet.stores.base import LeaseStore
from tests.twin.journal import Hardware, Journal
from tests.twin.wiping import Wiping

NOTE, HELD, UNHELD = "note", "held", "unheld"


@dataclass
class Admission:
    """Admits claims to one node."""

    clock: Clock
    journal: Journal
    hardware: Hardware
    wiping: Wiping
    store: LeaseStore

    def device(self, name: str) -> Device:
        """A device by UUID, name or one of its units."""
        for device in self.hardware.devices.values():
            if name in (device.uuid, device.name, *device.units):
                return device
        raise errors.DeviceUnknown(f"node {self.hardware.node} has no device {name!r}")

    def admit(self, order: ClaimOrder, known: Claim | None) -> None:
        """Commit PREPARING, or refuse and change nothing."""
        uid = ClaimUid(order.uid)
        token = Token.parse(order.token) if order.token else NO_TOKEN
        devices = [self.device(name) for name in order.devices]
        if known is not None:
            if known.state is ClaimState.UNPREPARING:
                raise errors.DeviceBusy(f"claim {uid} is being torn down", holder=f"claim:{uid}")
            if {device.uuid for device in devices} != set(known.devices):
                raise errors.DeviceBusy(f"claim {uid} holds others", holder=f"claim:{uid}")
            claims.step(known.state, ClaimEvent.PREPARE)
            self.journal.claims[uid] = renewed(known, order)
            return
        units = [unit for device in devices for unit in self.wiping.units(device)]
        for unit in units:
            _refuse(unit, uid)
        if token != NO_TOKEN:
            leases.check_token(units, token, self.journal.epoch)
            confirming.leased(self.store, uid, token, [unit.id for unit in units])
        live = uid not in self.journal.tombstones or bool(order.consumers)
        facts = frozenset({ClaimFact.LIVE_CONSUMER}) if live else frozenset()
        claim = Claim(
            uid=uid,
            state=claims.step(ClaimState.ABSENT, ClaimEvent.PREPARE, facts),
            devices=tuple(device.uuid for device in devices),
            units=tuple(unit.id for unit in units),
            token=token,
            boot_id=self.journal.boot_id,
            namespace=order.namespace,
            name=order.name,
            created_at=self.clock.now(),
        )
        self.journal.claims[uid] = renewed(claim, order)
        for unit in units:
            self.journal.units[unit.id] = replace(lifecycle.raise_floor(unit, token), claim=uid)
        self.wiping.changed()


def _refuse(unit: Unit, uid: ClaimUid) -> None:
    if unit.claim not in (None, uid):
        raise errors.DeviceBusy(f"{unit.id} is held", holder=f"claim:{unit.claim}")
    if unit.state is State.HELD:
        raise errors.DeviceBusy(f"{unit.id} is held", holder="an unknown holder")
    if unit.state in OUT_OF_SERVICE:
        raise errors.DeviceUnfit(f"{unit.id} is {unit.state}")


def renewed(known: Claim, order: ClaimOrder) -> Claim:
    """The record with what a repeated prepare brings."""
    consumers = (*known.consumers, *(c for c in order.consumers if c not in known.consumers))
    attributes = dict(known.attributes)
    if order.note:
        attributes[NOTE] = order.note
    if order.held:
        attributes[HELD] = "true"
        attributes.pop(UNHELD, None)
    return replace(known, consumers=consumers, attributes=attributes)


def is_held(claim: Claim) -> bool:
    """Whether our reservation keeps the allocation of a claim that has a record."""
    return HELD in claim.attributes and UNHELD not in claim.attributes
