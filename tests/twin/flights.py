"""Prepare and teardown of claims on a node of the twin: the rules of `fleet.node`, over events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from fleet import claims, errors, leases, lifecycle, profiles
from fleet.claims import Claim, ClaimEvent, ClaimFact, ClaimState
from fleet.health import reasons
from fleet.leases import AcquireRequest, ClosedBy, Closure
from fleet.lifecycle import Change, Event, Fact
from fleet.messages import ClaimAnswer, ClaimOrder, DeviceResult, Outcome, Owed
from fleet.model import (
    NO_TOKEN,
    ClaimUid,
    Device,
    Holder,
    HolderKind,
    NodeName,
    OperationId,
    Source,
    State,
    Token,
    Unit,
    UnitId,
    Uuid,
)
from fleet.node import confirming
from fleet.profiles import Profile
from fleet.stores.base import LeaseStore
from tests.twin.admission import HELD, NOTE, UNHELD, Admission, renewed
from tests.twin.clock import Timeline
from tests.twin.journal import Flight, Hardware, Journal, Row, Work
from tests.twin.wiping import Wiping

RETRY_S, RETRY_MAX_S = 0.5, 30.0
VISIBLE_WAIT_S = 60.0
POLL_S = 0.25
SETTLED = (State.CLEAN, State.QUARANTINED)
_REREAD = (Fact.HOLDERS_REREAD, Fact.CERTIFICATE_ACCEPTED, Fact.NO_SURVIVOR, Fact.SAME_BOOT)
EXPOSABLE = frozenset({Fact.LEASE_OF_CLAIM, *_REREAD})


@dataclass
class Holding:
    """Claims of one node. `exposed` is told of every exposure, for the checker."""

    node: str
    timeline: Timeline
    journal: Journal
    hardware: Hardware
    wiping: Wiping
    store: LeaseStore
    profile: Profile
    admission: Admission
    exposed: Callable[[Claim], None]
    wake: Callable[[float], None]
    visible: dict[str, float] = field(default_factory=dict)
    flights: dict[ClaimUid, Flight] = field(default_factory=dict)
    holder_deadline_s: float = 600.0
    _pauses: dict[ClaimUid, tuple[float, float]] = field(default_factory=dict)

    # --- calls ---

    def prepare(self, order: ClaimOrder) -> ClaimAnswer:
        """Answer when prepared, else the retryable error of work that goes on."""
        uid = ClaimUid(order.uid)
        flight = self.flights.get(uid)
        if flight is not None and not flight.done and flight.kind is not ClaimEvent.PREPARE:
            raise errors.DeviceBusy(f"claim {uid} is being torn down", holder=f"claim:{uid}")
        known = self.journal.claims.get(uid)
        if flight is None or flight.done:
            if flight is not None and flight.error is not None:
                del self.flights[uid]
                raise flight.error
            self.admission.admit(order, known)
            flight = self.flights[uid] = Flight(uid, ClaimEvent.PREPARE, self.timeline.now())
            self._advance_prepare(flight)
        elif known is not None:
            self.journal.claims[uid] = renewed(known, order)
        return self._answered(flight)

    def _answered(self, flight: Flight) -> ClaimAnswer:
        if not flight.done:
            raise errors.DeviceBusy(f"claim {flight.uid} is still in work")
        del self.flights[flight.uid]
        if flight.error is not None:
            raise flight.error
        claim = self.journal.claims.get(flight.uid)
        if claim is None:
            return ClaimAnswer(uid=flight.uid, state=ClaimState.ABSENT)
        return self.answer(claim)

    def unprepare(
        self, uid: ClaimUid, consumers: Sequence[str], reserved: Sequence[str]
    ) -> ClaimAnswer:
        """Tear down; unknown is success."""
        flight = self.flights.get(uid)
        claim = self.journal.claims.get(uid)
        if flight is not None and not flight.done and flight.kind is ClaimEvent.PREPARE:
            self._stop(flight)
            flight = None
        if flight is None or flight.done:
            self.flights.pop(uid, None)
            if claim is None or claim.state is ClaimState.PREPARED:
                running = [pod for pod in reserved if pod in self.hardware.containers]
                if running:
                    raise errors.DeviceBusy(f"{uid} is in use", holder=f"pod:{running[0]}")
            if claim is None:
                return ClaimAnswer(uid=uid, state=ClaimState.ABSENT)
            if claim.state is not ClaimState.UNPREPARING:
                self._begin_teardown(claim, consumers)
            flight = self._launch_teardown(uid)
        return self._answered(flight)

    def unhold(self, uid: ClaimUid) -> None:
        """The API has given the claim up: its devices are tainted until they are at rest."""
        claim = self.journal.claims.get(uid)
        if claim is not None and HELD in claim.attributes:
            told = {**claim.attributes, UNHELD: "true"}
            self.journal.claims[uid] = replace(claim, attributes=told)
            self.wiping.changed()

    def abandon(self, uid: ClaimUid, token: Token, names: Sequence[str]) -> Closure:
        """Close a token for a claim without a record."""
        if token.epoch != self.journal.epoch:
            raise errors.EpochForeign("another epoch", ours=self.journal.epoch, theirs=token.epoch)
        confirming.issued(self.store, token)
        claim = self.journal.claims.get(uid)
        flight = self.flights.get(uid)
        idle = frozenset({ClaimFact.IDLE}) if flight is None or flight.done else frozenset()
        claims.step(claim.state if claim else ClaimState.ABSENT, ClaimEvent.ABANDON, idle)
        units = [unit for name in names for unit in self._units(name)]
        for unit in units:
            self.journal.units[unit] = lifecycle.close_floor(self.journal.units[unit], token)
        for work in {id(w): w for unit in units if (w := self.wiping.works.get(unit))}.values():
            if work.token is not None and work.token <= token:
                self.wiping.cancel(work)
        self.wiping.changed()
        holder = Holder(HolderKind.CLAIM, uid)
        return Closure(holder, token, NodeName(self.node), ClosedBy.ABANDON)

    def _units(self, name: str) -> Sequence[UnitId]:
        """A unit, or those of a device."""
        if name in self.journal.units:
            return (UnitId(name),)
        return self.admission.device(name).units

    # --- prepare ---

    def _advance_prepare(self, flight: Flight) -> None:
        try:
            claim = self.journal.claims[flight.uid]
            if claim.state is not ClaimState.PREPARED:
                claim = self._secured(claim)
                todo = [d for d in self._devices(claim) if not self._accepted(claim, d)]
                if todo:
                    self._wipe(flight, claim, todo)
                    return
                self._expose(claim)
            self._put_spec(claim)
            flight.done = True
        except errors.FleetError as error:
            flight.error, flight.done = error, True

    def _secured(self, claim: Claim) -> Claim:
        units = [self.journal.units[unit] for unit in claim.units]
        if all(unit.claim == claim.uid and unit.state is State.IN_USE for unit in units):
            return claim
        if claim.token != NO_TOKEN:
            try:
                leases.check_token(units, claim.token, self.journal.epoch)
                confirming.leased(self.store, claim.uid, claim.token, claim.units)
            except (errors.TokenStale, errors.LeaseLost, errors.EpochForeign):
                claim = replace(self.journal.claims[claim.uid], token=NO_TOKEN)
                self.journal.claims[claim.uid] = claim
            else:
                return claim
        newest = max(units, key=lambda unit: (unit.floor, unit.closed))
        (lease,) = self.store.acquire(
            [
                AcquireRequest(
                    units=frozenset(claim.units),
                    holder=Holder(HolderKind.CLAIM, claim.uid),
                    min_token=newest.floor,
                    closed=newest.closed,
                )
            ]
        )
        if isinstance(lease, errors.FleetError):
            raise lease
        leases.check_token(units, lease.token, self.journal.epoch)
        claim = replace(self.journal.claims[claim.uid], token=lease.token)
        self.journal.claims[claim.uid] = claim
        for unit in units:
            self.journal.units[unit.id] = lifecycle.raise_floor(unit, lease.token)
        self.wiping.changed()
        return claim

    def _accepted(self, claim: Claim, device: Device) -> bool:
        return all(
            (unit.state is State.IN_USE and unit.claim == claim.uid)
            or (unit.state is State.CLEAN and self._certified(claim, unit))
            for unit in self.wiping.units(device)
        )

    def _certified(self, claim: Claim, unit: Unit) -> bool:
        return unit.certificate is not None and profiles.accepts_certificate(
            self.profile,
            certificate_token=unit.token or NO_TOKEN,
            exposure_token=claim.token,
            exposures_since=0,
            foreign_holder_since=False,
            same_boot=unit.boot_id == self.journal.boot_id,
            same_driver=True,
            multi_tenant=self.profile is Profile.STRICT,
        )

    def _wipe(self, flight: Flight, claim: Claim, devices: Sequence[Device]) -> None:
        flight.works, flight.results = [], []
        wanted = len(devices)
        for device in devices:
            operation = OperationId(f"{flight.kind}/{claim.uid}/{device.uuid}")
            work = Work(
                operation, device, claim.token, claim.uid, partial(self._wiped, flight, wanted)
            )
            flight.works.append(work)
        for work in list(flight.works):
            self.wiping.begin(work)

    def _wiped(self, flight: Flight, wanted: int, result: DeviceResult) -> None:
        flight.results.append(result)
        if len(flight.results) < wanted or flight.done:
            return
        for one in flight.results:
            preparing = flight.kind is ClaimEvent.PREPARE
            if one.outcome is Outcome.QUARANTINED and preparing:
                flight.error = errors.DeviceUnfit(f"{one.device} is quarantined")
            elif one.outcome not in (Outcome.CERTIFIED, Outcome.QUARANTINED):
                flight.error = errors.DeviceBusy(f"{one.device} is {one.outcome}")
        if flight.error is not None:
            flight.done = True
        elif flight.kind is ClaimEvent.PREPARE:
            self._advance_prepare(flight)
        else:
            self._advance_teardown(flight)
        self.wake(RETRY_S)

    def _expose(self, claim: Claim) -> None:
        change = Change(EXPOSABLE, claim=claim.uid, token=claim.token)
        for device in self._devices(claim):
            if self.wiping.work_on(device) is not None:
                raise errors.DeviceBusy(f"{device.name} is worked on")
            if self.wiping.attached(device):
                raise errors.DeviceBusy(f"{device.name} is looked into")
            self.wiping.move(
                device,
                lambda unit: Event.EXPOSED if unit.state is not State.IN_USE else None,
                change,
            )

    def _put_spec(self, claim: Claim) -> None:
        fresh = claim.uid not in self.hardware.specs
        self.hardware.specs[claim.uid] = claim.devices
        if claim.state is not ClaimState.PREPARED:
            facts = frozenset({ClaimFact.UNITS_IN_USE, ClaimFact.SPEC_WRITTEN})
            state = claims.step(claim.state, ClaimEvent.PREPARED, facts)
            claim = replace(self.journal.claims[claim.uid], state=state)
            self.journal.claims[claim.uid] = claim
        if fresh:
            self.exposed(claim)
        self.wiping.changed()

    # --- teardown ---

    def _begin_teardown(self, claim: Claim, consumers: Sequence[str]) -> None:
        joined = frozenset({ClaimFact.PREPARE_JOINED})
        state = claims.step(claim.state, ClaimEvent.UNPREPARE, joined)
        known = (*claim.consumers, *(c for c in consumers if c not in claim.consumers))
        begun = {"teardown_at": repr(self.timeline.now()), **claim.attributes}
        self.journal.claims[claim.uid] = replace(
            claim, state=state, consumers=known, attributes=begun
        )
        self.wiping.changed()

    def _launch_teardown(self, uid: ClaimUid) -> Flight:
        flight = self.flights[uid] = Flight(uid, ClaimEvent.UNPREPARE, self.timeline.now())
        self.hardware.specs.pop(uid, None)
        self.wiping.changed()
        self._advance_teardown(flight)
        return flight

    def _advance_teardown(self, flight: Flight) -> None:
        try:
            claim = self.journal.claims[flight.uid]
            self._end_tenancy(claim)
            dirty = [d for d in self._devices(claim) if self.wiping.state(d) not in SETTLED]
            if dirty:
                self._wipe(flight, claim, dirty)
                return
            hidden = [d for d in self._devices(claim) if not self._visible(d)]
            if hidden:
                if self.timeline.now() - flight.begun >= VISIBLE_WAIT_S:
                    raise errors.DeviceBusy("its quarantine is not visible yet")
                self.timeline.after(POLL_S, lambda: self._look_again(flight), "visible?")
                return
            self._bury(claim)
            flight.done = True
        except errors.FleetError as error:
            flight.error, flight.done = error, True
            self.wake(RETRY_S)

    def _look_again(self, flight: Flight) -> None:
        if self.flights.get(flight.uid) is flight and not flight.done:
            self._advance_teardown(flight)

    def _end_tenancy(self, claim: Claim) -> None:
        living = [pod for pod, uids in self.hardware.containers.items() if claim.uid in uids]
        held = [d for d in self._devices(claim) if self.wiping.state(d) is State.IN_USE]
        if not held:
            return
        change = Change(frozenset({Fact.TENANT_GONE, Fact.SPEC_GONE}), holder=f"claim:{claim.uid}")
        event = Event.RELEASED
        if living:
            begun = float(claim.attributes.get("teardown_at", self.timeline.now()))
            if self.timeline.now() - begun < self.holder_deadline_s:
                raise errors.DeviceBusy(f"pod {living[0]} still runs", holder=f"claim:{claim.uid}")
            why = reasons.make("tenant-not-gone", Source.TEARDOWN, since=self.timeline.now())
            change = Change(reasons=frozenset({why}), holder=f"claim:{claim.uid}")
            event = Event.TEARDOWN_FAILED
        for device in held:
            self.wiping.move(
                device, lambda unit: event if unit.state is State.IN_USE else None, change
            )

    def _visible(self, device: Device) -> bool:
        if self.wiping.state(device) is not State.QUARANTINED:
            return True
        since = max(unit.since for unit in self.wiping.units(device))
        return self.visible.get(device.uuid) == since

    def _bury(self, claim: Claim) -> None:
        claims.step(claim.state, ClaimEvent.UNPREPARED, frozenset({ClaimFact.UNITS_RELEASED}))
        del self.journal.claims[claim.uid]
        self.journal.tombstones.add(claim.uid)
        for unit_id in claim.units:
            closed = lifecycle.close_floor(self.journal.units[unit_id], claim.token)
            self.journal.units[unit_id] = replace(closed, claim=None)
        owed = None
        if HELD in claim.attributes:
            owed = Owed(
                uid=claim.uid, namespace=claim.namespace, name=claim.name, devices=claim.devices
            )
        token = str(claim.token) if claim.token != NO_TOKEN else ""
        self.journal.outbox.append(Row(f"claim:{claim.uid}", token, owed))
        self.wiping.changed()
        self.wake(0.05)

    def resume(self) -> None:
        """Go on with teardowns that nobody calls for."""
        now = self.timeline.now()
        for uid, claim in list(self.journal.claims.items()):
            flight = self.flights.get(uid)
            if claim.state is not ClaimState.UNPREPARING or (flight and not flight.done):
                continue
            at, pause_s = self._pauses.get(uid, (float("-inf"), RETRY_S))
            if now - at < pause_s:
                self.wake(at + pause_s - now)
                continue
            self._pauses[uid] = (now, min(pause_s * 2, RETRY_MAX_S))
            self._launch_teardown(uid)
        for uid in self._pauses.keys() - self.journal.claims.keys():
            del self._pauses[uid]

    def _stop(self, flight: Flight) -> None:
        """A running prepare is cancelled and joined."""
        flight.done = True
        for work in flight.works:
            if any(self.wiping.works.get(unit) is work for unit in work.device.units):
                self.wiping.cancel(work)

    def _devices(self, claim: Claim) -> list[Device]:
        return [self.hardware.devices[Uuid(uuid)] for uuid in claim.devices]

    def answer(self, claim: Claim) -> ClaimAnswer:
        """A claim as callers see it."""
        ids: dict[str, tuple[str, ...]] = {
            uuid: (f"fleetscrub.dev/gpu={claim.uid}-{uuid}",) for uuid in claim.devices
        }
        return ClaimAnswer(
            uid=claim.uid,
            state=claim.state,
            devices=claim.devices,
            cdi=ids,
            note=claim.attributes.get(NOTE, ""),
            namespace=claim.namespace,
            name=claim.name,
        )
