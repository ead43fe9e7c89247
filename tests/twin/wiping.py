"""Wipes of one node of the twin: by the unit table, over virtual time, ending as fate has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fleet import errors, leases, lifecycle
from fleet.health import reasons
from fleet.lifecycle import START_GUARD, Change, Event, Fact
from fleet.messages import DeviceResult, Finding, Outcome
from fleet.model import NO_TOKEN, WORKING, Device, Reason, Source, State, Unit, UnitId, Uuid
from tests.twin.clock import Timeline
from tests.twin.journal import Fate, Fates, Hardware, Journal, Word, Work

DEADLINE_S = 60.0
CHECK_S = 0.2
CLEANEST_LAST = (
    State.QUARANTINED,
    State.RETESTING,
    State.HELD,
    State.IN_USE,
    State.DIRTY,
    State.WIPING,
    State.CHECKING,
    State.CLEAN,
)
GONE = frozenset({Fact.WORKER_GONE})


@dataclass
class Wiping:
    """Performs wipes; knows what is in work."""

    timeline: Timeline
    journal: Journal
    hardware: Hardware
    fates: Fates
    changed: Callable[[], None]
    works: dict[UnitId, Work] = field(default_factory=dict)
    checked_at: dict[Uuid, float] = field(default_factory=dict)

    def units(self, device: Device) -> list[Unit]:
        """Records of a device."""
        return [self.journal.units[unit] for unit in device.units]

    def state(self, device: Device) -> State:
        """The least clean state among its units."""
        states = {unit.state for unit in self.units(device)}
        return next(state for state in CLEANEST_LAST if state in states)

    def move(
        self,
        device: Device,
        event: Event | Callable[[Unit], Event | None],
        change: Change | None = None,
    ) -> None:
        """One event for all units of a device, or none of them."""
        now = self.timeline.now()
        moved = {}
        for unit in self.units(device):
            chosen = event(unit) if callable(event) else event
            if chosen is not None:
                moved[unit.id] = lifecycle.step(unit, chosen, now=now, change=change)
        self.journal.units |= moved
        self.changed()

    def attached(self, device: Device) -> tuple[str, ...]:
        """Claims that look into a device."""
        return tuple(c.uid for c in self.journal.claims.values() if device.uuid in c.attached)

    def work_on(self, device: Device) -> Work | None:
        """The work that has a unit of the device."""
        return next((self.works[unit] for unit in device.units if unit in self.works), None)

    def begin(self, work: Work) -> None:
        """Start, or end at once with why not; the node's own idle cleaning gives way."""
        other = self.work_on(work.device)
        if other is not None and other.idle and not work.idle:
            self.cancel(other)
            other = None
        if other is not None:
            self._end(work, Outcome.BUSY, f"worked on by {other.operation}", kept=False)
            return
        refused = self._refused(work)
        if refused is not None:
            self._end(work, *refused, kept=False)
            return
        self._start(work)

    def cancel(self, work: Work) -> None:
        """Stop the worker; what it did is dirty. Where it has ended, its check is waited for."""
        if work.timer is not None:
            work.timer.cancel()
        if self.state(work.device) is State.CHECKING:
            self._checked(work)
            return
        self._finish(work, Event.CANCELLED, Change(facts=GONE))
        self._end(work, Outcome.INTERRUPTED, "cancelled")

    def _refused(self, work: Work) -> tuple[Outcome, str] | None:
        units = self.units(work.device)
        if any(unit.state is State.HELD for unit in units):
            return Outcome.HELD, "held by somebody unknown"
        if any(u.state is State.IN_USE or (u.claim and u.claim != work.claim) for u in units):
            return Outcome.IN_USE, "in use"
        out = [unit for unit in units if unit.state is State.QUARANTINED]
        if any(unit.claim or any(not r.liftable for r in unit.reasons) for unit in out):
            return Outcome.QUARANTINED, "out of service"
        if work.token is not None and work.claim is None:
            try:
                leases.check_token(units, work.token, work.token.epoch)
            except errors.TokenStale as error:
                return Outcome.REFUSED, error.detail
        who = (*self.hardware.tenants(work.device), *self.attached(work.device))
        if who:
            self.move(
                work.device,
                lambda unit: Event.TRUST_LOST if unit.state is State.CLEAN else None,
                Change(facts=GONE),
            )
            return Outcome.BUSY, f"in use by {who[0]}"
        return None

    def _start(self, work: Work) -> None:
        facts = START_GUARD
        if not any(unit.claim for unit in self.units(work.device)):
            facts |= {Fact.NO_CLAIM_RECORD}
        if work.token is not None:
            for unit in self.units(work.device):
                self.journal.units[unit.id] = lifecycle.raise_floor(unit, work.token)
        self.move(
            work.device,
            lambda unit: (
                Event.RETEST_STARTED if unit.state is State.QUARANTINED else Event.WIPE_STARTED
            ),
            Change(facts=facts, token=work.token),
        )
        for unit_id in work.device.units:
            self.works[unit_id] = work
        self.hardware.write(work.device, Word("wiping", work.token or NO_TOKEN))
        work.fate = self.fates(self.hardware.node, work.device.name)
        wait_s = DEADLINE_S if work.fate.code == "hang" else work.fate.seconds
        work.timer = self.timeline.after(wait_s, lambda: self._wiped(work), "wiped")
        self.changed()

    def _wiped(self, work: Work) -> None:
        code = work.fate.code
        if code == "hang":
            self._fail(work, Event.TIMED_OUT, self._reason("timed-out", Source.WIPE))
        elif code == "interrupted":
            third = self._reason("interrupted", Source.WORKER)
            few = all(u.interruptions + 1 < 3 for u in self.units(work.device))
            brought = frozenset() if few else frozenset({third})
            self._finish(work, Event.INTERRUPTED, Change(facts=GONE, reasons=brought))
            self._end(work, Outcome.INTERRUPTED, "its worker died")
        elif code == "memory-mismatch":
            self._fail(work, Event.WIPE_FAILED, self._reason(code, Source.WIPE))
        else:
            self.hardware.write(work.device, Word("zeros", work.token or NO_TOKEN))
            self._finish(work, Event.WIPE_VERIFIED, Change())
            work.timer = self.timeline.after(CHECK_S, lambda: self._checked(work), "checked")

    def _checked(self, work: Work) -> None:
        if work.fate.code:
            self._fail(work, Event.HEALTH_FAILED, self._reason(work.fate.code, Source.HEALTH))
            return
        if any(unit.state not in WORKING for unit in self.units(work.device)):
            self._end(work, Outcome.QUARANTINED, "put out of service meanwhile")
            return
        digest = self.hardware.certify(work.device, work.token or NO_TOKEN)
        self.checked_at[work.device.uuid] = self.timeline.now()
        self.move(
            work.device,
            lambda unit: (
                Event.RETEST_PASSED if unit.state is State.RETESTING else Event.HEALTH_PASSED
            ),
            Change(facts=frozenset({Fact.CERTIFICATE_DURABLE}), certificate=digest),
        )
        clean = self.state(work.device) is State.CLEAN
        self._end(work, Outcome.CERTIFIED if clean else Outcome.QUARANTINED, certificate=digest)

    def _fail(self, work: Work, event: Event, reason: Reason) -> None:
        self._finish(work, event, Change(facts=GONE, reasons=frozenset({reason})))
        self._end(work, Outcome.QUARANTINED, reason.code)

    def _finish(self, work: Work, event: Event, change: Change) -> None:
        """Out of the work; a unit that a decision has quarantined meanwhile only gains."""

        def chosen(unit: Unit) -> Event | None:
            if unit.state is State.RETESTING and event is Event.WIPE_VERIFIED:
                return None
            if unit.state in WORKING:
                return event
            quarantined = unit.state is State.QUARANTINED and change.reasons
            return Event.FAULT_SEEN if quarantined else None

        self.move(work.device, chosen, change)

    def _end(
        self,
        work: Work,
        outcome: Outcome,
        detail: str = "",
        *,
        certificate: str = "",
        kept: bool = True,
    ) -> None:
        if kept:
            for unit_id in work.device.units:
                if self.works.get(unit_id) is work:
                    del self.works[unit_id]
        state = self.state(work.device)
        if outcome is Outcome.INTERRUPTED and state is State.QUARANTINED:
            outcome = Outcome.QUARANTINED
        found = (Finding(check="wipe", verdict="fail", detail=detail),) if detail else ()
        self.changed()
        work.on_end(
            DeviceResult(
                operation=work.operation,
                node=self.hardware.node,
                device=work.device.name,
                uuid=work.device.uuid,
                outcome=outcome,
                state=state,
                certificate=certificate if outcome is Outcome.CERTIFIED else "",
                findings=found,
            )
        )

    def crash(self) -> None:
        """The service is gone, its workers with it: nothing ends any more."""
        for work in self.works.values():
            if work.timer is not None:
                work.timer.cancel()
        self.works.clear()

    def recover(self, *, new_boot: bool) -> None:
        """What a start finds in work nobody works on."""
        for device in self.hardware.devices.values():
            if new_boot:
                self.move(device, Event.NEW_BOOT, Change(boot_id=self.journal.boot_id))
                continue
            third = any(unit.interruptions + 1 >= 3 for unit in self.units(device))
            why = frozenset({self._reason("interrupted", Source.WORKER)} if third else ())
            self.move(
                device,
                lambda unit: Event.INTERRUPTED if unit.state in WORKING else None,
                Change(facts=GONE, reasons=why),
            )

    def fault(self, device: Device, code: str, source: Source = Source.HEALTH) -> None:
        """A fault is seen, whatever the device does; a running wipe is ended."""
        work = self.work_on(device)
        reason = frozenset({self._reason(code, source)})
        self.move(
            device,
            lambda u: (
                Event.FAULT_SEEN if lifecycle.TABLE.accepts(u.state, Event.FAULT_SEEN) else None
            ),
            Change(facts=GONE, reasons=reason),
        )
        if work is not None and work.timer is not None:
            work.timer.cancel()
            self._end(work, Outcome.QUARANTINED, code)

    def _reason(self, code: str, source: Source) -> Reason:
        return reasons.make(code, source, since=self.timeline.now())

    def clear(self, device: Device) -> None:
        """An operator clears all reasons of a device."""
        for unit in self.units(device):
            keys = frozenset((r.code, str(r.source)) for r in unit.reasons)
            if unit.state is State.QUARANTINED:
                moved = lifecycle.step(
                    unit, Event.CLEARED, now=self.timeline.now(), change=Change(cleared=keys)
                )
                self.journal.units[unit.id] = moved
            elif keys and unit.state is State.IN_USE:
                self.journal.units[unit.id] = replace(unit, reasons=frozenset())
        self.changed()


def steady(seconds: float = 1.0) -> Fates:
    """Every wipe passes in the same time."""
    return lambda node, device: Fate(seconds)  # noqa: ARG005 - shape of `Fates`
