"""A claim's prepare and unprepare on this node (DESIGN 5), one operation at a time per claim.

A call waits for its work up to a budget; longer work goes on and the repeated call joins it.
Whoever starts a teardown has cancelled and joined a running prepare first: a prepare that outlives
its unprepare is the easiest way to hand out a wiped device twice. Specs are written and removed
only inside these flights.

The commit that buries a record follows the one that made its units CLEAN, instead of being the
same: between the two the units still carry the claim, so nobody else can get them, and a restart
finishes the burial without a second wipe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from fleet import claims, errors, leases, lifecycle, profiles
from fleet.claims import Claim, ClaimEvent, ClaimFact, ClaimState
from fleet.leases import ClosedBy, Closure
from fleet.lifecycle import Change, Event, Fact
from fleet.messages import ClaimAnswer, ClaimOrder, DeviceResult, Outcome
from fleet.model import (
    ClaimUid,
    Device,
    Holder,
    HolderKind,
    OperationId,
    ProcessKind,
    State,
    Token,
    Unit,
    Uuid,
)
from fleet.node.flights import Flight, Flights
from fleet.node.ports import Specs, TenantProof
from fleet.node.recovery import attributes
from fleet.node.registry import Registry, Work
from fleet.node.validating import Validator
from fleet.node.wiping import Wiper, WipeTask
from fleet.profiles import Profile
from fleet.settings import WipePolicy


@dataclass
class Holding:
    """Claims of one node."""

    registry: Registry
    wiper: Wiper
    validator: Validator
    specs: Specs
    tenants: TenantProof
    policy: WipePolicy
    profile: Profile
    flights: Flights = field(default_factory=Flights)

    # --- calls ---

    def prepare(self, order: ClaimOrder, *, budget_s: float) -> ClaimAnswer:
        """Expose devices to a claim, wiped as the profile asks. Idempotent by uid."""
        if order.node != self.registry.place.node:
            raise errors.WrongNode(f"claim {order.uid} is for node {order.node}")
        uid = ClaimUid(order.uid)
        with self.flights.lock:
            flight = self.flights.get(uid)
            if flight is not None and flight.kind is not ClaimEvent.PREPARE:
                raise errors.DeviceBusy(f"claim {uid} is being torn down", holder=f"claim:{uid}")
            if flight is None:
                self._admit(order)
                flight = self._launch(uid, ClaimEvent.PREPARE, self._prepare)
        return flight.wait(uid, budget_s)

    def unprepare(self, uid: ClaimUid, *, budget_s: float) -> ClaimAnswer:
        """Tear a claim down. Idempotent: an unknown claim is success."""
        with self.flights.lock:
            flight = self.flights.get(uid)
        if flight is not None and flight.kind is ClaimEvent.PREPARE:
            flight.stop()
            if not flight.done.wait(budget_s):
                raise errors.DeviceBusy(f"the prepare of {uid} has not ended yet")
        with self.flights.lock:
            flight = self.flights.get(uid)
            if flight is None:
                claim = self.registry.journal.claims.get(uid)
                if claim is None:
                    return ClaimAnswer(uid=uid, state=ClaimState.ABSENT)
                self._step(claim, ClaimEvent.UNPREPARE, ClaimFact.PREPARE_JOINED)
                flight = self._launch(uid, ClaimEvent.UNPREPARE, self._unprepare)
        return flight.wait(uid, budget_s)

    def abandon(self, uid: ClaimUid, token: Token, units: Iterable[Unit]) -> Closure:
        """Close `token` for a claim this node has no record of: the first step of a release."""
        with self.flights.lock:
            claim = self.registry.journal.claims.get(uid)
            state = claim.state if claim else ClaimState.ABSENT
            idle = frozenset({ClaimFact.IDLE}) if self.flights.get(uid) is None else frozenset()
            claims.step(state, ClaimEvent.ABANDON, idle)
            with self.registry.commit() as commit:
                for unit in units:
                    commit.put_unit(lifecycle.close_floor(commit.unit(unit.id), token))
        return self._closure(uid, token, ClosedBy.ABANDON)

    def resume(self) -> None:
        """Go on with teardowns no flight is in work for (after a restart)."""
        with self.flights.lock:
            for uid, claim in list(self.registry.journal.claims.items()):
                if claim.state is ClaimState.UNPREPARING and self.flights.get(uid) is None:
                    self._launch(uid, ClaimEvent.UNPREPARE, self._unprepare)

    def _launch(
        self, uid: ClaimUid, kind: ClaimEvent, body: Callable[[Claim, Flight], ClaimAnswer]
    ) -> Flight:
        claim = self.registry.journal.claims[uid]
        return self.flights.launch(uid, kind, lambda flight: body(claim, flight))

    # --- prepare ---

    def _admit(self, order: ClaimOrder) -> None:
        """Decide and commit PREPARING for all devices, or refuse and change nothing."""
        uid, token = ClaimUid(order.uid), Token.parse(order.token)
        known = self.registry.journal.claims.get(uid)
        if known is not None:
            state = claims.step(known.state, ClaimEvent.PREPARE)
            self._put(replace(known, state=state))
            return
        devices = [self.registry.device(name) for name in order.devices]
        records = [unit for device in devices for unit in self.registry.units(device)]
        for device in devices:
            self._refuse(device, uid)
        leases.check_token(records, token, self.registry.journal.epoch)
        buried = self.registry.journal.tombstone(uid) is not None
        live = not buried or bool(order.consumers)
        state = claims.step(
            ClaimState.ABSENT,
            ClaimEvent.PREPARE,
            frozenset({ClaimFact.LIVE_CONSUMER}) if live else frozenset(),
        )
        claim = Claim(
            uid=uid,
            state=state,
            devices=tuple(device.uuid for device in devices),
            units=tuple(unit.id for unit in records),
            token=token,
            boot_id=self.registry.boot_id,
            namespace=order.namespace,
            name=order.name,
            consumers=order.consumers,
            spec=self.specs.name(uid),
            created_at=self.registry.clock.now(),
        )
        with self.registry.commit() as commit:
            commit.put_claim(claim)
            for unit in records:
                raised = lifecycle.raise_floor(commit.unit(unit.id), token)
                commit.put_unit(replace(raised, claim=uid))

    def _refuse(self, device: Device, uid: ClaimUid) -> None:
        for unit in self.registry.units(device):
            if unit.claim not in (None, uid):
                raise errors.DeviceBusy(
                    f"{device.name} is held by claim {unit.claim}", holder=f"claim:{unit.claim}"
                )
            if unit.state in (State.QUARANTINED, State.RETESTING, State.HELD):
                raise errors.DeviceUnfit(f"{device.name} is {unit.state}")

    def _prepare(self, claim: Claim, flight: Flight) -> ClaimAnswer:
        try:
            if claim.state is ClaimState.PREPARED:
                self._write_spec(claim)
                return self._answer(claim)
            self._make_clean(claim, flight, accept=self._accepted)
            if flight.cancel.is_set():
                raise errors.DeviceBusy(f"the prepare of {claim.uid} was cancelled")
            self._expose(claim)
            self._write_spec(claim)
            facts = (ClaimFact.UNITS_IN_USE, ClaimFact.SPEC_WRITTEN)
            return self._answer(self._step(claim, ClaimEvent.PREPARED, *facts))
        except errors.FleetError as error:
            current = self.registry.journal.claims[claim.uid]
            if current.state is ClaimState.PREPARING:
                self._put(replace(current, error=error.detail))
            raise

    def _accepted(self, claim: Claim, unit: Unit) -> bool:
        """Whether the unit may be exposed as it is, without another wipe (promise 1)."""
        if unit.state is State.IN_USE:
            return unit.claim == claim.uid
        return unit.state is State.CLEAN and profiles.accepts_certificate(
            self.profile,
            certificate_token=unit.token,
            exposure_token=claim.token,
            exposures_since=0,
            foreign_holder_since=False,
            same_boot=unit.boot_id == self.registry.boot_id,
            same_driver=True,
            multi_tenant=self.profile is Profile.STRICT,
        )

    def _make_clean(
        self, claim: Claim, flight: Flight, *, accept: Callable[[Claim, Unit], bool]
    ) -> list[DeviceResult]:
        """Wipe the devices that are not acceptable, in parallel. Raises for the first bad."""
        todo = [
            self.registry.devices[uuid]
            for uuid in claim.devices
            if not all(accept(claim, u) for u in self.registry.units(self.registry.devices[uuid]))
        ]
        results: dict[Uuid, DeviceResult | errors.FleetError] = {}
        threads = [
            threading.Thread(
                target=self._wipe_one, args=(claim, flight, device, results), daemon=True
            )
            for device in todo
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results.values():
            if isinstance(result, errors.FleetError):
                raise result
        done = [result for result in results.values() if isinstance(result, DeviceResult)]
        for result in done:
            if result.outcome not in (Outcome.CERTIFIED, Outcome.QUARANTINED):
                raise errors.DeviceBusy(f"{result.device} is {result.outcome}: {_said(result)}")
            if result.outcome is Outcome.QUARANTINED and flight.kind is ClaimEvent.PREPARE:
                raise errors.DeviceUnfit(f"{result.device} is quarantined: {_said(result)}")
        return done

    def _wipe_one(
        self,
        claim: Claim,
        flight: Flight,
        device: Device,
        results: dict[Uuid, DeviceResult | errors.FleetError],
    ) -> None:
        operation = OperationId(f"{flight.kind}/{claim.uid}/{device.uuid}")
        work = Work(operation, device, idle=False)
        other = self.registry.reserve(work)
        while other is not None and other.idle:
            other.cancel.set()
            other.done.wait(self.policy.kill_wait_s * 2)
            other = self.registry.reserve(work)
        if other is not None:
            results[device.uuid] = errors.DeviceBusy(
                f"{device.name} is worked on by {other.operation}", holder=other.operation
            )
            return
        flight.works.append(work)
        try:
            task = WipeTask(work, self.policy, token=claim.token, claim=claim.uid)
            results[device.uuid] = self.wiper.perform(task)
        except errors.FleetError as error:
            results[device.uuid] = error
        finally:
            self.registry.unreserve(work)

    def _expose(self, claim: Claim) -> None:
        """CLEAN to IN_USE for all units in one commit, holders re-read just before."""
        for uuid in claim.devices:
            device = self.registry.devices[uuid]
            for process in self.validator.processes(device.accelerator):
                if process.kind is ProcessKind.FOREIGN and device.whole:
                    raise errors.DeviceBusy(
                        f"{device.name} is in use by {process.name} (pid {process.pid})"
                    )
        workers = {u for row in self.registry.journal.workers() for u in row.units}
        now = self.registry.clock.now()
        with self.registry.commit() as commit:
            for unit_id in claim.units:
                unit = commit.unit(unit_id)
                if unit.state is State.IN_USE and unit.claim == claim.uid:
                    continue
                facts = {Fact.LEASE_OF_CLAIM, Fact.HOLDERS_REREAD}
                if unit_id not in workers:
                    facts.add(Fact.NO_SURVIVOR)
                if unit.boot_id == self.registry.boot_id:
                    facts.add(Fact.SAME_BOOT)
                if self._accepted(claim, unit):
                    facts.add(Fact.CERTIFICATE_ACCEPTED)
                change = Change(frozenset(facts), claim=claim.uid, token=claim.token)
                commit.put_unit(lifecycle.step(unit, Event.EXPOSED, now=now, change=change))

    def _write_spec(self, claim: Claim) -> None:
        if claim.uid not in self.specs.listed():
            self.specs.write(claim, attributes(self.registry, claim.devices))

    # --- unprepare ---

    def _unprepare(self, claim: Claim, flight: Flight) -> ClaimAnswer:
        self.specs.remove(claim.uid)
        exposed = [u for u in claim.units if self.registry.journal.units[u].state is State.IN_USE]
        if exposed:
            if not self.tenants.gone(claim):
                raise errors.DeviceBusy(
                    f"a process of claim {claim.uid} is still there",
                    remedy="it is not killed for you; the teardown goes on once it is gone",
                )
            self._release(claim)
        results = self._make_clean(claim, flight, accept=_settled)
        self._bury(claim)
        bad = tuple(r.uuid for r in results if r.outcome is Outcome.QUARANTINED)
        digests = tuple(r.certificate for r in results if r.certificate)
        return ClaimAnswer(
            uid=claim.uid,
            state=ClaimState.ABSENT,
            devices=claim.devices,
            certificates=digests,
            quarantined=bad,
        )

    def _release(self, claim: Claim) -> None:
        facts = frozenset({Fact.TENANT_GONE, Fact.SPEC_GONE})
        now = self.registry.clock.now()
        with self.registry.commit() as commit:
            for unit_id in claim.units:
                unit = commit.unit(unit_id)
                if unit.state is State.IN_USE:
                    change = Change(facts, holder=f"claim:{claim.uid}")
                    commit.put_unit(lifecycle.step(unit, Event.RELEASED, now=now, change=change))

    def _bury(self, claim: Claim) -> None:
        """Record to tombstone, units free, release of the lease queued: one commit."""
        claims.step(
            ClaimState.UNPREPARING,
            ClaimEvent.UNPREPARED,
            frozenset({ClaimFact.UNITS_RELEASED}),
        )
        now = self.registry.clock.now()
        with self.registry.commit() as commit:
            commit.bury_claim(claim.uid, claim.token, now)
            for unit_id in claim.units:
                closed = lifecycle.close_floor(commit.unit(unit_id), claim.token)
                commit.put_unit(replace(closed, claim=None))
            body = {"holder": f"claim:{claim.uid}", "token": str(claim.token)}
            commit.enqueue("release", body, now)

    # --- shared ---

    def _step(self, claim: Claim, event: ClaimEvent, *facts: ClaimFact) -> Claim:
        moved = replace(claim, state=claims.step(claim.state, event, frozenset(facts)))
        self._put(moved)
        return moved

    def _put(self, claim: Claim) -> None:
        with self.registry.commit() as commit:
            commit.put_claim(claim)

    def _answer(self, claim: Claim) -> ClaimAnswer:
        units = [self.registry.journal.units[unit] for unit in claim.units]
        return ClaimAnswer(
            uid=claim.uid,
            state=claim.state,
            devices=claim.devices,
            spec=claim.spec,
            certificates=tuple(sorted({u.certificate for u in units if u.certificate})),
        )

    def _closure(self, uid: ClaimUid, token: Token, by: ClosedBy) -> Closure:
        holder = Holder(HolderKind.CLAIM, uid)
        return Closure(holder, token, self.registry.place.node, by)


def _settled(claim: Claim, unit: Unit) -> bool:  # noqa: ARG001 - shape of `accept`
    return unit.state in (State.CLEAN, State.QUARANTINED)


def _said(result: DeviceResult) -> str:
    return "; ".join(f"{f.check}: {f.detail}" for f in result.findings) or "no reason given"
