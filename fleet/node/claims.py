"""A claim's prepare and unprepare on this node (DESIGN 5), one operation at a time per claim.

A call waits for its work up to a budget; longer work goes on and the repeated call joins it.
Whoever starts a teardown has cancelled and joined a running prepare first: a prepare that outlives
its unprepare is the easiest way to hand out a wiped device twice. Specs are written and removed
only inside these flights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace

from fleet.core import claim_states, errors, leases, unit_states
from fleet.core.claim_states import Claim, ClaimEvent, ClaimFact, ClaimState
from fleet.core.leases import ClosedBy, Closure
from fleet.core.messages import ClaimAnswer, ClaimOrder
from fleet.core.model import ClaimUid, Holder, HolderKind, Token, UnitId
from fleet.devices.base import ShowsOnly
from fleet.node.admission import NOTE, UNHELD, Admission, held
from fleet.node.claim_lease import Securing
from fleet.node.claim_wipe import Cleaner
from fleet.node.container_edits import grants
from fleet.node.exposure import Exposer
from fleet.node.flights import Flight, Flights
from fleet.node.loss_records import TEARDOWN_AT
from fleet.node.registry import Registry
from fleet.node.sweep import DRIVER
from fleet.node.teardown import Teardown

LOG = logging.getLogger(__name__)
ABANDON_WAIT_S = 2.0
"""Longest wait, s, for a wipe that is to stop: who asks has others to see to, and comes again."""
RESTORE_S = 10.0
"""Period, s, in which the specs of prepared claims are looked for."""
RETRY_S = 0.5
RETRY_MAX_S = 30.0
"""Shortest and longest pause, s, between two tries of a teardown nobody calls for."""


@dataclass
class Holding:
    """Claims of one node."""

    registry: Registry
    admission: Admission
    securing: Securing
    cleaner: Cleaner
    exposer: Exposer
    teardown: Teardown
    kill_wait_s: float
    flights: Flights = field(default_factory=Flights)
    unbuilt: set[ClaimUid] = field(default_factory=set)
    """Prepared claims whose spec was not written anew since the start."""
    _pauses: dict[ClaimUid, tuple[float, float]] = field(default_factory=dict)
    _restored_at: float = float("-inf")
    _drivers: dict[str, str] = field(default_factory=dict)
    """Driver of each accelerator as of the last look at the specs."""

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
            if flight is not None:
                self.admission.join(order)
            else:
                self.admission.admit(order)
                flight = self._launch(uid, ClaimEvent.PREPARE, self._prepare)
        return flight.wait(uid, budget_s)

    def unprepare(
        self,
        uid: ClaimUid,
        *,
        budget_s: float,
        consumers: Sequence[str] = (),
        reserved: Sequence[str] = (),
    ) -> ClaimAnswer:
        """Tear a claim down. Idempotent: an unknown claim is success.

        `consumers` are further pods that must be proven gone. Raises `DeviceBusy` and changes
        nothing while a pod of `reserved`, whom the API says the claim is for, runs.
        """
        clock = self.registry.clock
        deadline = clock.monotonic() + budget_s
        while True:
            with self.flights.lock:
                flight = self.flights.get(uid)
                if flight is None:
                    claim = self.registry.journal.claims.get(uid)
                    if claim is None or claim.state is ClaimState.PREPARED:
                        self._refuse_running(uid, reserved)
                    if claim is None:
                        return ClaimAnswer(uid=uid, state=ClaimState.ABSENT)
                    flight = self._begin_teardown(claim, consumers)
            left_s = max(0.0, deadline - clock.monotonic())
            if flight.kind is ClaimEvent.UNPREPARE:
                return flight.wait(uid, left_s)
            flight.stop()
            if not flight.done.wait(left_s):
                raise errors.DeviceBusy(f"the prepare of {uid} has not ended yet")

    def unhold(self, uid: ClaimUid) -> None:
        """The allocation of the claim is gone: its devices are tainted from now on."""
        with self.registry.commit() as commit:
            claim = commit.claim(uid)
            if claim is not None and held(claim):
                told = {**claim.attributes, UNHELD: "true"}
                commit.put_claim(replace(claim, attributes=told))

    def _refuse_running(self, uid: ClaimUid, reserved: Sequence[str]) -> None:
        """Kubelet can ask for a teardown while another pod uses the claim (its known defect).

        Of a claim unknown here too: its record may have gone with the journal, and once told of
        success kubelet would forget whose pod that is.
        """
        running = self.teardown.tenants.running(reserved)
        if running:
            raise errors.DeviceBusy(
                f"claim {uid} is in use by pod {', '.join(running)}",
                holder=f"pod:{running[0]}",
                remedy="nothing was changed; the teardown is due once that pod has ended",
            )

    def _begin_teardown(self, claim: Claim, consumers: Sequence[str]) -> Flight:
        begun = {TEARDOWN_AT: repr(self.registry.clock.now()), **claim.attributes}
        known = (*claim.consumers, *(c for c in consumers if c not in claim.consumers))
        joined = frozenset({ClaimFact.PREPARE_JOINED})
        state = claim_states.step(claim.state, ClaimEvent.UNPREPARE, joined)
        with self.registry.commit() as commit:  # no flight is in work: nobody else changes it
            commit.put_claim(replace(claim, state=state, attributes=begun, consumers=known))
        return self._launch(claim.uid, ClaimEvent.UNPREPARE, self.teardown.run)

    def abandon(self, uid: ClaimUid, token: Token, devices: Sequence[str]) -> Closure:
        """Close `token` for a claim this node has no record of: the first step of a release.

        `devices`: what the token was for, by device or by id of a unit, which the journal knows
        when the device is gone. A wipe in work under that token is cancelled and joined first.
        A token of an epoch put behind by `adopt` is closed already: every act under it is refused.
        Raises `IllegalTransition` while the claim has a record or a call in work, `EpochForeign`
        for a token of a newer store (closing it would refuse every token of ours), `DeviceUnknown`
        where it cannot say what to close, `DeviceBusy` while a wipe has not ended: ask again.
        """
        behind = leases.is_behind(token, self.registry.journal.epoch)
        named = list(dict.fromkeys(unit for name in devices for unit in self._units(name)))
        if not named:
            raise errors.DeviceUnknown(f"token {token} of claim {uid} is for no device")
        with self.flights.lock:
            claim = self.registry.journal.claims.get(uid)
            state = claim.state if claim else ClaimState.ABSENT
            idle = frozenset({ClaimFact.IDLE}) if self.flights.get(uid) is None else frozenset()
            claim_states.step(state, ClaimEvent.ABANDON, idle)
            with self.registry.commit() as commit:
                for unit_id in () if behind else named:
                    commit.put_unit(unit_states.close_floor(commit.unit(unit_id), token))
        self._stop_wipes(token, frozenset(named))
        return self._closure(uid, token, ClosedBy.ABANDON)

    def _units(self, name: str) -> Sequence[UnitId]:
        if UnitId(name) in self.registry.journal.units:
            return (UnitId(name),)
        return self.registry.device(name).units

    def _stop_wipes(self, token: Token, units: frozenset[UnitId]) -> None:
        """End what still works under a closed token; nothing can start under it any more."""
        stopped = [
            work
            for work in self.registry.works()
            if work.token is not None
            and work.token <= token
            and units.intersection(work.device.units)
        ]
        for work in stopped:
            work.cancel.set()
        for work in stopped:
            if not work.done.wait(min(self.kill_wait_s * 2, ABANDON_WAIT_S)):
                raise errors.DeviceBusy(
                    f"{work.operation} under {token} has not ended yet", holder=work.operation
                )

    def hurry(self) -> None:
        """The driver is back: what waited for it goes on with the next step."""
        self._pauses.clear()
        self._restored_at = float("-inf")

    def resume(self, now: float) -> None:
        """Go on with teardowns no flight is in work for: after a restart, or once a tenant left.

        `now` in seconds; a teardown that keeps failing is tried less and less often.
        """
        if not 0 <= now - self._restored_at < RESTORE_S:
            self._restored_at = now
            self.restore()
        with self.flights.lock:
            open_claims = dict(self.registry.journal.claims)
            for uid in self._pauses.keys() - open_claims.keys():
                del self._pauses[uid]
            for uid, claim in open_claims.items():
                if claim.state is ClaimState.UNPREPARING and self.flights.get(uid) is None:
                    self._retry(uid, now)

    def restore(self) -> None:
        """Write the specs of prepared claims again that somebody has removed (invariant 27).

        Kubelet never repairs one: the next restart of a container would fail for ever. So it is
        with one that mounts files which a driver's update has replaced (B79). One whose instance
        somebody else removed is taken away instead.
        """
        if self.registry.absent is not None:
            return  # what a spec is to name only the driver knows
        try:
            there = set(self.teardown.specs.listed())
        except errors.SpecUnavailable:
            return  # looked at again by the next step that is due
        drivers = {k: v for k, v in self.registry.journal.meta.items() if k.startswith(DRIVER)}
        # One that was not known before was only read for the first time.
        updated = any(self._drivers.get(name, now) != now for name, now in drivers.items())
        self._drivers = drivers
        with self.flights.lock:
            unbuilt, self.unbuilt = self.unbuilt, set()
            for uid, claim in self.registry.journal.claims.items():
                if claim.state is not ClaimState.PREPARED or self.flights.get(uid) is not None:
                    continue
                if self.exposer.validator.partitions.lost(claim):
                    self._take_back(uid, there)
                    continue
                gone = self.teardown.specs.dangling(uid) if uid in there else ("the spec",)
                if uid in unbuilt and not gone and not updated:
                    self._launch(uid, ClaimEvent.PREPARE, self._prepare)
                elif gone or updated:
                    why = f"{gone[0]} is gone" if gone else "the driver is another one"
                    LOG.warning("the CDI spec of claim %s is written again: %s", uid, why)
                    self._launch(uid, ClaimEvent.PREPARE, self._prepare)

    def _take_back(self, uid: ClaimUid, there: AbstractSet[ClaimUid]) -> None:
        """No further container is to start with nodes that may reach somebody else's memory."""
        if uid in there:
            LOG.warning("the CDI spec of claim %s is removed: its instance is gone", uid)
            with suppress(errors.SpecUnavailable):  # tried again by the next step that is due
                self.teardown.specs.remove(uid)

    def _retry(self, uid: ClaimUid, now: float) -> None:
        at, pause_s = self._pauses.get(uid, (float("-inf"), RETRY_S))
        if 0 <= now - at < pause_s:
            return
        self._pauses[uid] = (now, min(pause_s * 2, RETRY_MAX_S) if uid in self._pauses else RETRY_S)
        self._launch(uid, ClaimEvent.UNPREPARE, self.teardown.run)

    def _launch(
        self, uid: ClaimUid, kind: ClaimEvent, body: Callable[[Claim, Flight], ClaimAnswer]
    ) -> Flight:
        claim = self.registry.journal.claims[uid]
        return self.flights.launch(uid, kind, lambda flight: body(claim, flight))

    # --- prepare ---

    def _prepare(self, claim: Claim, flight: Flight) -> ClaimAnswer:
        try:
            if claim.state is not ClaimState.PREPARED:
                claim = self.securing.secure(claim)
                self.cleaner.clean(claim, flight, accept=self.exposer.accepted)
                _refuse_cancelled(claim, flight)
                claim = self.exposer.expose(claim)
            given = grants(self.registry, claim, self.exposer.validator.partitions)
            # The driver may have taken long: by now another owner may have torn the claim down.
            _refuse_cancelled(claim, flight)
            if claim.attached:
                shows = isinstance(self.registry.backend, ShowsOnly)
                self.teardown.losses.look(claim, read_only=shows)
            self.teardown.specs.write(claim, given)
            facts = (ClaimFact.UNITS_IN_USE, ClaimFact.SPEC_WRITTEN)
            if claim.state is not ClaimState.PREPARED:
                claim = self._step(claim, ClaimEvent.PREPARED, *facts)
            return self.answer(claim)
        except errors.FleetError as error:
            self._note(claim, error.detail)
            raise

    # --- shared ---

    def _step(self, claim: Claim, event: ClaimEvent, *facts: ClaimFact) -> Claim:
        """Move the record as it is by now: calls that joined have added their pods to it."""
        state = claim_states.step(claim.state, event, frozenset(facts))
        with self.registry.commit() as commit:
            moved = replace(commit.claim(claim.uid) or claim, state=state)
            commit.put_claim(moved)
        return moved

    def _note(self, claim: Claim, trouble: str) -> None:
        known = self.registry.journal.claims[claim.uid]
        if known.state is not ClaimState.PREPARING or known.error == trouble:
            return
        with self.registry.commit() as commit:
            current = commit.claim(claim.uid)
            if current is not None:
                commit.put_claim(replace(current, error=trouble))

    def answer(self, claim: Claim) -> ClaimAnswer:
        """A claim as callers see it."""
        units = [self.registry.journal.units[unit] for unit in claim.units]
        specs = self.teardown.specs
        return ClaimAnswer(
            uid=claim.uid,
            state=claim.state,
            devices=claim.devices,
            spec=claim.spec,
            cdi={uuid: specs.ids(claim, uuid) for uuid in (*claim.devices, *claim.attached)},
            note=claim.attributes.get(NOTE, ""),
            namespace=claim.namespace,
            name=claim.name,
            certificates=tuple(sorted({u.certificate for u in units if u.certificate})),
        )

    def _closure(self, uid: ClaimUid, token: Token, by: ClosedBy) -> Closure:
        holder = Holder(HolderKind.CLAIM, uid)
        return Closure(holder, token, self.registry.place.node, by)


def _refuse_cancelled(claim: Claim, flight: Flight) -> None:
    if flight.cancel.is_set():
        raise errors.DeviceBusy(f"the prepare of {claim.uid} was cancelled")
