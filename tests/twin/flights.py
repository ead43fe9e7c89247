"""Prepare and teardown of claims on a node of the twin: the product's steps, flown over events.

Admission, lease, exposure and every step of a teardown are `fleet.node`'s own. What is a model is
who performs them: the product's threads wait for wipes, here the wipe's end goes on with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from fleet.core import claim_states, errors, leases, unit_states
from fleet.core.claim_states import Claim, ClaimEvent, ClaimFact, ClaimState
from fleet.core.leases import ClosedBy, Closure
from fleet.core.messages import ClaimAnswer, ClaimOrder, DeviceResult, Outcome
from fleet.core.model import (
    ClaimUid,
    Device,
    Holder,
    HolderKind,
    NodeName,
    OperationId,
    Token,
    UnitId,
)
from fleet.core.profiles import Profile
from fleet.evidence.ledger import Ledger
from fleet.node import lease_check
from fleet.node.admission import NOTE, UNHELD, Admission, held
from fleet.node.claim_lease import Securing
from fleet.node.exposure import Exposer
from fleet.node.loss_records import TEARDOWN_AT, LossRecorder
from fleet.node.outbox import Outbox
from fleet.node.teardown import PUBLISHED_WAIT_S, Teardown, Visibility, settled
from fleet.stores.base import LeaseStore
from tests.twin.hardware import Hardware, Shelf, Tenants
from tests.twin.registry import TwinRegistry
from tests.twin.wiping import After, Job, Wiping

RETRY_S, RETRY_MAX_S = 0.5, 30.0
POLL_S = 0.25
ABSENT: Any = None
"""A part that no step asked for here uses."""


@dataclass
class Flight:
    """One operation on one claim; lost in a crash."""

    uid: ClaimUid
    kind: ClaimEvent
    begun: float
    jobs: list[Job] = field(default_factory=list)
    results: list[DeviceResult] = field(default_factory=list)
    done: bool = False
    error: errors.FleetError | None = None


@dataclass(frozen=True, slots=True)
class TwinExposer(Exposer):
    """Reads holders again at the containers, where the product asks driver and cgroups."""

    hardware: Hardware = field(kw_only=True)

    def _read_again(self, device: Device) -> None:
        if who := self.hardware.tenants(device):
            raise errors.DeviceBusy(f"{device.name} is in use by {who[0]}", holder=who[0])
        if any(set(units) & set(device.units) for units in self.hardware.workers.values()):
            raise errors.DeviceBusy(f"{device.name} is open in an earlier worker", holder="worker")
        if found := self.registry.attached((device.uuid,)):
            raise errors.DeviceBusy(f"claim {found[0]} is attached", holder=f"claim:{found[0]}")


@dataclass
class Holding:
    """Claims of one node."""

    registry: TwinRegistry
    wiping: Wiping
    shelf: Shelf
    store: LeaseStore
    profile: Profile
    outbox: Outbox
    after: After
    wake: Callable[[float], None]
    deadline_s: float = 600.0
    """How long a tenant may outlive its teardown."""
    flights: dict[ClaimUid, Flight] = field(default_factory=dict)
    visibility: Visibility = field(default_factory=lambda: Visibility(required=True))
    _pauses: dict[ClaimUid, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        registry, hardware = self.registry, self.shelf.hardware
        self.tenants = Tenants(hardware)
        self.admission = Admission(registry, self.shelf, self.store)
        self.securing = Securing(registry, self.store, self.outbox)
        ledger = cast("Ledger", hardware.evidence)
        self.exposer = TwinExposer(
            registry, ABSENT, ABSENT, self.profile, ledger, hardware=hardware
        )
        self.teardown = Teardown(
            registry,
            ABSENT,
            self.shelf,
            self.tenants,
            self.visibility,
            losses=cast("LossRecorder", hardware),
            holder_deadline_s=self.deadline_s,
        )

    def _flying(self, uid: ClaimUid) -> Flight | None:
        found = self.flights.get(uid)
        return found if found is not None and not found.done else None

    # --- calls ---

    def prepare(self, order: ClaimOrder) -> ClaimAnswer:
        """Answer when prepared, else the retryable error of work that goes on."""
        uid = ClaimUid(order.uid)
        flight = self._flying(uid)
        if flight is not None and flight.kind is not ClaimEvent.PREPARE:
            raise errors.DeviceBusy(f"claim {uid} is being torn down", holder=f"claim:{uid}")
        if flight is not None:
            self.admission.join(order)
        else:
            ended = self.flights.pop(uid, None)
            if ended is not None and ended.error is not None and ended.kind is ClaimEvent.PREPARE:
                raise ended.error
            self.admission.admit(order)
            flight = self.flights[uid] = Flight(uid, ClaimEvent.PREPARE, self._monotonic())
            self._advance_prepare(flight)
        return self._answered(flight)

    def _monotonic(self) -> float:
        return self.registry.clock.monotonic()

    def _answered(self, flight: Flight) -> ClaimAnswer:
        if not flight.done:
            raise errors.DeviceBusy(f"claim {flight.uid} is still in work")
        self.flights.pop(flight.uid, None)
        if flight.error is not None:
            raise flight.error
        claim = self.registry.journal.claims.get(flight.uid)
        if claim is None:
            return ClaimAnswer(uid=flight.uid, state=ClaimState.ABSENT)
        return self.answer(claim)

    def unprepare(
        self, uid: ClaimUid, consumers: Sequence[str], reserved: Sequence[str]
    ) -> ClaimAnswer:
        """Tear down; unknown is success."""
        flight = self._flying(uid)
        claim = self.registry.journal.claims.get(uid)
        if flight is not None and flight.kind is ClaimEvent.PREPARE:
            self._stop(flight)
            flight = None
        if flight is None:
            self.flights.pop(uid, None)
            if claim is None or claim.state is ClaimState.PREPARED:
                running = self.tenants.running(reserved)
                if running:
                    raise errors.DeviceBusy(f"{uid} is in use", holder=f"pod:{running[0]}")
            if claim is None:
                absent = claim_states.step(ClaimState.ABSENT, ClaimEvent.UNPREPARE)
                return ClaimAnswer(uid=uid, state=absent)
            self._begin_teardown(claim, consumers)
            flight = self._launch_teardown(uid)
        return self._answered(flight)

    def unhold(self, uid: ClaimUid) -> None:
        """The API has given the claim up: its devices are tainted until they are at rest."""
        claim = self.registry.journal.claims.get(uid)
        if claim is not None and held(claim):
            told = {**claim.attributes, UNHELD: "true"}
            with self.registry.commit() as commit:
                commit.put_claim(replace(claim, attributes=told))

    def abandon(self, uid: ClaimUid, token: Token, names: Sequence[str]) -> Closure:
        """Close a token for a claim without a record."""
        behind = leases.is_behind(token, self.registry.journal.epoch)
        lease_check.issued(self.store, token)
        claim = self.registry.journal.claims.get(uid)
        idle = frozenset({ClaimFact.IDLE}) if self._flying(uid) is None else frozenset()
        units = [unit for name in names for unit in self._units(name)]
        claim_states.step(claim.state if claim else ClaimState.ABSENT, ClaimEvent.ABANDON, idle)
        with self.registry.commit() as commit:
            for unit in () if behind else units:
                commit.put_unit(unit_states.close_floor(commit.unit(unit), token))
        for work in self.registry.works():
            mine = set(work.device.units) & set(units)
            if mine and work.token is not None and work.token <= token:
                self.registry.stop(work)
        holder = Holder(HolderKind.CLAIM, uid)
        return Closure(holder, token, NodeName(self.shelf.hardware.node), ClosedBy.ABANDON)

    def _units(self, name: str) -> Sequence[UnitId]:
        """A unit, or those of a device."""
        if UnitId(name) in self.registry.journal.units:
            return (UnitId(name),)
        return self.registry.device(name).units

    # --- prepare ---

    def _advance_prepare(self, flight: Flight) -> None:
        try:
            claim = self.registry.journal.claims[flight.uid]
            if claim.state is not ClaimState.PREPARED:
                claim = self.securing.secure(claim)
                units = self.registry.journal.units
                todo = [
                    device
                    for device in map(self.registry.device, claim.devices)
                    if not all(self.exposer.accepted(claim, units[u]) for u in device.units)
                ]
                if todo:
                    self._wipe(flight, claim, todo)
                    return
                claim = self.exposer.expose(claim)
            self.shelf.write(claim)
            if claim.state is not ClaimState.PREPARED:
                self._prepared(claim)
            flight.done = True
        except errors.FleetError as error:
            self._failed(flight, error)

    def _prepared(self, claim: Claim) -> None:
        facts = frozenset({ClaimFact.UNITS_IN_USE, ClaimFact.SPEC_WRITTEN})
        state = claim_states.step(claim.state, ClaimEvent.PREPARED, facts)
        with self.registry.commit() as commit:
            commit.put_claim(replace(commit.claim(claim.uid) or claim, state=state))

    def _failed(self, flight: Flight, error: errors.FleetError) -> None:
        flight.error, flight.done = error, True
        claim = self.registry.journal.claims.get(flight.uid)
        if flight.kind is ClaimEvent.PREPARE and claim is not None:
            if claim.state is ClaimState.PREPARING:
                claim_states.step(claim.state, ClaimEvent.PREPARE_FAILED)
        else:
            self.wake(RETRY_S)

    def _wipe(self, flight: Flight, claim: Claim, devices: Sequence[Device]) -> None:
        flight.jobs, flight.results = [], []
        wanted = len(devices)
        for device in devices:
            operation = OperationId(f"{flight.kind}/{claim.uid}/{device.uuid}")
            job = Job(operation, device, idle=False, token=claim.token, claim=claim.uid)
            job.on_end = partial(self._wiped, flight, wanted)
            flight.jobs.append(job)
        for job in list(flight.jobs):
            self.wiping.begin(job)

    def _wiped(self, flight: Flight, wanted: int, result: DeviceResult) -> None:
        flight.results.append(result)
        if len(flight.results) < wanted or flight.done:
            return
        preparing = flight.kind is ClaimEvent.PREPARE
        error: errors.FleetError | None = None
        for one in flight.results:
            if one.outcome is Outcome.QUARANTINED and preparing:
                error = errors.DeviceUnfit(f"{one.device} is quarantined")
            elif one.outcome not in (Outcome.CERTIFIED, Outcome.QUARANTINED):
                error = errors.DeviceBusy(f"{one.device} is {one.outcome}")
        if error is not None and (preparing or not self._given_up(flight, error)):
            self._failed(flight, error)
        elif preparing:
            self._advance_prepare(flight)
        else:
            self._advance_teardown(flight)
        self.wake(RETRY_S)

    def _given_up(self, flight: Flight, error: errors.FleetError) -> bool:
        """What nobody could wipe by the deadline is quarantined instead."""
        claim = self.registry.journal.claims[flight.uid]
        try:
            late = self.teardown._late(claim)
            return late and self.teardown._give_up(claim, error.detail)
        except errors.FleetError:
            return False

    # --- teardown ---

    def _begin_teardown(self, claim: Claim, consumers: Sequence[str]) -> None:
        joined = frozenset({ClaimFact.PREPARE_JOINED})
        state = claim_states.step(claim.state, ClaimEvent.UNPREPARE, joined)
        known = (*claim.consumers, *(c for c in consumers if c not in claim.consumers))
        begun = {TEARDOWN_AT: repr(self.registry.clock.now()), **claim.attributes}
        torn = replace(claim, state=state, consumers=known, attributes=begun)
        with self.registry.commit() as commit:
            commit.put_claim(torn)

    def _launch_teardown(self, uid: ClaimUid) -> Flight:
        flight = self.flights[uid] = Flight(uid, ClaimEvent.UNPREPARE, self._monotonic())
        self._advance_teardown(flight)
        return flight

    def _advance_teardown(self, flight: Flight) -> None:
        teardown, units = self.teardown, self.registry.journal.units
        try:
            claim = self.registry.journal.claims[flight.uid]
            self.shelf.remove(flight.uid)
            teardown._end_tenancy(claim)
            teardown._write_off_missing(claim)
            dirty = [
                found
                for found in map(self.registry.devices.get, claim.devices)
                if found is not None and not all(settled(claim, units[u]) for u in found.units)
            ]
            if dirty:
                self._wipe(flight, claim, dirty)
                return
            teardown._take_out_whole(claim)
            if teardown._hidden(claim):
                if self._monotonic() - flight.begun >= PUBLISHED_WAIT_S:
                    raise errors.DeviceBusy("its quarantine is not visible yet")
                self.after(POLL_S, lambda: self._look_again(flight), "visible?")
                return
            teardown.losses.record(claim, teardown._quarantined(claim))
            teardown._bury(claim)
            flight.done = True
            self.wake(0.05)
        except errors.FleetError as error:
            self._failed(flight, error)

    def _look_again(self, flight: Flight) -> None:
        if self.flights.get(flight.uid) is flight and not flight.done:
            self._advance_teardown(flight)

    # --- by itself ---

    def resume(self) -> None:
        """Go on with teardowns that nobody calls for, and write specs again that are gone."""
        now = self._monotonic()
        journal = self.registry.journal
        for uid, claim in list(journal.claims.items()):
            if self._flying(uid) is not None:
                continue
            if claim.state is ClaimState.PREPARED and uid not in self.shelf.listed():
                flight = self.flights[uid] = Flight(uid, ClaimEvent.PREPARE, now)
                self._advance_prepare(flight)
            if claim.state is not ClaimState.UNPREPARING:
                continue
            at, pause_s = self._pauses.get(uid, (float("-inf"), RETRY_S))
            if now - at < pause_s:
                self.wake(at + pause_s - now)
                continue
            self._pauses[uid] = (now, min(pause_s * 2, RETRY_MAX_S))
            self._launch_teardown(uid)
        for uid in self._pauses.keys() - journal.claims.keys():
            del self._pauses[uid]

    def _stop(self, flight: Flight) -> None:
        """A running prepare is cancelled and joined."""
        flight.done = True
        for job in flight.jobs:
            if self.registry.work_on(job.device) is job:
                self.registry.stop(job)

    def answer(self, claim: Claim) -> ClaimAnswer:
        """A claim as callers see it."""
        return ClaimAnswer(
            uid=claim.uid,
            state=claim.state,
            devices=claim.devices,
            cdi={uuid: self.shelf.ids(claim, uuid) for uuid in claim.devices},
            note=claim.attributes.get(NOTE, ""),
            namespace=claim.namespace,
            name=claim.name,
        )
