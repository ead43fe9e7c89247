"""What a start of the node service does before it accepts any act (DESIGN 5, Start of a node).

In this order: a new boot drops all trust; workers of the earlier service are proven gone or their
units quarantined; operations without an answer are answered "interrupted"; specs without a claim
are removed and specs of prepared claims rebuilt; a new journal adopts floors from the store.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet import claims, lifecycle
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
    Source,
    State,
    Token,
    Unit,
    UnitId,
    Uuid,
)
from fleet.node import outcomes
from fleet.node.ports import Specs
from fleet.node.registry import Registry, Work
from fleet.stores.base import LeaseStore
from fleet.wipe.identity import WorkerIdentity, end

KILL_WAIT_S = 5.0


@dataclass
class Recovery:
    """Brings journal and reality together after a start."""

    registry: Registry
    specs: Specs

    def run(self) -> None:
        """All steps that need nothing but this node."""
        self._boot()
        self._end_workers()
        self._answer_operations()
        self._specs()

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

    def _end_workers(self) -> None:
        rows = {row.worker_id: row for row in self.registry.journal.workers()}
        gone = {
            name: end(WorkerIdentity.from_json(row.identity), KILL_WAIT_S)
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

    def _answer_operations(self) -> None:
        now = self.registry.clock.now()
        with self.registry.commit() as commit:
            for row in self.registry.journal.unfinished():
                result = self._interrupted(row)
                commit.finish_operation(row.id, result.model_dump(mode="json"), now)

    def _interrupted(self, row: OperationRow) -> DeviceResult:
        found = outcomes.interrupted("the node service was restarted")
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

    def _specs(self) -> None:
        """A spec exists only while a prepared claim names its devices (promise 3)."""
        known = self.registry.journal.claims
        for uid in self.specs.listed():
            claim = known.get(uid)
            if claim is None or claim.state is not ClaimState.PREPARED:
                self.specs.remove(uid)
        for claim in known.values():
            if claim.state is ClaimState.PREPARED:
                self.specs.write(claim, attributes(self.registry, claim.devices))


def attributes(registry: Registry, devices: tuple[Uuid, ...]) -> dict[Uuid, dict[str, str]]:
    """The attributes of devices still in the inventory, for their spec."""
    found: dict[Uuid, Device | None] = {uuid: registry.devices.get(uuid) for uuid in devices}
    return {uuid: dict(device.attributes) for uuid, device in found.items() if device}


def adopt(registry: Registry, store: LeaseStore) -> Token:
    """A new journal follows the store: its epoch, its tokens (all closed), its quarantines.

    Until this has happened the node accepts no act. Raises `StoreUnavailable`.
    """
    newest = store.newest()
    if registry.journal.epoch:
        return newest
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
    return newest


def _remembered(unit: Unit, holder: Holder | None, *, now: float) -> Unit:
    if holder is None:
        return unit
    detail = f"quarantined before the journal was lost ({holder})"
    reason = reasons.make("operator", Source.OPERATOR, detail=detail, since=now)
    return lifecycle.step(
        unit, Event.FAULT_SEEN, now=now, change=Change(reasons=frozenset({reason}))
    )
