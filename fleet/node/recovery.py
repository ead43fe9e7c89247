"""What a start of the node service does before it accepts any act (DESIGN 5, Start of a node).

In this order: a new boot drops all trust; workers of the earlier service are proven gone or their
units quarantined; operations without an answer are answered "interrupted"; specs without a claim
are removed and specs of prepared claims rebuilt; a new journal adopts floors from the store.
"""

from __future__ import annotations

from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass, replace

from fleet import claims, errors, lifecycle
from fleet.claims import ClaimEvent, ClaimState
from fleet.health import reasons
from fleet.journal.journal import Commit, OperationRow
from fleet.lifecycle import Change, Event, Fact, close_floor
from fleet.messages import DeviceResult, Outcome
from fleet.model import (
    WORKING,
    Device,
    Holder,
    HolderKind,
    OperationId,
    Source,
    State,
    Unit,
    UnitId,
    Uuid,
)
from fleet.node import outcomes
from fleet.node.ports import Leases, Specs
from fleet.node.registry import Registry, Work
from fleet.wipe.identity import WorkerIdentity, end


@dataclass
class Recovery:
    """Brings journal and reality together after a start."""

    registry: Registry
    specs: Specs
    kill_wait_s: float
    """Time, s, a killed worker has to disappear before its units count as wedged."""
    troubles: tuple[str, ...] = ()
    """What could not be brought in order yet; tried again by `settle`."""
    _started: bool = False

    def run(self) -> None:
        """All steps that need nothing but this node."""
        self._boot()
        self._end_workers(None)
        self._answer_operations((), "the node service was restarted")
        self._orphans()
        self._rebuild()

    def _boot(self) -> None:
        registry = self.registry
        known = registry.journal.meta.get("boot_id")
        if known == registry.boot_id:
            return
        with registry.commit() as commit:
            for unit in list(registry.journal.units.values()):
                if known is not None:
                    change = Change(boot_id=registry.boot_id)
                    moved = lifecycle.step(
                        unit, Event.NEW_BOOT, now=registry.clock.now(), change=change
                    )
                    commit.put_unit(moved)
            for claim in list(registry.journal.claims.values()):
                state = claims.step(claim.state, ClaimEvent.NEW_BOOT)
                commit.put_claim(replace(claim, state=state, boot_id=registry.boot_id))
            commit.set_meta("boot_id", registry.boot_id)

    def _end_workers(self, only: frozenset[UnitId] | None) -> None:
        """Prove workers gone and end what they did: of all units, or `only` of some."""
        rows = {
            row.worker_id: row
            for row in self.registry.journal.workers()
            if only is None or only.intersection(row.units)
        }
        gone = {
            name: end(WorkerIdentity.from_json(row.identity), self.kill_wait_s)
            for name, row in rows.items()
        }
        alive: dict[UnitId, str] = {
            unit: f"worker pid {row.identity.get('pid')} of an earlier service still lives"
            for name, row in rows.items()
            if not gone[name]
            for unit in row.units
        }
        with self.registry.commit() as commit:
            for name, is_gone in gone.items():
                if is_gone:
                    commit.drop_worker(name)
            for unit in list(self.registry.journal.units.values()):
                if only is None or unit.id in only:
                    self._end_work(commit, unit, alive.get(unit.id))

    def _end_work(self, commit: Commit, unit: Unit, survivor: str | None) -> None:
        """The restarted service cancels its own work; a survivor quarantines whatever the state."""
        now = self.registry.clock.now()
        found = frozenset(
            [reasons.make("wedged", Source.WORKER, detail=survivor, since=now)] if survivor else []
        )
        change = Change(frozenset() if survivor else frozenset({Fact.WORKER_GONE}), found)
        event: Event | None = None
        if unit.state in WORKING:
            event = Event.INTERRUPTED if unit.state is State.CHECKING else Event.CANCELLED
        elif survivor:
            event = outcomes.fault_event(unit)
        if event is not None:
            commit.put_unit(lifecycle.step(unit, event, now=now, change=change))

    def settle(self, busy: Container[str]) -> None:
        """Bring units and operations to rest that nobody works on any more (no state is a trap).

        A commit that failed or a thread that was lost leaves them behind; `busy` are the operations
        in work. Costs a look at memory when there is nothing to do.
        """
        if self.troubles:
            self._orphans()
        for device in self.registry.whole():
            self._settle(device)
        if any(row.id not in busy for row in self.registry.journal.unfinished()):
            self._answer_operations(busy, "its thread was lost")

    def _settle(self, device: Device) -> None:
        stray = tuple(
            unit.id
            for unit in self.registry.units(device)
            if unit.state in WORKING and not self.registry.reserved(unit.id)
        )
        if not stray:
            return
        part = replace(device, units=stray)
        work = Work(OperationId(f"settle/{device.uuid}"), part, idle=False, wipes=False)
        if self.registry.reserve(work) is not None:
            return
        try:
            self._end_workers(frozenset(stray))
        finally:
            self.registry.unreserve(work)

    def _answer_operations(self, busy: Container[str], why: str) -> None:
        now = self.registry.clock.now()
        with self.registry.commit() as commit:
            for row in self.registry.journal.unfinished():
                if row.id in busy:
                    continue
                result = self._interrupted(row, why)
                commit.finish_operation(row.id, result.model_dump(mode="json"), now)

    def _interrupted(self, row: OperationRow, why: str) -> DeviceResult:
        found = outcomes.interrupted(why)
        device = self.registry.devices.get(Uuid(row.target))
        if device is None:
            return DeviceResult(
                operation=row.id,
                node=self.registry.place.node,
                device=row.target,
                uuid=row.target,
                outcome=Outcome.INTERRUPTED,
                state=State.HELD,
                findings=(found,),
            )
        shown = outcomes.Shown(self.registry.place.node, self.registry.state(device))
        work = Work(row.id, device, idle=False)
        return outcomes.result(work, shown, Outcome.INTERRUPTED, [found], None)

    def _orphans(self) -> None:
        """A spec exists only while a claim record names its devices (promise 3).

        A directory that cannot be written does not keep the node from tearing claims down. Claims
        in work are left alone: their specs belong to their own flights.
        """
        try:
            for uid in self.specs.listed():
                claim = self.registry.journal.claims.get(uid)
                if claim is None or (claim.state is not ClaimState.PREPARED and not self._started):
                    self.specs.remove(uid)
            self.troubles = ()
        except errors.FleetError as error:
            self.troubles = (f"orphan specs are not removed yet: {error.detail}",)
        self._started = True

    def _rebuild(self) -> None:
        for claim in self.registry.journal.claims.values():
            if claim.state is ClaimState.PREPARED:
                with suppress(errors.SpecUnavailable):  # the repeated prepare writes it again
                    self.specs.write(claim, attributes(self.registry, claim.devices))


def attributes(registry: Registry, devices: tuple[Uuid, ...]) -> dict[Uuid, dict[str, str]]:
    """The attributes of devices still in the inventory, for their spec."""
    found: dict[Uuid, Device | None] = {uuid: registry.devices.get(uuid) for uuid in devices}
    return {uuid: dict(device.attributes) for uuid, device in found.items() if device}


def adopt(registry: Registry, store: Leases) -> None:
    """A new journal follows the store: its epoch, its tokens (all closed), its quarantines.

    Until this has happened the node accepts no act. Raises what the store raises while it is away;
    a journal that follows a store already does not ask it.
    """
    if registry.journal.epoch:
        return
    newest = store.newest()
    quarantined = {
        unit: lease.holder
        for lease in store.leases()
        if lease.holder.kind is HolderKind.QUARANTINE
        for unit in lease.units
    }
    with registry.commit() as commit:
        commit.set_meta("epoch", str(newest.epoch))
        for unit in list(registry.journal.units.values()):
            moved = close_floor(unit, newest)
            holder = quarantined.get(unit.id)
            commit.put_unit(_remembered(moved, holder, now=registry.clock.now()))


def _remembered(unit: Unit, holder: Holder | None, *, now: float) -> Unit:
    if holder is None:
        return unit
    detail = f"quarantined before the journal was lost ({holder})"
    reason = reasons.make("operator", Source.OPERATOR, detail=detail, since=now)
    return lifecycle.step(
        unit, Event.FAULT_SEEN, now=now, change=Change(reasons=frozenset({reason}))
    )
