"""What a start of the node service does before it accepts any act (DESIGN 5, Start of a node).

In this order: a new boot drops all trust; workers of the earlier service are proven gone or their
units quarantined; operations without an answer are answered "interrupted"; specs without a claim
are removed and specs of prepared claims rebuilt; a new journal adopts floors from the store.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from fleet.core import claim_states as claims
from fleet.core import errors, unit_states
from fleet.core.claim_states import Claim, ClaimEvent, ClaimState
from fleet.core.messages import DeviceResult, Outcome
from fleet.core.model import (
    NO_TOKEN,
    WORKING,
    ClaimUid,
    Device,
    Digest,
    Holder,
    HolderKind,
    Lease,
    OperationId,
    Source,
    State,
    Unit,
    UnitId,
    Uuid,
)
from fleet.core.processes import WorkerIdentity, end, gone_within
from fleet.core.unit_states import Change, Event, Fact, close_floor
from fleet.devices.base import Grant
from fleet.devices.health import reasons
from fleet.evidence.ledger import Ledger
from fleet.node import bounded, outcomes
from fleet.node.container_edits import grants
from fleet.node.journal import mirror
from fleet.node.journal.journal import Commit, OperationRow
from fleet.node.journal.repair import DAMAGED
from fleet.node.partitions import Partitions
from fleet.node.ports import Leases, Specs
from fleet.node.registry import Registry, Work

REBUILD_S = 2.0
"""Time, s, a start spends on what a driver tells for specs; callers are not let in before."""


@dataclass
class Recovery:
    """Brings journal and reality together after a start."""

    registry: Registry
    specs: Specs
    kill_wait_s: float
    """Time, s, killed workers have to disappear, all together, before their units are wedged."""
    ledger: Ledger
    troubles: tuple[str, ...] = ()
    """What could not be brought in order yet; tried again by `settle`."""
    found: tuple[str, ...] = ()
    """What was found among the specs at the start, for whoever looks."""
    partitions: Partitions | None = None
    unbuilt: set[ClaimUid] = field(default_factory=set)
    """Prepared claims whose spec could not be written anew in time."""
    _started: bool = False

    def run(self) -> None:
        """All steps that need nothing but this node."""
        self._remember()
        self._name_devices()
        self.registry.copies.begin(self.registry.journal)
        self._boot()
        if self.partitions is not None:
            self.partitions.begin()  # the driver is asked later, and not by who waits for the door
        self._end_workers(None)
        self._answer_operations((), "the node service was restarted")
        self._compare_evidence()
        self._settle_specs()
        self._orphans()
        self._rebuild()

    def _remember(self) -> None:
        """Take over reasons that the copy beside the journal has and the journal has not (B15).

        A new journal does, and one that starts in a new boot: the witness is gone then, and it may
        be older than the copy, restored from a backup. A copy that cannot be read is doubt enough
        only where there is no journal to ask.
        """
        registry = self.registry
        known = registry.journal.meta.get("boot_id")
        if known == registry.boot_id:
            return
        kept, now = self._kept(), registry.clock.now()
        units = registry.journal.units
        if kept.trouble and known is None:
            lost = reasons.make("operator", Source.OPERATOR, detail=kept.trouble, since=now)
            found = dict.fromkeys(units, frozenset({lost}))
        else:
            lacking = {u: r - units[u].reasons for u, r in kept.reasons.items() if u in units}
            found = {unit: more for unit, more in lacking.items() if more}
        with registry.commit() as commit:
            for unit_id, brought in found.items():
                unit = commit.unit(unit_id)
                change = Change(reasons=brought)
                commit.put_unit(unit_states.step(unit, Event.FAULT_SEEN, now=now, change=change))

    def _name_devices(self) -> None:
        """Claims whose record was damaged get the devices their units make up (B72).

        One that had no unit looked into memory, of which device is not known: it may be any.
        """
        registry = self.registry
        known = tuple(registry.devices)
        with_units = [c for c in registry.journal.claims.values() if c.units and not c.devices]
        found = {c.uid: replace(c, devices=_covering(registry, c.units)) for c in with_units}
        for claim in registry.journal.claims.values():
            if claim.error == DAMAGED and not (claim.units or claim.attached):
                found[claim.uid] = replace(claim, attached=known)
        changed = [c for uid, c in found.items() if c != registry.journal.claims[uid]]
        if changed:
            with registry.commit() as commit:
                for claim in changed:
                    commit.put_claim(claim)

    def _kept(self) -> mirror.Remembered:
        """The copy."""
        return mirror.read(self.registry.place.mirror)

    def _boot(self) -> None:
        registry = self.registry
        known = registry.journal.meta.get("boot_id")
        if known == registry.boot_id:
            return
        with registry.commit() as commit:
            for unit in list(registry.journal.units.values()):
                if known is not None:
                    change = Change(boot_id=registry.boot_id)
                    moved = unit_states.step(
                        unit, Event.NEW_BOOT, now=registry.clock.now(), change=change
                    )
                    commit.put_unit(self._freed(moved))
                elif unit.boot_id != registry.boot_id:
                    # The journal began in an earlier boot, and its first start was cut short.
                    commit.put_unit(replace(unit, boot_id=registry.boot_id))
            for claim in list(registry.journal.claims.values()):
                state = claims.step(claim.state, ClaimEvent.NEW_BOOT)
                commit.put_claim(replace(claim, state=state, boot_id=registry.boot_id))
            commit.set_meta("boot_id", registry.boot_id)

    def _freed(self, unit: Unit) -> Unit:
        """Whoever held the unit in an earlier boot is gone with it (ProvenFree (a)).

        A unit of a claim is freed by that claim's teardown only.
        """
        if unit.state is not State.HELD or unit.claim is not None:
            return unit
        return unit_states.step(unit, Event.PROVEN_FREE, now=self.registry.clock.now())

    def _end_workers(self, only: frozenset[UnitId] | None) -> None:
        """Prove workers gone and end what they did: of all units, or `only` of some.

        Nobody answers at the door meanwhile: many survivors take no longer than one.
        """
        deadline = time.monotonic() + self.kill_wait_s
        rows = {
            row.worker_id: row
            for row in self.registry.journal.workers()
            if only is None or only.intersection(row.units)
        }
        named = {name: WorkerIdentity.from_json(row.identity) for name, row in rows.items()}
        gone = {name: end(worker, 0.0) for name, worker in named.items()}
        for name, worker in named.items():
            gone[name] = gone[name] or gone_within(worker, deadline - time.monotonic())
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
            commit.put_unit(unit_states.step(unit, event, now=now, change=change))

    def _compare_evidence(self) -> None:
        """CLEAN needs its certificate at the end of the unit's chain: the ledger does not go back.

        A journal that was restored or edited names an older certificate, or none. Its units are
        dirty, and whatever was acted on under the newest certificate's token stays refused.
        """
        try:
            heads = self.ledger.heads()
        except errors.FleetError:
            heads = {}  # no evidence can be read: nothing is CLEAN
        with self.registry.commit() as commit:
            for unit in list(self.registry.journal.units.values()):
                commit.put_unit(self._compared(unit, heads.get(unit.id)))

    def _compared(self, unit: Unit, newest: Digest | None) -> Unit:
        if newest is not None and newest != unit.head:
            token = self.ledger.certificate(newest).token
            if token is not None and token.epoch == self.registry.journal.epoch:
                unit = unit_states.raise_floor(unit, token)
        if unit.state is not State.CLEAN or newest == unit.certificate:
            return unit
        change = Change(frozenset({Fact.WORKER_GONE}))
        return unit_states.step(
            unit, Event.TRUST_LOST, now=self.registry.clock.now(), change=change
        )

    def settle(self, busy: Container[str]) -> None:
        """Bring units and operations to rest that nobody works on any more (no state is a trap).

        A commit that failed or a thread that was lost leaves them behind; `busy` are the operations
        in work. Costs a look at memory when there is nothing to do.
        """
        if self.troubles:
            self._orphans()
        self._name_devices()
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

    def _settle_specs(self) -> None:
        """Specs of earlier versions get today's names, damaged ones are moved aside (B68)."""
        try:
            self.found = tuple(self.specs.settle(tuple(self.registry.journal.claims)))
        except errors.FleetError as error:
            self.found = (f"specs of an earlier version are not settled: {error.detail}",)

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
        """Write the specs of prepared claims anew, as far as the driver tells soon what they name.

        Callers are let in after this: a card that hangs must not keep them waiting. What is left
        over the node does in its own steps.
        """
        claims = list(self.registry.journal.claims.values())
        prepared = [claim for claim in claims if claim.state is ClaimState.PREPARED]
        self.unbuilt.update(claim.uid for claim in prepared)
        if self.registry.absent is not None:
            return
        asked = {c.uid: partial(self._granted, c) for c in prepared}
        if self.registry.backend.simulated:
            given = {uid: ask() for uid, ask in asked.items()}
        else:
            given = bounded.within(REBUILD_S, asked)
        for claim in prepared:
            if (found := given.get(claim.uid)) is not None:
                with suppress(errors.FleetError):  # the repeated prepare writes it, or says why not
                    self.specs.write(claim, found)
                    self.unbuilt.discard(claim.uid)

    def _granted(self, claim: Claim) -> Mapping[Uuid, Grant] | None:
        with suppress(errors.FleetError):
            return grants(self.registry, claim, self.partitions)
        return None


def adopt(registry: Registry, store: Leases) -> None:
    """A new journal follows the store: its epoch, its tokens (all closed), its quarantines.

    Until this has happened the node accepts no act. Raises what the store raises while it is away;
    a journal that follows a store already does not ask it.
    """
    if registry.journal.epoch:
        return
    newest, held = store.newest(), store.leases()
    out = quarantined(held)
    with registry.commit() as commit:
        commit.set_meta("epoch", str(newest.epoch))
        for unit in list(registry.journal.units.values()):
            moved = close_floor(unit, newest)
            commit.put_unit(remembered(moved, out.get(unit.id), now=registry.clock.now()))
        for lease in held:
            if lease.holder.kind is HolderKind.CLAIM:
                _hold(registry, commit, lease)


def quarantined(held: Iterable[Lease]) -> Mapping[UnitId, Holder]:
    """The quarantines among the leases, by unit."""
    return {
        unit: lease.holder
        for lease in held
        if lease.holder.kind is HolderKind.QUARANTINE
        for unit in lease.units
    }


def _hold(registry: Registry, commit: Commit, lease: Lease) -> None:
    """A claim of the store may be running here: its units stay HELD under a record of it.

    Nothing frees them but its teardown (or an operator), which then returns the lease.
    """
    mine = lease.units & registry.journal.units.keys()
    if not mine:
        return
    uid, token = ClaimUid(lease.holder.name), lease.token
    known = commit.claim(uid)
    if known is not None:
        # A second lease, which the lost record may never have learned of: both are released by
        # holder when the claim is buried without a token.
        mine, token = mine | set(known.units), NO_TOKEN
    for unit_id in mine:
        commit.put_unit(replace(commit.unit(unit_id), claim=uid))
    commit.put_claim(
        Claim(
            uid=uid,
            state=ClaimState.PREPARING,
            devices=_covering(registry, mine),
            units=tuple(sorted(mine)),
            token=token,
            boot_id=registry.boot_id,
            created_at=registry.clock.now(),
            error="the journal was lost while the claim had its lease",
        )
    )


def _covering(registry: Registry, units: Iterable[UnitId]) -> tuple[Uuid, ...]:
    """The fewest devices that are made of exactly these units."""
    left, chosen = set(units), []
    for device in sorted(registry.devices.values(), key=lambda d: (-len(d.units), d.uuid)):
        if left.issuperset(device.units):
            chosen.append(device.uuid)
            left -= set(device.units)
    return tuple(chosen)


def remembered(unit: Unit, holder: Holder | None, *, now: float) -> Unit:
    """`unit` as the store has it: out of service where `holder` is a quarantine."""
    if holder is None:
        return unit
    detail = f"quarantined before this journal knew of it ({holder})"
    reason = reasons.make("operator", Source.OPERATOR, detail=detail, since=now)
    # Nobody of this journal has worked on it yet.
    change = Change(frozenset({Fact.WORKER_GONE}), frozenset({reason}))
    return unit_states.step(unit, Event.FAULT_SEEN, now=now, change=change)
