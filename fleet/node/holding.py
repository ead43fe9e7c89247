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

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from fleet import claims, errors, leases, lifecycle
from fleet.claims import Claim, ClaimEvent, ClaimFact, ClaimState
from fleet.health import reasons
from fleet.journal.journal import Commit
from fleet.leases import ClosedBy, Closure
from fleet.lifecycle import Change, Event, Fact
from fleet.messages import ClaimAnswer, ClaimOrder
from fleet.model import (
    OUT_OF_SERVICE,
    ClaimUid,
    Device,
    Holder,
    HolderKind,
    Source,
    State,
    Token,
    Unit,
    UnitId,
    Uuid,
)
from fleet.node import confirming
from fleet.node.cleaning import Cleaner
from fleet.node.exposing import Exposer
from fleet.node.flights import Flight, Flights
from fleet.node.ports import Leases, Specs, TenantProof
from fleet.node.recovery import attributes
from fleet.node.registry import Registry
from fleet.settings import WipePolicy

HOLDER_DEADLINE_S = 600.0
"""Time, s, a tenant's process may outlive its teardown before the device is quarantined."""
RETRY_S = 0.5
RETRY_MAX_S = 30.0
"""Shortest and longest pause, s, between two tries of a teardown nobody calls for."""
TEARDOWN_AT = "teardown_at"
"""Attribute of a claim record: when its teardown began, seconds since the epoch."""


@dataclass
class Holding:
    """Claims of one node."""

    registry: Registry
    cleaner: Cleaner
    exposer: Exposer
    specs: Specs
    tenants: TenantProof
    policy: WipePolicy
    store: Leases
    holder_deadline_s: float = HOLDER_DEADLINE_S
    flights: Flights = field(default_factory=Flights)
    _pauses: dict[ClaimUid, tuple[float, float]] = field(default_factory=dict)

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
        clock = self.registry.clock
        deadline = clock.monotonic() + budget_s
        while True:
            with self.flights.lock:
                flight = self.flights.get(uid)
                if flight is None:
                    claim = self.registry.journal.claims.get(uid)
                    if claim is None:
                        return ClaimAnswer(uid=uid, state=ClaimState.ABSENT)
                    flight = self._begin_teardown(claim)
            left_s = max(0.0, deadline - clock.monotonic())
            if flight.kind is ClaimEvent.UNPREPARE:
                return flight.wait(uid, left_s)
            flight.stop()
            if not flight.done.wait(left_s):
                raise errors.DeviceBusy(f"the prepare of {uid} has not ended yet")

    def _begin_teardown(self, claim: Claim) -> Flight:
        begun = {TEARDOWN_AT: repr(self.registry.clock.now()), **claim.attributes}
        self._step(replace(claim, attributes=begun), ClaimEvent.UNPREPARE, ClaimFact.PREPARE_JOINED)
        return self._launch(claim.uid, ClaimEvent.UNPREPARE, self._unprepare)

    def abandon(self, uid: ClaimUid, token: Token, units: Iterable[Unit]) -> Closure:
        """Close `token` for a claim this node has no record of: the first step of a release.

        A wipe in work under that token is cancelled and joined first. Raises `IllegalTransition`
        while the claim has a record or a call in work, `EpochForeign` for a token of another store
        (closing it would refuse every token of ours), `DeviceBusy` when a wipe does not end.
        """
        ours = self.registry.journal.epoch
        if token.epoch != ours:
            raise errors.EpochForeign(
                f"token {token} is of epoch {token.epoch}; this node follows {ours}",
                ours=ours,
                theirs=token.epoch,
            )
        named = [unit.id for unit in units]
        with self.flights.lock:
            claim = self.registry.journal.claims.get(uid)
            state = claim.state if claim else ClaimState.ABSENT
            idle = frozenset({ClaimFact.IDLE}) if self.flights.get(uid) is None else frozenset()
            claims.step(state, ClaimEvent.ABANDON, idle)
            with self.registry.commit() as commit:
                for unit_id in named:
                    commit.put_unit(lifecycle.close_floor(commit.unit(unit_id), token))
        self._stop_wipes(token, frozenset(named))
        return self._closure(uid, token, ClosedBy.ABANDON)

    def _stop_wipes(self, token: Token, units: frozenset[UnitId]) -> None:
        """End what still works under a closed token; nothing can start under it any more."""
        for work in self.registry.works():
            newer = work.token is None or work.token > token
            if newer or not units.intersection(work.device.units):
                continue
            work.cancel.set()
            if not work.done.wait(self.policy.kill_wait_s * 2):
                raise errors.DeviceBusy(
                    f"{work.operation} under {token} has not ended yet", holder=work.operation
                )

    def resume(self, now: float) -> None:
        """Go on with teardowns no flight is in work for: after a restart, or once a tenant left.

        `now` in seconds; a teardown that keeps failing is tried less and less often.
        """
        with self.flights.lock:
            open_claims = dict(self.registry.journal.claims)
            for uid in self._pauses.keys() - open_claims.keys():
                del self._pauses[uid]
            for uid, claim in open_claims.items():
                if claim.state is ClaimState.UNPREPARING and self.flights.get(uid) is None:
                    self._retry(uid, now)

    def _retry(self, uid: ClaimUid, now: float) -> None:
        at, pause_s = self._pauses.get(uid, (float("-inf"), RETRY_S))
        if 0 <= now - at < pause_s:
            return
        self._pauses[uid] = (now, min(pause_s * 2, RETRY_MAX_S) if uid in self._pauses else RETRY_S)
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
        devices = {d.uuid: d for d in map(self.registry.device, order.devices)}
        known = self.registry.journal.claims.get(uid)
        if known is not None:
            self._admit_again(known, frozenset(devices), token)
            return
        records = [unit for device in devices.values() for unit in self.registry.units(device)]
        if len({unit.id for unit in records}) != len(records):
            raise errors.InputInvalid(
                f"claim {uid} names devices that overlap: {', '.join(sorted(order.devices))}",
                remedy="a claim gets an accelerator or partitions of it, not both",
            )
        for device in devices.values():
            self._refuse(device, uid)
        leases.check_token(records, token, self.registry.journal.epoch)
        spec = self.specs.name(uid)
        confirming.leased(self.store, uid, token, [unit.id for unit in records])
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
            devices=tuple(devices),
            units=tuple(unit.id for unit in records),
            token=token,
            boot_id=self.registry.boot_id,
            namespace=order.namespace,
            name=order.name,
            consumers=order.consumers,
            spec=spec,
            created_at=self.registry.clock.now(),
        )
        with self.registry.commit() as commit:
            for device in devices.values():
                self._refuse(device, uid)
            commit.put_claim(claim)
            self._take(commit, claim)

    def _admit_again(self, known: Claim, devices: frozenset[Uuid], token: Token) -> None:
        """A repeated prepare: the record stands as it is, under the newest token of its lease."""
        uid = known.uid
        if known.state is ClaimState.UNPREPARING:
            raise errors.DeviceBusy(f"claim {uid} is being torn down", holder=f"claim:{uid}")
        if devices != frozenset(known.devices):
            raise errors.DeviceBusy(
                f"claim {uid} still holds {', '.join(known.devices)} of an earlier allocation",
                holder=f"claim:{uid}",
                remedy="it is torn down first; then the devices asked for are prepared",
            )
        claims.step(known.state, ClaimEvent.PREPARE)
        units = [self.registry.journal.units[unit] for unit in known.units]
        exposed = any(unit.state is State.IN_USE for unit in units)
        if known.state is ClaimState.PREPARED or exposed or token == known.token:
            return
        leases.check_token(units, token, self.registry.journal.epoch)
        confirming.leased(self.store, uid, token, known.units)
        claim = replace(known, token=token)
        with self.registry.commit() as commit:
            commit.put_claim(claim)
            self._take(commit, claim)

    def _take(self, commit: Commit, claim: Claim) -> None:
        for unit_id in claim.units:
            raised = lifecycle.raise_floor(commit.unit(unit_id), claim.token)
            commit.put_unit(replace(raised, claim=claim.uid))

    def _refuse(self, device: Device, uid: ClaimUid) -> None:
        for unit in self.registry.units(device):
            if unit.claim not in (None, uid):
                raise errors.DeviceBusy(
                    f"{device.name} is held by claim {unit.claim}", holder=f"claim:{unit.claim}"
                )
            if unit.state in OUT_OF_SERVICE:
                raise errors.DeviceUnfit(f"{device.name} is {unit.state}")

    def _prepare(self, claim: Claim, flight: Flight) -> ClaimAnswer:
        try:
            if claim.state is not ClaimState.PREPARED:
                self.cleaner.clean(claim, flight, accept=self.exposer.accepted)
                if flight.cancel.is_set():
                    raise errors.DeviceBusy(f"the prepare of {claim.uid} was cancelled")
                claim = self.exposer.expose(claim)
            self._write_spec(claim)
            facts = (ClaimFact.UNITS_IN_USE, ClaimFact.SPEC_WRITTEN)
            if claim.state is not ClaimState.PREPARED:
                claim = self._step(claim, ClaimEvent.PREPARED, *facts)
            return self._answer(claim)
        except errors.FleetError as error:
            current = self.registry.journal.claims[claim.uid]
            if current.state is ClaimState.PREPARING and current.error != error.detail:
                self._put(replace(current, error=error.detail))
            raise

    def _write_spec(self, claim: Claim) -> None:
        self.specs.write(claim, attributes(self.registry, claim.devices))

    # --- unprepare ---

    def _unprepare(self, claim: Claim, flight: Flight) -> ClaimAnswer:
        self.specs.remove(claim.uid)
        held = (State.IN_USE, State.HELD)
        if any(self.registry.journal.units[unit].state in held for unit in claim.units):
            self._end_tenancy(claim)
        self._write_off_missing(claim)
        results = self.cleaner.clean(claim, flight, accept=_settled)
        self._bury(claim)
        digests = tuple(r.certificate for r in results if r.certificate)
        return ClaimAnswer(
            uid=claim.uid,
            state=ClaimState.ABSENT,
            devices=claim.devices,
            certificates=digests,
            quarantined=self._quarantined(claim),
        )

    def _end_tenancy(self, claim: Claim) -> None:
        """IN_USE to DIRTY once the tenant is gone; after the deadline to QUARANTINED."""
        now = self.registry.clock.now()
        if self.tenants.gone(claim):
            facts = frozenset({Fact.TENANT_GONE, Fact.SPEC_GONE})
            self._release(claim, Event.RELEASED, Change(facts, holder=f"claim:{claim.uid}"))
            return
        if now - float(claim.attributes.get(TEARDOWN_AT, now)) < self.holder_deadline_s:
            raise errors.DeviceBusy(
                f"a process of claim {claim.uid} is still there",
                remedy="it is not killed for you; the teardown goes on once it is gone",
            )
        detail = f"a process of claim {claim.uid} outlived its teardown"
        reason = reasons.make("tenant-not-gone", Source.TEARDOWN, detail=detail, since=now)
        change = Change(reasons=frozenset({reason}), holder=f"claim:{claim.uid}")
        self._release(claim, Event.TEARDOWN_FAILED, change)

    def _release(self, claim: Claim, event: Event, change: Change) -> None:
        now = self.registry.clock.now()
        with self.registry.commit() as commit:
            for unit_id in claim.units:
                unit = commit.unit(unit_id)
                if unit.state is State.IN_USE:
                    commit.put_unit(lifecycle.step(unit, event, now=now, change=change))
                elif unit.state is State.HELD and event is Event.RELEASED:
                    # Held since the journal was lost: its claim is the holder, and it has left.
                    commit.put_unit(lifecycle.step(unit, Event.PROVEN_FREE, now=now, change=change))

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
                    commit.put_unit(lifecycle.step(unit, Event.FAULT_SEEN, now=now, change=change))

    def _quarantined(self, claim: Claim) -> tuple[Uuid, ...]:
        units, devices = self.registry.journal.units, self.registry.devices
        return tuple(
            uuid
            for uuid in claim.devices
            if uuid not in devices
            or any(units[unit].state is State.QUARANTINED for unit in devices[uuid].units)
        )

    def _bury(self, claim: Claim) -> None:
        """Record to tombstone, units free, release of the lease queued: one commit.

        Raises `IllegalTransition` while a unit is neither CLEAN nor out of service.
        """
        now = self.registry.clock.now()
        with self.registry.commit() as commit:
            at_rest = all(_settled(claim, commit.unit(unit)) for unit in claim.units)
            facts = frozenset({ClaimFact.UNITS_RELEASED}) if at_rest else frozenset()
            claims.step(claim.state, ClaimEvent.UNPREPARED, facts)
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
