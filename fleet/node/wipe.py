"""One wipe of one device on this node, from guard to certificate.

The order is the contract (DESIGN 4 and 6): nobody on the device and no surviving worker; the
worker armed, then journalled, then allowed to write; its end proven; health judged, a reset where
policy asks, and after that reset all of it once more, for what memory holds then nobody has read;
the certificate durable; only then CLEAN. Every way out is a row of the unit table,
and every step is committed before the next begins, so that a crash at any point leaves a state
from which a start recovers.

`perform` runs straight through on a thread of its own, waits only with bounds, and locks the
journal for milliseconds only: one device's trouble never holds up another.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from fleet.core import errors, logs
from fleet.core.messages import DeviceResult, Outcome, WipeProgress
from fleet.core.model import WORKING, Accelerator, Device, ProcessKind, Reason, Source, State, Unit
from fleet.core.processes import WorkerIdentity, end
from fleet.core.unit_states import START_GUARD, Change, Event, Fact, raise_floor
from fleet.devices import tool
from fleet.devices.health import reasons
from fleet.devices.wipe import plan
from fleet.devices.wipe.plan import Target
from fleet.devices.wipe.result import Failure, Kind, WipeResult
from fleet.devices.wipe.workers import Died, Ended, Finished, Spawner, Worker
from fleet.node import ladder, outcomes, wipe_totals
from fleet.node.certification import Certifier
from fleet.node.journal.journal import Commit, WorkerRow
from fleet.node.ports import TenantProof
from fleet.node.registry import Registry
from fleet.node.tasks import Stopped, WipeTask
from fleet.node.validation import Validator, Verdict

# What a wipe worker is sent to, from what the node knows of a device.


def of(registry: Registry, device: Device, visible: str) -> Target:
    """The target for `device`; `visible`: its instance as the driver names it, "" without one."""
    return Target(
        backend=registry.backend.kind,
        settings=registry.backend.settings(),
        accelerator=device.accelerator,
        device=device.uuid,
        units=device.units,
        size_bytes=device.memory_bytes,
        visible=visible,
        peak_bytes_per_s=peak(device, registry.accelerators.get(device.accelerator)),
    )


def peak(device: Device, accelerator: Accelerator | None) -> float:
    """What the device's memory can do, bytes/s, by the data its driver tells; 0: unknown.

    A partition has the share of the accelerator's memory paths that its units are of all units.
    """
    told = device.attributes.get("memory_rate_bytes_per_s", "")
    if accelerator is None or not told.isdecimal():
        return 0.0
    return int(told) * len(device.units) / len(accelerator.units)


LOG = logging.getLogger(__name__)
POLL_S = 0.02
"""Longest time, s, until a cancellation is seen; what a worker says or its end is seen at once."""


SIMULATED_LATE = "it is simulated, nothing is to be reset: scrub it when this machine is less busy"


class Wiper:
    """Performs wipes. One object per node; `perform` may run on many threads at once."""

    def __init__(
        self,
        registry: Registry,
        *,
        workers: Spawner,
        tenants: TenantProof,
        validator: Validator,
        certifier: Certifier,
        max_parallel: int = 8,
    ) -> None:
        self._registry = registry
        self._workers = workers
        self._tenants = tenants
        self._validator = validator
        self.certifier = certifier
        self._tell = outcomes.Teller(registry)
        self._slots = threading.BoundedSemaphore(max_parallel)

    def close(self) -> None:
        """End the spawner, and with it whatever still runs. No wipe starts afterwards."""
        self._workers.close()

    def keep_ready(self) -> None:
        """Have workers started for some accelerators, before anybody asks."""
        for device in self._registry.whole()[: self._workers.spares]:
            if not self._validator.partitions.divided(device):
                self._workers.keep_ready(device.uuid, self._registry.backend.kind)

    def perform(self, task: WipeTask) -> DeviceResult:
        """Wipe, check and certify once a slot is free; the caller has reserved the units.

        Never raises for trouble of the device, of the service or of this program: the result tells,
        and the units are never left behind in work.
        """
        with logs.about(node=self._registry.place.node, **task.facts):
            if not self._take_slot(task):
                return self._tell.result(task.work, Outcome.INTERRUPTED, [outcomes.CANCELLED])
            try:
                result = wipe_totals.counted(self._registry, task, self._perform)
                LOG.info("the wipe ended: %s, %s", result.outcome, result.state)
                return result
            finally:
                self._slots.release()

    def _take_slot(self, task: WipeTask) -> bool:
        """Wait for a slot, whoever asked for the wipe; False when cancelled meanwhile."""
        while not task.work.cancel.is_set():
            if self._slots.acquire(timeout=POLL_S):
                return True
        return False

    def _perform(self, task: WipeTask) -> DeviceResult:
        started = self._registry.clock.now()
        try:
            return self._finish(task, self._wiped(task))
        except Stopped as stopped:
            return stopped.result
        except errors.FleetError as error:
            return self._broken(task, error, started)
        except Exception as error:  # noqa: BLE001 - an operation must get an answer, whatever it is
            failed = errors.BackendFailed(f"the wipe failed unexpectedly: {error!r}")
            return self._broken(task, failed, started)

    def _wiped(self, task: WipeTask) -> WipeResult:
        """One verified wipe, from nobody on the device to no worker left."""
        self._refuse_unfit(task, self._registry.units(task.device))
        self._refuse_unable(task)
        self._prove_nobody(task)
        with self._validator.partitions.entered(task.device, task.claim) as visible:
            worker = self._start(task, visible)
            ended = self._await_end(task, worker)
            return self._settle_end(task, worker, ended)

    # --- before ---

    def _refuse_unfit(self, task: WipeTask, units: Sequence[Unit]) -> None:
        """Who must not be wiped now. Asked before anything is started, and again in the commit."""
        if (hindrance := self._registry.hindrance) is not None:
            raise Stopped(self._hindered(task, hindrance))
        states = {unit.state for unit in units}
        if State.HELD in states:
            raise Stopped(self._tell.result(task.work, Outcome.HELD, [outcomes.HELD]))
        taken = [u for u in units if u.state is State.IN_USE or (u.claim and u.claim != task.claim)]
        if taken:
            raise Stopped(self._tell.result(task.work, Outcome.IN_USE))
        stuck = [r for u in units if u.state is State.QUARANTINED for r in u.reasons]
        claimed = any(unit.claim for unit in units if unit.state is State.QUARANTINED)
        if claimed or any(not reason.liftable for reason in stuck):
            found = [outcomes.of_reason(reason) for reason in sorted(set(stuck))]
            raise Stopped(self._tell.result(task.work, Outcome.QUARANTINED, found))
        if task.token is not None and task.claim is None:
            try:
                self._registry.fence.check(units, task.token, task.token.epoch)
            except errors.TokenStale as error:
                refused = outcomes.of_error(error)
                raise Stopped(self._tell.result(task.work, Outcome.REFUSED, [refused])) from None

    def _refuse_unable(self, task: WipeTask) -> None:
        """What would fail any wipe on this node is no fault of a device: none is begun (F44)."""
        found = [one for one in self._validator.unfit() if one.concerns(task.device.accelerator)]
        if found:
            told = [outcomes.unable(one) for one in found]
            raise Stopped(self._tell.result(task.work, Outcome.REFUSED, told))

    def _prove_nobody(self, task: WipeTask) -> None:
        """No process but infrastructure, no consumer's container, no worker of ours left."""
        device = task.device
        survivors = self._end_survivors(device)
        if survivors:
            reason = self._reason("wedged", Source.WORKER, f"{survivors} still lives")
            self._registry.move(device, outcomes.fault_event, Change(reasons=frozenset({reason})))
            raise Stopped(self._tell.quarantined(task.work))
        try:
            foreign = self._validator.foreign(device, patient=True)
        except errors.DriverBusy as error:
            later = [outcomes.interrupted(error.detail)]
            raise Stopped(self._tell.result(task.work, Outcome.INTERRUPTED, later)) from error
        except errors.DriverAbsent as error:
            self._registry.lose(error)
            raise Stopped(self._hindered(task, error)) from error
        except (errors.BackendFailed, errors.DeviceLost) as error:
            lost = isinstance(error, errors.DeviceLost)
            code = "device-lost" if lost else "unresponsive"
            doubt = frozenset({self._reason(code, Source.HEALTH, error.detail)})
            self._registry.move(device, outcomes.fault_event, Change(reasons=doubt))
            raise Stopped(self._tell.quarantined(task.work)) from error
        found = outcomes.names(foreign)
        found += [f"claim {c} with adminAccess" for c in self._registry.attached((device.uuid,))]
        who = ", ".join(found) or self._tenants.created(device.uuid)
        if who:
            self._registry.move(
                device,
                lambda unit: Event.TRUST_LOST if unit.state is State.CLEAN else None,
                Change(facts=frozenset({Fact.WORKER_GONE})),
            )
            raise Stopped(self._tell.result(task.work, Outcome.BUSY, [outcomes.holder(who)]))

    def _hindered(self, task: WipeTask, why: errors.FleetError) -> DeviceResult:
        """Nothing was begun, and no device is to blame: it is wiped once that is over."""
        found = outcomes.interrupted(why.detail)
        return self._tell.result(task.work, Outcome.INTERRUPTED, [found])

    def _end_survivors(self, device: Device) -> str:
        """Prove workers of earlier runs gone; returns those that are not, for the reason."""
        alive = []
        for row in self._registry.journal.workers():
            if not set(row.units).intersection(device.units):
                continue
            identity = WorkerIdentity.from_json(row.identity)
            if end(identity, 0.5):
                with self._registry.commit() as commit:
                    commit.drop_worker(row.worker_id)
            else:
                alive.append(f"worker {row.worker_id} (pid {identity.pid})")
        resets = tool.survivors(f"reset {device.accelerator}")
        alive += [f"of a reset (pid {pid})" for pid in resets]
        return ", ".join(alive)

    # --- the worker ---

    def _start(self, task: WipeTask, visible: str) -> Worker:
        device, policy, size = task.device, task.policy, task.device.memory_bytes
        target = of(self._registry, device, visible)
        # A spare sees its device under the device's own UUID: it is of no use in an instance.
        name = secrets.token_hex(16) if visible else self._workers.next_id(device.uuid)
        order = plan.order(target, policy, worker_id=name, nonce=secrets.token_hex(32))
        try:
            worker = self._workers.spawn(order)
        except errors.BackendFailed as error:
            lost = [outcomes.interrupted(error.detail)]  # nothing was written: tried again
            raise Stopped(self._tell.result(task.work, Outcome.INTERRUPTED, lost)) from error
        row = WorkerRow(
            order.worker_id,
            device.accelerator,
            device.units,
            worker.identity.as_json(),
            self._registry.clock.now(),
        )

        def journal_worker(commit: Commit) -> None:
            # Claims and tokens may have moved on while the worker was being started.
            self._refuse_unfit(task, [commit.unit(unit) for unit in device.units])
            commit.put_worker(row)
            if task.token is not None:
                for unit in device.units:
                    commit.put_unit(raise_floor(commit.unit(unit), task.token))

        try:
            self._registry.move(
                device,
                _pick(Event.WIPE_STARTED, Event.RETEST_STARTED),
                Change(facts=START_GUARD | self._no_record(device), token=task.token),
                also=journal_worker,
            )
            task.work.progress = WipeProgress(
                phase="start",
                total=size * plan.PASSES_OVER_MEMORY,
                started_at=self._registry.clock.now(),
            )
            worker.go()
        except BaseException:
            if worker.kill(policy.kill_wait_s):
                self._forget(worker)
            raise
        return worker

    def _forget(self, worker: Worker) -> None:
        """Drop a worker proven gone; what cannot be written now is found by the next wipe."""
        with suppress(errors.FleetError), self._registry.commit() as commit:
            commit.drop_worker(worker.identity.worker_id)

    def _no_record(self, device: Device) -> frozenset[Fact]:
        held = any(unit.claim for unit in self._registry.units(device))
        return frozenset() if held else frozenset({Fact.NO_CLAIM_RECORD})

    def _await_end(self, task: WipeTask, worker: Worker) -> Ended | None:
        """How the worker ended; None when its deadline passed or the wipe was cancelled."""
        clock, told = self._registry.clock, None
        allowed_s = plan.deadline_s(task.device.memory_bytes, task.policy)
        deadline = clock.monotonic() + allowed_s
        while (ended := worker.poll()) is None:
            progress = worker.progress()
            if progress is not told:
                told = progress
                if self._registry.backend.simulated:
                    # It has the speed of a machine that others use: only standing still is a hang.
                    deadline = clock.monotonic() + allowed_s
                task.work.progress = task.work.progress.model_copy(
                    update={
                        "phase": progress.phase,
                        "done": progress.done,
                        "total": progress.total or task.work.progress.total,
                    }
                )
            worker.wait(POLL_S)
            if task.work.cancel.is_set() or clock.monotonic() > deadline:
                return None
        return ended

    def _settle_end(self, task: WipeTask, worker: Worker, ended: Ended | None) -> WipeResult:
        """Commit how the worker ended. Returns only for a verified wipe."""
        gone = worker.kill(task.policy.kill_wait_s)
        facts = frozenset({Fact.WORKER_GONE}) if gone else frozenset()
        also = self._dropping(worker) if gone else None
        wedged = set() if gone else {self._reason("wedged", Source.WORKER, _pid(worker))}
        if ended is None and task.work.cancel.is_set():
            self._end(task, Event.CANCELLED, Change(facts, frozenset(wedged)), also=also)
            raise Stopped(self._tell.after(task.work, Outcome.INTERRUPTED, [outcomes.CANCELLED]))
        if ended is None:
            remedy = SIMULATED_LATE if self._registry.backend.simulated else ""
            reason = self._reason("timed-out", Source.WIPE, task.work.progress.phase, remedy)
            change = Change(facts, frozenset({reason, *wedged}))
            self._end(task, Event.TIMED_OUT, change, also=also)
            raise Stopped(self._tell.quarantined(task.work))
        if isinstance(ended, Died) or not gone:
            self._interrupted(task, ended, Change(facts, frozenset(wedged)), also)
        assert isinstance(ended, Finished)  # noqa: S101 - the other kind has just raised
        if ended.result.verified:
            units = self._end(task, _pick(Event.WIPE_VERIFIED, None), Change(facts), also=also)
            if any(unit.state not in WORKING for unit in units):
                raise Stopped(self._tell.quarantined(task.work))
            return ended.result
        raise Stopped(self._failed(task, ended.result, also))

    def _interrupted(
        self, task: WipeTask, ended: Ended, change: Change, also: outcomes.Also
    ) -> None:
        detail = ended.detail if isinstance(ended, Died) else "the worker did not go away"
        third = self._reason("interrupted", Source.WORKER, detail)

        def brought(unit: Unit) -> Change:
            if unit.interruptions + 1 < outcomes.INTERRUPTIONS_MAX:
                return change
            return Change(change.facts, change.reasons | {third})

        self._end(task, Event.INTERRUPTED, brought, also=also)
        found = [outcomes.interrupted(detail)]
        raise Stopped(self._tell.after(task.work, Outcome.INTERRUPTED, found))

    def _failed(self, task: WipeTask, result: WipeResult, also: outcomes.Also) -> DeviceResult:
        if result.failure is Failure.HOLDER:
            gone = Change(frozenset({Fact.WORKER_GONE}))
            self._end(task, Event.TRUST_LOST, gone, also=also)
            foreign = [p for p in result.holders if p.kind is ProcessKind.FOREIGN]
            names = ", ".join(outcomes.names(foreign))
            return self._tell.after(task.work, Outcome.FAILED, [outcomes.holder(names)], result)
        found = self._validator.reasons_for(task.device, result, since=self._registry.clock.now())
        self._end(task, Event.WIPE_FAILED, Change(reasons=found), also=also)
        return self._tell.quarantined(task.work, result)

    # --- after ---

    def _finish(
        self, task: WipeTask, wipe: WipeResult, earlier: Verdict | None = None
    ) -> DeviceResult:
        verdict = self._validator.judge(
            task.device, wipe, task.policy, demand=task.demand, earlier=earlier
        )
        if not verdict.healthy:
            found = ladder.climbed(self._registry, task.device, verdict.reasons)
            self._end(
                task, Event.HEALTH_FAILED, Change(reasons=found), also=self._noting(task, found)
            )
            return self._tell.quarantined(task.work, wipe)
        if verdict.reset.performed and wipe.kind is Kind.MEMORY and earlier is None:
            self._end(task, Event.TRUST_LOST, Change(frozenset({Fact.WORKER_GONE})))
            return self._finish(task, self._wiped(task), verdict)
        self._look_again(task, wipe)
        if task.binding and (unmet := verdict.unmet or task.lacking(wipe)):
            self._end(task, Event.TRUST_LOST, Change(frozenset({Fact.WORKER_GONE})))
            return self._tell.after(task.work, Outcome.REFUSED, [outcomes.unmet(unmet)], wipe)
        issued = self.certifier.certify(task, wipe, verdict)
        units = self._registry.move(
            task.device,
            _pick(Event.HEALTH_PASSED, Event.RETEST_PASSED),
            Change(facts=frozenset({Fact.CERTIFICATE_DURABLE}), certificate=issued),
            also=wipe_totals.certified(self._registry, task, wipe),
        )
        clean = all(unit.state is State.CLEAN for unit in units)
        outcome = Outcome.CERTIFIED if clean else Outcome.QUARANTINED
        certificate = {"certificate": issued} if clean else {}
        return self._tell.result(
            task.work, outcome, outcomes.of_warnings(verdict.findings), wipe, **certificate
        )

    def _look_again(self, task: WipeTask, wipe: WipeResult) -> None:
        """Who came after the worker had gone may have written: no certificate, and DIRTY."""
        foreign = self._validator.foreign(task.device, patient=True)
        if not foreign:
            return
        gone = Change(frozenset({Fact.WORKER_GONE}))
        self._end(task, Event.TRUST_LOST, gone)
        who = ", ".join(outcomes.names(foreign))
        found = [outcomes.holder(who)]
        raise Stopped(self._tell.after(task.work, Outcome.FAILED, found, wipe))

    def _broken(self, task: WipeTask, error: errors.FleetError, started: float) -> DeviceResult:
        """The service itself failed (journal, disk, driver): settle what the table allows.

        Where not even that can be written, the units stay as they are until `Recovery.settle`
        finds them in work with nobody working.
        """
        seconds = self._registry.clock.now() - started
        code = outcomes.code_of(error)
        reset = isinstance(error, errors.ResetFailed)
        source, took = (Source.HEALTH, "") if reset else (Source.WIPE, f" ({seconds:.0f} s)")
        reason = self._reason(code, source, f"{error.detail}{took}")
        try:
            (reason,) = ladder.climbed(self._registry, task.device, {reason})
            survivors = self._end_survivors(task.device)
            wedged = self._reason("wedged", Source.WORKER, f"{survivors} still lives")
            facts = frozenset() if survivors else frozenset({Fact.WORKER_GONE})
            left = frozenset({wedged} if survivors else ())
            self._registry.move(
                task.device,
                outcomes.breaking_event,
                lambda unit: Change(facts, left | outcomes.blamed(unit, reason)),
                also=self._noting(task, (reason,)),
            )
        except errors.FleetError as second:
            found = [outcomes.of_error(error), outcomes.of_error(second)]
            return self._tell.result(task.work, Outcome.FAILED, found)
        return self._tell.after(task.work, Outcome.FAILED, [outcomes.of_error(error)])

    def _end(
        self,
        task: WipeTask,
        event: Event | outcomes.Choice,
        change: Change | Callable[[Unit], Change],
        *,
        also: outcomes.Also = None,
    ) -> list[Unit]:
        """Move the units out of their work; one a decision has quarantined meanwhile only gains."""

        def chosen(unit: Unit) -> Event | None:
            if unit.state in WORKING:
                return event(unit) if callable(event) else event
            return Event.FAULT_SEEN if unit.state is State.QUARANTINED else None

        return self._registry.move(task.device, chosen, change, also=also)

    def _noting(self, task: WipeTask, found: Iterable[Reason]) -> outcomes.Also:
        return lambda commit: ladder.remember(self._registry, commit, task.device, found)

    def _dropping(self, worker: Worker) -> outcomes.Also:
        return lambda commit: commit.drop_worker(worker.identity.worker_id)

    def _reason(self, code: str, source: Source, detail: str, remedy: str = "") -> Reason:
        now = self._registry.clock.now()
        return reasons.make(code, source, detail=detail, since=now, remedy=remedy)


def _pick(normal: Event, retest: Event | None) -> outcomes.Choice:
    """The event for a unit, by whether it is being retested (or would be)."""
    retested = {State.QUARANTINED, State.RETESTING}
    return lambda unit: retest if unit.state in retested else normal


def _pid(worker: Worker) -> str:
    return f"worker pid {worker.identity.pid} outlived its kill"
