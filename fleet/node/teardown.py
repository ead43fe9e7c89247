"""Taking devices back from a claim: spec gone, tenant proven gone, wiped or out of service, buried.

An instance that a partition was reached through goes after the wipe inside it and before the
burial: while there is one, there is a record that says so.

The commit that buries a record follows the one that made its units CLEAN, instead of being the
same: between the two the units still carry the claim, so nobody else can get them, and a restart
finishes the burial without a second wipe.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet.core import claim_states, errors, unit_states
from fleet.core.claim_states import Claim, ClaimEvent, ClaimFact, ClaimState
from fleet.core.messages import ClaimAnswer, DeviceResult, Published
from fleet.core.model import NO_TOKEN, Source, State, Unit, Uuid
from fleet.core.unit_states import Change, Event, Fact
from fleet.devices.health import reasons
from fleet.node import outcomes
from fleet.node.admission import NOTE, held
from fleet.node.claim_wipe import Cleaner
from fleet.node.flights import Flight
from fleet.node.journal.journal import Commit
from fleet.node.loss_records import TEARDOWN_AT, LossRecorder
from fleet.node.outbox import LET_GO, RELEASE
from fleet.node.partitions import Partitions
from fleet.node.ports import Specs, TenantProof
from fleet.node.registry import Registry

HOLDER_DEADLINE_S = 600.0
"""Time, s, a tenant's process may outlive its teardown before the device is quarantined."""
PUBLISHED_WAIT_S = 60.0
"""Time, s, one flight waits for a quarantine to be read back; the next try waits again."""
POLL_S = 0.05
NOT_GONE = "tenant-not-gone"


@dataclass
class Visibility:
    """Which quarantines the scheduler is known to see, as the publisher last read them back."""

    required: bool = False
    """Whether devices are published at all: without a scheduler there is nothing to read back."""
    _seen: Mapping[str, float] = field(default_factory=dict)
    _unlisted_at: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def published(self, published: Published) -> None:
        """Take over what was just read back; what it does not name is not visible."""
        with self._lock:
            self._seen = dict(published.quarantined)
            self._unlisted_at = published.unlisted_at

    def covers(self, device: Uuid, since: float) -> bool:
        """Whether the quarantine of `device` that began at `since` is visible, this very one.

        Never a later one: the clock may have gone back between the two.
        """
        with self._lock:
            return not self.required or self._seen.get(device) == since

    def covers_unlisted(self, since: float) -> bool:
        """Whether a device that no view lists since `since` can be allocated by nobody."""
        with self._lock:
            return not self.required or self._unlisted_at >= since


@dataclass
class Teardown:
    """Tears claims down; one flight at a time per claim is the caller's business."""

    registry: Registry
    cleaner: Cleaner
    specs: Specs
    tenants: TenantProof
    visibility: Visibility
    losses: LossRecorder
    holder_deadline_s: float = HOLDER_DEADLINE_S
    partitions: Partitions | None = None

    def run(self, claim: Claim, flight: Flight) -> ClaimAnswer:
        """All steps. Raises a retryable error where one has to wait; the record stays then.

        Without a driver, or a key to certify with, nothing can be wiped, and the tenant has left
        all the same: its pod is let go, while the record keeps the devices DIRTY, and with them
        hold, lease and finalizer, until the rest can be done (B14, B72).
        """
        self.specs.remove(claim.uid)
        self._end_tenancy(claim)
        if left := self._left(claim):
            return left
        self._write_off_missing(claim)
        try:
            results = self._clean(claim, flight)
        except errors.DeviceBusy:
            if left := self._left(claim):
                return left
            raise
        self._unmake(claim)
        self._take_out_whole(claim)
        out_of_service = self._await_visible(claim, flight)
        self.losses.record(claim, out_of_service)
        self._bury(claim)
        return ClaimAnswer(
            uid=claim.uid,
            state=ClaimState.ABSENT,
            devices=claim.devices,
            certificates=tuple(r.certificate for r in results if r.certificate),
            quarantined=out_of_service,
            note=claim.attributes.get(NOTE, ""),
        )

    def _left(self, claim: Claim) -> ClaimAnswer | None:
        """The answer of a teardown that has ended for the pod, and not for the devices; None: all
        of it can be done."""
        why = self.registry.hindrance
        if why is None:
            return None
        told = f"torn down but for the wipe, which is not possible now: {why.detail}"
        with self.registry.commit() as commit:
            current = commit.claim(claim.uid) or claim
            if current.error != told:
                commit.put_claim(replace(current, error=told))
        return ClaimAnswer(
            uid=claim.uid,
            state=ClaimState.UNPREPARING,
            devices=claim.devices,
            note=claim.attributes.get(NOTE, ""),
        )

    def _end_tenancy(self, claim: Claim) -> None:
        """IN_USE to DIRTY once the tenant is gone; after the deadline to QUARANTINED."""
        held = (State.IN_USE, State.HELD)
        mine = [self.registry.journal.units[unit] for unit in claim.units]
        if claim.units and not any(unit.state in held for unit in mine):
            return
        now = self.registry.clock.now()
        others = self.registry.attached(claim.devices, besides=claim.uid)
        obstacle = "" if others else self.tenants.obstacle(claim)
        if not others and not obstacle:
            facts = frozenset({Fact.TENANT_GONE, Fact.SPEC_GONE})
            self._release(claim, Event.RELEASED, Change(facts, holder=f"claim:{claim.uid}"))
            return
        who = (
            f"claim {', '.join(others)} is attached to a device of claim {claim.uid}"
            if others
            else obstacle
        )
        if not claim.units or not self._late(claim):
            raise errors.DeviceBusy(
                who,
                holder=f"claim:{others[0] if others else claim.uid}",
                remedy="it is not killed for you; the teardown goes on once it is gone",
                told="one of its devices is looked into with adminAccess" if others else "",
            )
        if self.partitions is not None:
            self.partitions.retain(claim)
        reason = reasons.make(NOT_GONE, Source.TEARDOWN, detail=who, since=now)
        change = Change(reasons=frozenset({reason}), holder=f"claim:{claim.uid}")
        self._release(claim, Event.TEARDOWN_FAILED, change)

    def _late(self, claim: Claim) -> bool:
        now = self.registry.clock.now()
        return now - float(claim.attributes.get(TEARDOWN_AT, now)) >= self.holder_deadline_s

    def _clean(self, claim: Claim, flight: Flight) -> list[DeviceResult]:
        """Wipe what is not at rest. What nobody could wipe by the deadline is quarantined instead.

        Raises `DeviceBusy` before that: whoever has the device now is waited for, never killed.
        """
        try:
            return self.cleaner.clean(claim, flight, accept=settled)
        except errors.DeviceBusy as error:
            if flight.cancel.is_set() or not self._late(claim):
                raise
            if not self._give_up(claim, error.detail):
                raise
            return []

    def _unmake(self, claim: Claim) -> None:
        """Remove the instances the claim's containers used, now that they are wiped.

        Raises `BackendFailed` (retryable) while a process uses one, naming it; after the deadline
        the device is quarantined instead, and the node removes the instance once it can. One that
        was only looked into may be in work by now: it goes by itself when nobody needs it. That of
        a tenant who did not leave stays: its number is not given to anybody else.
        """
        if self.partitions is None:
            return
        for uuid in claim.devices:
            try:
                if not self.partitions.outlived(uuid):
                    self.partitions.release(uuid, besides=claim.uid)
            except errors.DeviceLost as error:
                self._condemn(claim, uuid, "device-lost", error.detail)
            except errors.BackendFailed as error:
                if not self._late(claim):
                    raise
                self._condemn(claim, uuid, NOT_GONE, error.detail)

    def _condemn(self, claim: Claim, uuid: Uuid, code: str, why: str) -> None:
        """Quarantine a device whose instance stays."""
        device = self.registry.devices.get(uuid)
        if device is None:
            return
        now = self.registry.clock.now()
        reason = reasons.make(code, Source.TEARDOWN, detail=why, since=now)
        change = Change(reasons=frozenset({reason}), holder=f"claim:{claim.uid}")
        self.registry.move(device, outcomes.fault_event, change)

    def _give_up(self, claim: Claim, why: str) -> bool:
        """Quarantine the units that are dirty and that nobody works on; whether all are at rest."""
        now = self.registry.clock.now()
        reason = reasons.make(NOT_GONE, Source.TEARDOWN, detail=why, since=now)
        change = Change(reasons=frozenset({reason}), holder=f"claim:{claim.uid}")
        with self.registry.commit() as commit:
            for unit_id in claim.units:
                unit = commit.unit(unit_id)
                if unit.state is State.DIRTY and not self.registry.reserved(unit_id):
                    commit.put_unit(
                        unit_states.step(unit, Event.FAULT_SEEN, now=now, change=change)
                    )
            return all(settled(claim, commit.unit(unit_id)) for unit_id in claim.units)

    def _release(self, claim: Claim, event: Event, change: Change) -> None:
        now = self.registry.clock.now()
        with self.registry.commit() as commit:
            for unit_id in claim.units:
                unit = commit.unit(unit_id)
                if unit.state is State.IN_USE:
                    commit.put_unit(unit_states.step(unit, event, now=now, change=change))
                elif unit.state is State.HELD and event is Event.RELEASED:
                    # Held since the journal was lost: its claim is the holder, and it has left.
                    commit.put_unit(
                        unit_states.step(unit, Event.PROVEN_FREE, now=now, change=change)
                    )

    def _write_off_missing(self, claim: Claim) -> None:
        """Units of hardware that is not there any more cannot be wiped: QUARANTINED (A3)."""
        present = {u.id for a in self.registry.accelerators.values() for u in a.units}
        if present.issuperset(claim.units):
            return
        now = self.registry.clock.now()
        reason = reasons.make("device-lost", Source.TEARDOWN, since=now)
        change = Change(reasons=frozenset({reason}))
        with self.registry.commit() as commit:
            for unit_id in claim.units:
                unit = commit.unit(unit_id)
                if unit_id not in present and unit.state is not State.QUARANTINED:
                    commit.put_unit(
                        unit_states.step(unit, Event.FAULT_SEEN, now=now, change=change)
                    )

    def _take_out_whole(self, claim: Claim) -> None:
        """A device with a unit out of service is not wiped: its dirty ones go out with that unit.

        An operator decides about partitions one by one, also of an accelerator that is in use as a
        whole. Their reasons are shared, so that whoever clears the device clears them all.
        """
        parted = {State.QUARANTINED, State.DIRTY}
        for device in (self.registry.devices.get(uuid) for uuid in claim.devices):
            if device is None or not parted.issubset(u.state for u in self.registry.units(device)):
                continue
            out = [u for u in self.registry.units(device) if u.state is State.QUARANTINED]
            self.registry.move(
                device,
                lambda unit: Event.FAULT_SEEN if self._is_left(unit) else None,
                Change(reasons=frozenset(reason for unit in out for reason in unit.reasons)),
            )

    def _is_left(self, unit: Unit) -> bool:
        return unit.state is State.DIRTY and not self.registry.reserved(unit.id)

    def _quarantined(self, claim: Claim) -> tuple[Uuid, ...]:
        units, devices = self.registry.journal.units, self.registry.devices
        return tuple(
            uuid
            for uuid in claim.devices
            if uuid not in devices
            or any(units[unit].state is State.QUARANTINED for unit in devices[uuid].units)
        )

    def _await_visible(self, claim: Claim, flight: Flight) -> tuple[Uuid, ...]:
        """Nothing of the claim is let go before its quarantine is read back (promise 6).

        Returns the devices out of service.
        """
        clock = self.registry.clock
        until = clock.monotonic() + PUBLISHED_WAIT_S
        while True:
            devices = self._quarantined(claim)
            hidden = self._hidden(claim)
            if not all(settled(claim, self.registry.journal.units[u]) for u in claim.units):
                raise errors.DeviceBusy(
                    f"a device of claim {claim.uid} was cleared meanwhile: it is wiped first"
                )
            if not hidden:
                return devices
            if flight.cancel.wait(POLL_S) or clock.monotonic() >= until:
                raise _unseen(hidden)

    def _hidden(self, claim: Claim) -> list[Uuid]:
        """Devices out of service whose quarantine was not read back."""
        return [uuid for uuid in self._quarantined(claim) if not self._visible(claim, uuid)]

    def _visible(self, claim: Claim, uuid: Uuid) -> bool:
        device = self.registry.devices.get(uuid)
        if device is not None:
            since = max(unit.since for unit in self.registry.units(device))
            return self.visibility.covers(uuid, since)
        return self.visibility.covers_unlisted(float(claim.attributes.get(TEARDOWN_AT, 0.0)))

    def _bury(self, claim: Claim) -> None:
        """Record to tombstone, units free, release of the lease queued: one commit.

        Raises `IllegalTransition` while a unit is neither CLEAN nor out of service, `DeviceBusy`
        when a quarantine was cleared and made again after the look at what is visible.
        """
        now = self.registry.clock.now()
        with self.registry.commit() as commit:
            if hidden := self._hidden(claim):
                raise _unseen(hidden)
            at_rest = all(settled(claim, commit.unit(unit)) for unit in claim.units)
            facts = frozenset({ClaimFact.UNITS_RELEASED}) if at_rest else frozenset()
            claim_states.step(claim.state, ClaimEvent.UNPREPARED, facts)
            commit.bury_claim(claim.uid, claim.token, now)
            for unit_id in claim.units:
                closed = unit_states.close_floor(commit.unit(unit_id), claim.token)
                commit.put_unit(replace(closed, claim=None))
            self._remember_lingering(commit, claim)
            if claim.units:
                token = str(claim.token) if claim.token != NO_TOKEN else ""
                commit.enqueue(RELEASE, {"holder": f"claim:{claim.uid}", "token": token}, now)
            if held(claim):
                commit.enqueue(LET_GO, _marked(claim), now)

    def _remember_lingering(self, commit: Commit, claim: Claim) -> None:
        """A tenant that did not leave outlives its record: nothing of it is wiped or tested under
        it, whoever lifts the quarantine, until its pods are gone or the node has booted.
        """
        for unit_id in claim.units:
            if any(reason.code == NOT_GONE for reason in commit.unit(unit_id).reasons):
                self.registry.remember_lingering(commit, unit_id, claim.consumers)


def _marked(claim: Claim) -> Mapping[str, object]:
    """What is needed to take our marks off the claim at the API."""
    named = {"uid": claim.uid, "namespace": claim.namespace, "name": claim.name}
    return {**named, "devices": list(claim.devices)}


def _unseen(hidden: Sequence[Uuid]) -> errors.DeviceBusy:
    return errors.DeviceBusy(
        f"the quarantine of {', '.join(hidden)} is not visible to the scheduler yet",
        remedy="the claim is let go once it was read back from the ResourceSlice",
    )


def settled(claim: Claim, unit: Unit) -> bool:  # noqa: ARG001 - shape of `accept`
    """Whether a unit is at rest after a teardown."""
    return unit.state in (State.CLEAN, State.QUARANTINED)
