"""The node service: the face of one node's devices (E1). Plain, thread-safe, without Ray or gRPC.

Mutating calls are idempotent: an order carries an operation id, a token and the node it is meant
for. Orders return at once; the work goes on in threads of this object and its result is kept in
the journal, to be read with `view`. Whoever hosts the service calls `tick` a few times a second.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress

from fleet.core import errors
from fleet.core.leases import Closure
from fleet.core.messages import (
    Acceptance,
    ClaimAnswer,
    ClaimOrder,
    DeviceResult,
    DeviceView,
    NodeView,
    Outcome,
    Owed,
    Published,
    ScrubOrder,
    Swept,
    TeardownOrder,
)
from fleet.core.model import ClaimUid, OperationId, Token
from fleet.evidence.ledger import LedgerHead
from fleet.node import lease_check, outbox, outcomes, recovery, retirement, wipe_totals
from fleet.node import view as node_view
from fleet.node.condition import Condition
from fleet.node.journal.journal import OperationRow
from fleet.node.key import NodeKey
from fleet.node.lost import Lost
from fleet.node.newcomers import Newcomers
from fleet.node.occupants import Occupants
from fleet.node.operator import Decisions
from fleet.node.partition_mode import Dividing
from fleet.node.parts import Parts
from fleet.node.registry import Work
from fleet.node.tasks import WipeTask, refuse_other
from fleet.node.upkeep import Tending
from fleet.rpc.node_api import BUDGET_S, NodeApi, teardown


class NodeService(NodeApi):
    """One node. Construction recovers; `close` gives the journal back."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._registry = parts.registry
        self._draining = threading.Event()
        self._tasks: dict[OperationId, tuple[WipeTask, threading.Thread]] = {}
        self._unrecorded: dict[OperationId, DeviceResult] = {}
        self._condition = Condition(parts)
        self._lost = Lost(parts.registry, parts.recovery.specs, parts.store, parts.holding.flights)
        self._lock = threading.RLock()
        health = parts.sweep
        self._decisions = Decisions(
            parts.registry,
            stop_wait_s=parts.policy.kill_wait_s * 2,
            looked_at=lambda: health.log_place or health.validator.log_place(),
        )
        self._dividing = Dividing(
            parts.registry,
            parts.sweep.validator,
            parts.tenants,
            stop_wait_s=parts.policy.kill_wait_s * 2,
        )
        self._occupants = Occupants(parts.registry, parts.tenants, parts.sweep.validator)
        asking = Newcomers(parts.registry, parts.store)
        shared = (parts.registry, parts.sweep, parts.tenants, parts.outbox, asking)
        self._tending = Tending(*shared, parts.cadence, parts.lingering, self._occupants)
        self.incarnation = uuid.uuid4().hex
        if parts.question is None:
            self._registry.load()
        else:
            self._registry.begin(parts.question)
        parts.recovery.run()
        parts.holding.unbuilt.update(parts.recovery.unbuilt)

    def begin(self) -> None:
        """Ask the lease store what must be known of it; callers are let in before that.

        A store may be far away, and nothing that is torn down here waits for it.
        """
        self._follow()
        self._condition.step(self._registry.clock.now())

    # --- reading ---

    def view(self, operations: Sequence[str] = ()) -> NodeView:
        """The node now, with the results of `operations` as far as they are finished."""
        registry, health = self._registry, self._parts.sweep
        results = [self._recorded(OperationId(op)) for op in operations]
        releases, owed = outbox.shown(registry)
        return NodeView(
            node=registry.place.node,
            incarnation=self.incarnation,
            boot_id=registry.boot_id,
            at=registry.clock.now(),
            simulated=registry.backend.simulated,
            backend=registry.backend.kind,
            epoch=registry.journal.epoch,
            blocked=self._condition.blocked(),
            degraded=self._condition.degraded(),
            notes=self._condition.notes(),
            devices=node_view.devices(registry, health, self._occupants),
            gone=node_view.gone(registry),
            lost=node_view.lost(registry),
            results=tuple(result for result in results if result is not None),
            outbox=releases,
            claims=node_view.claims(registry),
            owed=owed,
            retired=retirement.retired(registry),
            replication=self._parts.copied(),
            labels=dict(self._parts.labels),
            units=node_view.units(registry),
            tally=wipe_totals.read(registry.journal.meta),
            refused=registry.fence.refused(),
            log_losses=health.validator.losses.count,
        )

    def look(self) -> None:
        """Read and judge every device now."""
        self._parts.sweep.run()
        self._occupants.look()

    def head(self) -> LedgerHead:
        """The end of the ledger, for the coordinator to countersign."""
        return self._parts.ledger.head()

    def claims(self) -> Sequence[ClaimAnswer]:
        """Claim records on this node."""
        return [self._parts.holding.answer(c) for c in self._registry.journal.claims.values()]

    def _recorded(self, op: OperationId) -> DeviceResult | None:
        row = self._registry.journal.operation(op)
        if row is None or row.result is None:
            return None
        return DeviceResult.model_validate(row.result)

    # --- scrubbing ---

    def scrub(self, orders: Sequence[ScrubOrder]) -> list[Acceptance]:
        """Accept or refuse each order on its own; accepted work starts when a slot is free."""
        return [self._accept(order) for order in orders]

    def _accept(self, order: ScrubOrder) -> Acceptance:
        try:
            self._order(order)
        except errors.FleetError as error:
            shown = {name: str(value) for name, value in error.fields.items()}
            return Acceptance(
                operation=order.operation,
                accepted=False,
                error=str(error),
                kind=type(error).__name__,
                fields=shown,
            )
        return Acceptance(operation=order.operation, accepted=True)

    def _order(self, order: ScrubOrder) -> None:
        registry, token = self._registry, Token.parse(order.token)
        if order.node != registry.place.node:
            raise errors.WrongNode(
                f"order {order.operation} is for node {order.node}, this is {registry.place.node}"
            )
        op = OperationId(order.operation)
        with self._lock:
            self._serving()
            request = order.model_dump(mode="json")
            known = registry.journal.operation(op)
            if known is not None:
                refuse_other(op, known.request, request)
                return
            device = registry.device(order.device)
            registry.require_wiping()
            self._adopted()
            registry.fence.check(registry.units(device), token, registry.journal.epoch)
            with suppress(errors.StoreUnavailable):  # a wipe needs no lease; an exposure asks again
                lease_check.issued(self._parts.store, token)
            now = registry.clock.now()
            with registry.commit() as commit:
                commit.put_operation(OperationRow(op, "scrub", device.uuid, request, None, now))
            work = Work(op, device, idle=False, token=token)
            own, asked = self._parts.policy, order.wipe
            if order.run:  # people's word about their devices; a claim's is about itself only
                own, asked = own.tightened_by(asked), None
            task = WipeTask(work, own, token=token, run=order.run, demand=asked)
            self._begin(task)

    def _begin(self, task: WipeTask) -> None:
        """Start the thread of a task. Raises `NotOwner` once draining."""
        name = f"wipe {task.device.name}"
        thread = threading.Thread(target=self._work, args=(task,), name=name, daemon=True)
        with self._lock:
            self._serving()
            self._tasks[task.work.operation] = (task, thread)
            try:
                thread.start()
            except RuntimeError as error:
                del self._tasks[task.work.operation]
                raise errors.BackendFailed(f"no thread for {name}: {error}") from error

    def _work(self, task: WipeTask) -> None:
        work, operation = task.work, task.work.operation
        try:
            try:
                result = self._performed(task)
            finally:
                self._registry.unreserve(work)
            if not work.idle:
                with self._lock:
                    self._unrecorded[operation] = result
                self._record(operation)
        finally:
            with self._lock:
                del self._tasks[operation]

    def _performed(self, task: WipeTask) -> DeviceResult:
        work = task.work
        wait_s = self._parts.policy.kill_wait_s * 2
        other = self._registry.reserve_over_idle(work, wait_s=wait_s)
        if other is None:
            return self._parts.wiper.perform(task)
        busy = errors.DeviceBusy(f"{work.device.name} is worked on by {other.operation}")
        return outcomes.Teller(self._registry).result(work, Outcome.BUSY, [outcomes.of_error(busy)])

    def _record(self, operation: OperationId) -> None:
        """Keep the answer of an operation; one that cannot be written now is tried again."""
        with self._lock:
            result = self._unrecorded.get(operation)
        if result is None:
            return  # its own thread and the step met, and the other has kept it
        now = self._registry.clock.now()
        with suppress(errors.FleetError):
            with self._registry.commit() as commit:
                commit.finish_operation(operation, result.model_dump(mode="json"), now)
            with self._lock:
                self._unrecorded.pop(operation, None)

    def _settle(self) -> None:
        """Nothing is left in work or without an answer that nobody works on."""
        for operation in list(self._unrecorded):
            self._record(operation)
        with self._lock:
            self._parts.recovery.settle({*self._tasks, *self._unrecorded})

    def cancel(self, operations: Sequence[str]) -> None:
        """Stop the operations named; what is unknown or finished is left alone."""
        with self._lock:
            tasks = [task.work for task, _ in self._tasks.values()]
        for work in [*tasks, *self._registry.works()]:
            if work.operation in operations:
                work.cancel.set()

    # --- decisions of people ---

    def quarantine_add(
        self, device: str, *, detail: str, operator: str, codes: Sequence[str] = ()
    ) -> DeviceView:
        """Put a device out of service, until an operator decides or as `codes` say."""
        return self._decisions.quarantine(device, detail=detail, operator=operator, codes=codes)

    def quarantine_clear(
        self, device: str, *, codes: Sequence[str] = (), operator: str, detail: str = ""
    ) -> DeviceView:
        """Clear reasons (all when no code is named); DIRTY when none is left, never CLEAN."""
        return self._decisions.quarantine_clear(
            device, codes=codes, operator=operator, detail=detail
        )

    def adopt(self, *, devices: Sequence[str] = (), operator: str) -> list[DeviceView]:
        """Record that HELD devices are free; they go DIRTY, never CLEAN. Retired ones come back."""
        retirement.restore(self._registry, devices, operator=operator)
        return self._decisions.adopt(devices=devices, operator=operator)

    def retire(self, device: str, *, detail: str, operator: str) -> str:
        """Take a device out of the slices for good; its UUID. See `fleet.node.retirement`."""
        return retirement.retire(self._decisions, device, detail=detail, operator=operator)

    def partition(self, device: str, *, on: bool, operator: str) -> DeviceView:
        """Switch partitioning of a free accelerator; see `fleet.node.partition_mode`."""
        self._serving()
        self._registry.require_wiping()
        found = self._dividing.switch(device, on=on, operator=operator)
        return node_view.device(self._registry, found)

    def follow_epoch(self, epoch: int, *, operator: str) -> None:
        """Follow a store's new epoch after `fleet store adopt`. Raises `EpochForeign` backwards."""
        self._adopted()  # a new journal takes over what the store knows, or it would never
        self._decisions.follow_epoch(epoch, operator=operator)

    # --- claims ---

    def prepare(self, order: ClaimOrder, *, budget_s: float = BUDGET_S) -> ClaimAnswer:
        """Expose devices to a claim; see `fleet.node.claims`."""
        self._serving()
        self._registry.require_wiping()
        self._adopted()
        try:
            return self._parts.holding.prepare(order, budget_s=budget_s)
        except errors.SpecUnavailable:
            self._condition.unwritten()
            raise

    def unprepare(self, order: TeardownOrder | str, *, budget_s: float = BUDGET_S) -> ClaimAnswer:
        """Tear a claim down; unknown claims are success."""
        self._serving()
        order = teardown(order)
        if order.unheld:
            self._parts.holding.unhold(ClaimUid(order.uid))
        return self._parts.holding.unprepare(
            ClaimUid(order.uid),
            budget_s=budget_s,
            consumers=order.consumers,
            reserved=order.reserved,
        )

    def published(self, published: Published) -> None:
        """What the publisher just read back from the node's slices (promise 6)."""
        self._parts.holding.teardown.visibility.published(published)
        self._condition.lacks(published.missing)

    def owe(self, owed: Owed) -> None:
        """Our marks may be on a claim that no burial owes: they are to be taken off."""
        self._serving()
        self._parts.outbox.owe(owed)

    def paid(self, uids: Sequence[str]) -> None:
        """These claims were let go at the API: they are no longer owed."""
        self._serving()
        self._parts.outbox.paid(uids)

    def abandon(self, uid: str, token: str, devices: Sequence[str]) -> Closure:
        """Close a token for a claim this node has no record of; see `Holding.abandon`."""
        self._serving()
        self._adopted()
        asked = Token.parse(token)
        lease_check.issued(self._parts.store, asked)
        return self._parts.holding.abandon(ClaimUid(uid), asked, devices)

    # --- time ---

    def tick(self, now: float) -> None:
        """Everything that is due: adopt, settle, prove free, sweep, clean idle devices, drain.

        Raises only what keeps the node from working at all (its journal cannot be written).
        """
        if self._draining.is_set():
            return
        key = self._parts.certifier.key
        signs = isinstance(key, NodeKey) and key.retry()
        if self._registry.retry() or signs:
            self._parts.holding.hurry()
        followed = self._follow()
        self._condition.step(now)
        self._settle()
        self._parts.copy(now)
        if not followed:
            return  # nothing is known of holders yet: nothing is freed, wiped or given back
        with suppress(errors.NotOwner):
            self._parts.holding.resume(now)
            if not self._registry.works() and self._registry.hindrance is None:
                self._parts.wiper.keep_ready()
            for device in self._tending.step(now):
                operation = OperationId(f"idle/{device.uuid}/{uuid.uuid4().hex[:8]}")
                self._begin(WipeTask(Work(operation, device, idle=True), self._parts.policy))

    def sweep(self) -> tuple[Swept, ...]:
        """Read and judge every accelerator now."""
        self._serving()
        seen = self._parts.sweep.run()
        self._occupants.look()
        return tuple(node_view.swept(one) for one in seen)

    def _serving(self) -> None:
        """Raises `NotOwner` once the node is handing over."""
        if self._draining.is_set():
            raise errors.NotOwner(f"node {self._registry.place.node} is handing over")

    def _adopted(self) -> None:
        """Raises `StoreUnavailable` while no act can be accepted, because nothing is known yet."""
        if not self._follow():
            raise errors.StoreUnavailable(
                f"node {self._registry.place.node} has a new journal and no store to adopt from:"
                f" {self._condition.unadopted}"
            )

    def _follow(self) -> bool:
        try:
            recovery.adopt(self._registry, self._parts.store)
            self._lost.step(self._registry.clock.now())
        except errors.FleetError as error:
            self._condition.unadopted = error.detail
            return False
        return True

    # --- end ---

    def drain(self, *, wait_s: float = 10.0) -> None:
        """Accept nothing more; cancel and join what is in work. Its units go DIRTY."""
        clock = self._registry.clock
        deadline = clock.monotonic() + wait_s

        def left_s() -> float:
            return max(0.0, deadline - clock.monotonic())

        with self._lock:
            self._draining.set()
            tasks = list(self._tasks.values())
        self._parts.sweep.stop.set()
        flying = self._parts.holding.flights.close()
        for task, _ in tasks:
            task.work.cancel.set()
        for _, thread in tasks:
            thread.join(left_s())
        for flight in flying:
            flight.done.wait(left_s())
        self._tending.join(left_s())

    def close(self) -> None:
        """Drain and give the journal back. The object is of no use afterwards.

        Whatever did not end in time finds worker, evidence and journal closed, in this order: it
        can neither write memory nor claim anything once the next owner is let in.
        """
        self.drain()
        self._parts.close()
