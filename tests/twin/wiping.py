"""Wipes of one node of the twin: by the unit table, over virtual time, ending as fate has it.

What the product does in a worker process and a thread happens here in events. A worker dies with
its service, but for a wedged one: that lives on, and writes once more when it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fleet.core import errors, unit_states
from fleet.core.messages import DeviceResult, Finding, Outcome
from fleet.core.model import NO_TOKEN, WORKING, ClaimUid, Device, Reason, Source, State, Unit, Uuid
from fleet.core.unit_states import START_GUARD, Change, Event, Fact
from fleet.devices.health import reasons
from fleet.node import outcomes
from fleet.node.journal.journal import Commit, WorkerRow
from fleet.node.registry import Work
from tests.twin.clock import Action, Timer
from tests.twin.hardware import ZEROS, Fate, Fates, Hardware, Word
from tests.twin.registry import TwinRegistry

DEADLINE_S = 60.0
CHECK_S = 0.2
GONE = frozenset({Fact.WORKER_GONE})
After = Callable[[float, Action, str], Timer]
"""Lets the service do something later, if it lives then."""


@dataclass(slots=True, eq=False)
class Job(Work):
    """One wipe."""

    claim: ClaimUid | None = None
    on_end: Callable[[DeviceResult], object] = lambda result: None  # noqa: ARG005 - told nobody
    fate: Fate = field(default_factory=Fate)
    timer: Timer | None = None


@dataclass
class Wiping:
    """Performs wipes."""

    registry: TwinRegistry
    hardware: Hardware
    fates: Fates
    after: After
    whatever: Callable[[float, Action], object]
    """Lets something happen later whether or not the service lives then."""
    checked_at: dict[Uuid, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.registry.stop = self._stop

    def begin(self, job: Job) -> None:
        """Start, or end at once with why not; the node's own idle cleaning gives way."""
        other = self.registry.reserve_over_idle(job, wait_s=0.0)
        if other is not None:
            self._end(job, Outcome.BUSY, f"worked on by {other.operation}")
            return
        try:
            refused = self._refused(job)
            if refused is None:
                self._start(job)
        except errors.FleetError as error:
            self._lost(job, error)
            return
        if refused is not None:
            self._end(job, *refused)

    def cancel(self, job: Job) -> None:
        """Stop the worker; what it did is dirty. Where it has ended, its check is waited for."""
        if job.timer is not None:
            job.timer.cancel()
        if self.registry.state(job.device) is State.CHECKING:
            self._checked(job)
            return
        self._finish(job, Event.CANCELLED, Change(facts=GONE))
        self._end(job, Outcome.INTERRUPTED, "cancelled")

    def _stop(self, work: Work) -> None:
        if isinstance(work, Job):
            try:
                self.cancel(work)
            except errors.FleetError as error:
                self._lost(work, error)
        self.registry.unreserve(work)

    def _refused(self, job: Job) -> tuple[Outcome, str] | None:
        registry, units = self.registry, self.registry.units(job.device)
        if any(unit.state is State.HELD for unit in units):
            return Outcome.HELD, "held by somebody unknown"
        if any(u.state is State.IN_USE or (u.claim and u.claim != job.claim) for u in units):
            return Outcome.IN_USE, "in use"
        out = [unit for unit in units if unit.state is State.QUARANTINED]
        if any(unit.claim or any(not r.liftable for r in unit.reasons) for unit in out):
            return Outcome.QUARANTINED, "out of service"
        if job.token is not None and job.claim is None:
            try:
                registry.fence.check(units, job.token, job.token.epoch)
            except errors.TokenStale as error:
                return Outcome.REFUSED, error.detail
        if (survivor := self._survivor(job.device)) is not None:
            return Outcome.BUSY, survivor
        who = (*self.hardware.tenants(job.device), *registry.attached((job.device.uuid,)))
        if not who:
            return None
        change = Change(facts=GONE)
        clean = any(unit.state is State.CLEAN for unit in units)
        if clean:
            registry.move(job.device, Event.TRUST_LOST, change)
        return Outcome.BUSY, f"in use by {who[0]}"

    def _survivor(self, device: Device) -> str | None:
        """An earlier worker that lives, whether or not the journal still knows of it: it has the
        device open. Those that are gone are forgotten.
        """
        alive, mine = self.hardware.workers, set(device.units)
        rows = [r for r in self.registry.journal.workers() if mine.intersection(r.units)]
        if gone := [row for row in rows if row.worker_id not in alive]:
            with self.registry.commit() as commit:
                for row in gone:
                    commit.drop_worker(row.worker_id)
        return next((f"worker {one} lives" for one, u in alive.items() if mine & {*u}), None)

    def _start(self, job: Job) -> None:
        registry, facts = self.registry, START_GUARD
        if not any(unit.claim for unit in registry.units(job.device)):
            facts |= {Fact.NO_CLAIM_RECORD}

        def also(commit: Commit) -> None:
            at = registry.clock.now()
            commit.put_worker(WorkerRow(self._name(job), job.device.uuid, job.device.units, {}, at))
            if job.token is not None:
                for unit_id in job.device.units:
                    commit.put_unit(unit_states.raise_floor(commit.unit(unit_id), job.token))

        registry.move(job.device, _starting, Change(facts=facts, token=job.token), also=also)
        for worker, units in self.hardware.workers.items():
            assert not set(units) & set(job.device.units), f"{worker} lives, and another is started"
        self.hardware.write(job.device, Word("wiping", job.token or NO_TOKEN))
        job.fate = self.fates(self.hardware.node, job.device.name)
        hangs = job.fate.code in ("hang", "wedged")
        self._later(job, DEADLINE_S if hangs else job.fate.seconds, self._wiped, "wiped")

    def _name(self, job: Job) -> str:
        return f"{self.registry.boot_id}/{job.operation}"

    def _later(self, job: Job, wait_s: float, act: Callable[[Job], None], name: str) -> None:
        def due() -> None:
            try:
                act(job)
            except errors.FleetError as error:
                self._lost(job, error)

        job.timer = self.after(wait_s, due, name)

    def _lost(self, job: Job, error: errors.FleetError) -> None:
        """The thread of the work has ended by an error; recovery settles what it leaves."""
        self._end(job, Outcome.INTERRUPTED, f"lost: {error.detail}")

    def _wiped(self, job: Job) -> None:
        code = job.fate.code
        if code in ("hang", "wedged"):
            found = "wedged" if code == "wedged" else "timed-out"
            source = Source.WORKER if code == "wedged" else Source.WIPE
            self._fail(job, Event.TIMED_OUT, self._reason(found, source))
        elif code == "interrupted":
            self._interrupted(job)
        elif code == "memory-mismatch":
            self._fail(job, Event.WIPE_FAILED, self._reason(code, Source.WIPE))
        else:
            self.hardware.write(job.device, Word(ZEROS, job.token or NO_TOKEN))
            self._finish(job, Event.WIPE_VERIFIED, Change())
            wait_s = DEADLINE_S if code == "hang-check" else CHECK_S
            self._later(job, wait_s, self._checked, "checked")

    def _interrupted(self, job: Job) -> None:
        third = self._reason("interrupted", Source.WORKER)
        few = all(u.interruptions + 1 < 3 for u in self.registry.units(job.device))
        self._finish(
            job,
            Event.INTERRUPTED,
            Change(facts=GONE, reasons=frozenset() if few else frozenset({third})),
        )
        self._end(job, Outcome.INTERRUPTED, "its worker died")

    def _checked(self, job: Job) -> None:
        code = job.fate.code
        if code == "hang-check":
            self._fail(job, Event.TIMED_OUT, self._reason("timed-out", Source.HEALTH))
            return
        if code == "interrupted-check":
            self._interrupted(job)
            return
        if code:
            self._fail(job, Event.HEALTH_FAILED, self._reason(code, Source.HEALTH))
            return
        if any(unit.state not in WORKING for unit in self.registry.units(job.device)):
            self._end(job, Outcome.QUARANTINED, "put out of service meanwhile")
            return
        digest = self.hardware.certify(job.device, job.token or NO_TOKEN)
        change = Change(frozenset({Fact.CERTIFICATE_DURABLE}), certificate=digest)
        self.registry.move(job.device, _passing, change)
        self.checked_at[job.device.uuid] = self.registry.clock.now()
        clean = self.registry.state(job.device) is State.CLEAN
        outcome = Outcome.CERTIFIED if clean else Outcome.QUARANTINED
        self._end(job, outcome, certificate=digest)

    def _fail(self, job: Job, event: Event, reason: Reason) -> None:
        self._finish(job, event, Change(facts=GONE, reasons=frozenset({reason})))
        self._end(job, Outcome.QUARANTINED, reason.code)

    def _finish(self, job: Job, event: Event, change: Change) -> None:
        """Out of the work; a unit that a decision has quarantined meanwhile only gains.

        A worker that a kill has ended goes from the journal with it; a wedged one stays there.
        """

        def chosen(unit: Unit) -> Event | None:
            if unit.state is State.RETESTING and event is Event.WIPE_VERIFIED:
                return None
            if unit.state in WORKING:
                return event
            quarantined = unit.state is State.QUARANTINED and change.reasons
            return Event.FAULT_SEEN if quarantined else None

        name = self._name(job)
        wedged = job.fate.code == "wedged" and event in (Event.TIMED_OUT, Event.CANCELLED)
        if not wedged:
            self.registry.move(job.device, chosen, change, also=lambda c: c.drop_worker(name))
            return
        found = frozenset({self._reason("wedged", Source.WORKER)})
        self.hardware.workers[name] = job.device.units
        self.whatever(job.fate.wedged_s, lambda: self.hardware.scribble(name))
        self.registry.move(job.device, chosen, Change(reasons=change.reasons | found))

    def _end(self, job: Job, outcome: Outcome, detail: str = "", *, certificate: str = "") -> None:
        self.registry.unreserve(job)
        state = self.registry.state(job.device)
        if outcome is Outcome.INTERRUPTED and state is State.QUARANTINED:
            outcome = Outcome.QUARANTINED
        found = (Finding(check="wipe", verdict="fail", detail=detail),) if detail else ()
        result = DeviceResult(
            operation=job.operation,
            node=self.hardware.node,
            device=job.device.name,
            uuid=job.device.uuid,
            outcome=outcome,
            state=state,
            certificate=certificate if outcome is Outcome.CERTIFIED else "",
            findings=found,
        )
        job.on_end(result)

    def fault(self, device: Device, code: str, source: Source = Source.HEALTH) -> None:
        """A fault is seen, whatever the device does; a running wipe is ended."""
        work = self.registry.work_on(device)
        reason = frozenset({self._reason(code, source)})
        self.registry.move(device, outcomes.fault_event, Change(facts=GONE, reasons=reason))
        if isinstance(work, Job):
            if work.timer is not None:
                work.timer.cancel()
            self._end(work, Outcome.QUARANTINED, code)

    def _reason(self, code: str, source: Source) -> Reason:
        return reasons.make(code, source, since=self.registry.clock.now())


def _starting(unit: Unit) -> Event:
    return Event.RETEST_STARTED if unit.state is State.QUARANTINED else Event.WIPE_STARTED


def _passing(unit: Unit) -> Event:
    return Event.RETEST_PASSED if unit.state is State.RETESTING else Event.HEALTH_PASSED


def steady(seconds: float = 1.0) -> Fates:
    """Every wipe passes in the same time."""
    return lambda node, device: Fate(seconds)  # noqa: ARG005 - shape of `Fates`
