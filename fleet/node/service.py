"""The node service: the face of one node's devices (E1). Plain, thread-safe, without Ray or gRPC.

Mutating calls are idempotent: an order carries an operation id, a token and the node it is meant
for. Orders return at once; the work goes on in threads of this object and its result is kept in
the journal, to be read with `view`. Whoever hosts the service calls `tick` a few times a second.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet import errors, leases, lifecycle
from fleet.evidence.ledger import Ledger, LedgerHead
from fleet.journal.journal import OperationRow
from fleet.journal.lock import OwnerLock
from fleet.leases import Closure
from fleet.messages import (
    Acceptance,
    ClaimAnswer,
    ClaimOrder,
    DeviceResult,
    DeviceView,
    NodeView,
    Outcome,
    ScrubOrder,
)
from fleet.model import (
    ClaimUid,
    OperationId,
    Token,
)
from fleet.node import outcomes, recovery, sweep, viewing
from fleet.node.deciding import Decisions
from fleet.node.holding import Holding
from fleet.node.ports import TenantProof
from fleet.node.recovery import Recovery
from fleet.node.registry import Registry, Work
from fleet.node.tending import Cadence, Tending
from fleet.node.wiping import Wiper, WipeTask
from fleet.settings import WipePolicy
from fleet.stores.base import LeaseStore

BUDGET_S = 40.0
"""Time a claim call waits for its work: inside the kubelet's 45 s."""


@dataclass
class Parts:
    """What a node service is made of; built by `fleet.bootstrap` only."""

    registry: Registry
    recovery: Recovery
    wiper: Wiper
    holding: Holding
    sweep: sweep.Sweep
    tenants: TenantProof
    store: LeaseStore
    ledger: Ledger
    lock: OwnerLock
    policy: WipePolicy
    cadence: Cadence
    labels: Mapping[str, str] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()


class NodeService:
    """One node. Construction recovers; `close` gives the journal back."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._registry = parts.registry
        self._slots = threading.BoundedSemaphore(parts.cadence.max_parallel)
        self._draining = threading.Event()
        self._lock = threading.RLock()
        self._decisions = Decisions(parts.registry, stop_wait_s=parts.policy.kill_wait_s * 2)
        self._tending = Tending(
            parts.registry, parts.sweep, parts.tenants, parts.store, parts.cadence
        )
        self.incarnation = uuid.uuid4().hex
        self._registry.load()
        parts.recovery.run()
        self._follow()

    # --- reading ---

    def view(self, operations: Sequence[str] = ()) -> NodeView:
        """The node now, with the results of `operations` as far as they are finished."""
        registry = self._registry
        results = [self._recorded(OperationId(op)) for op in operations]
        return NodeView(
            node=registry.place.node,
            incarnation=self.incarnation,
            boot_id=registry.boot_id,
            at=registry.clock.now(),
            simulated=registry.backend.simulated,
            backend=registry.backend.kind,
            degraded=self._degraded(),
            devices=tuple(viewing.device(registry, d) for d in registry.devices.values()),
            results=tuple(result for result in results if result is not None),
            outbox=len(registry.journal.outbox()),
            labels=dict(self._parts.labels),
        )

    def head(self) -> LedgerHead:
        """The end of the ledger, for the coordinator to countersign."""
        return self._parts.ledger.head()

    def claims(self) -> Sequence[ClaimAnswer]:
        """Claim records on this node."""
        return [
            ClaimAnswer(uid=c.uid, state=c.state, devices=c.devices, spec=c.spec)
            for c in self._registry.journal.claims.values()
        ]

    def _recorded(self, op: OperationId) -> DeviceResult | None:
        row = self._registry.journal.operation(op)
        if row is None or row.result is None:
            return None
        return DeviceResult.model_validate(row.result)

    def _degraded(self) -> tuple[str, ...]:
        found = list(self._parts.troubles)
        if not self._registry.journal.epoch:
            found.append("no lease store was reachable yet: no order is accepted")
        return tuple(found)

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
        if self._draining.is_set():
            raise errors.NotOwner(f"node {registry.place.node} is handing over")
        op = OperationId(order.operation)
        with self._lock:
            if registry.journal.operation(op) is not None:
                return
            device = registry.device(order.device)
            if not self._follow():
                raise errors.StoreUnavailable(
                    f"node {registry.place.node} has a new journal and no store to adopt from"
                )
            leases.check_token(registry.units(device), token, registry.journal.epoch)
            now = registry.clock.now()
            request = order.model_dump(mode="json")
            with registry.commit() as commit:
                for unit in device.units:
                    commit.put_unit(lifecycle.raise_floor(commit.unit(unit), token))
                commit.put_operation(OperationRow(op, "scrub", device.uuid, request, None, now))
            work = Work(op, device, idle=False)
            task = WipeTask(work, order.wipe or self._parts.policy, token=token, run=order.run)
            self._begin(task)

    def _begin(self, task: WipeTask) -> None:
        name = f"wipe {task.device.name}"
        threading.Thread(target=self._work, args=(task,), name=name, daemon=True).start()

    def _work(self, task: WipeTask) -> None:
        registry, work = self._registry, task.work
        other = self._reserve(work)
        if other is not None:
            found = outcomes.of_error(
                errors.DeviceBusy(f"{work.device.name} is worked on by {other.operation}")
            )
            shown = outcomes.Shown(registry.place.node, registry.state(work.device))
            self._record(task, outcomes.result(work, shown, Outcome.BUSY, [found], None))
            return
        try:
            with self._slots:
                result = self._parts.wiper.perform(task)
            self._record(task, result)
        finally:
            registry.unreserve(work)

    def _reserve(self, work: Work) -> Work | None:
        """Reserve the device; idle cleaning gives way. Returns who has it otherwise."""
        other = self._registry.reserve(work)
        while other is not None and other.idle and not work.idle:
            other.cancel.set()
            other.done.wait(self._parts.policy.kill_wait_s * 2)
            other = self._registry.reserve(work)
        return other

    def _record(self, task: WipeTask, result: DeviceResult) -> None:
        if task.work.idle:
            return
        with self._registry.commit() as commit:
            commit.finish_operation(
                OperationId(task.work.operation),
                result.model_dump(mode="json"),
                self._registry.clock.now(),
            )

    def cancel(self, operations: Sequence[str]) -> None:
        """Stop the operations named; what is unknown or finished is left alone."""
        for work in self._registry.works():
            if work.operation in operations:
                work.cancel.set()

    # --- decisions of people ---

    def quarantine_add(self, device: str, *, detail: str, operator: str) -> DeviceView:
        """Put a device out of service until an operator decides. Raises `DeviceUnknown`."""
        return self._decisions.quarantine_add(device, detail=detail, operator=operator)

    def quarantine_clear(
        self, device: str, *, codes: Sequence[str] = (), operator: str
    ) -> DeviceView:
        """Clear reasons (all when no code is named); DIRTY when none is left, never CLEAN."""
        return self._decisions.quarantine_clear(device, codes=codes, operator=operator)

    def adopt(self, *, devices: Sequence[str] = (), operator: str) -> list[DeviceView]:
        """Record that HELD devices are free; they go DIRTY, never CLEAN."""
        return self._decisions.adopt(devices=devices, operator=operator)

    def follow_epoch(self, epoch: int, *, operator: str) -> None:
        """Follow a store's new epoch after `fleet store adopt`. Raises `EpochForeign` backwards."""
        self._decisions.follow_epoch(epoch, operator=operator)

    # --- claims ---

    def prepare(self, order: ClaimOrder, *, budget_s: float = BUDGET_S) -> ClaimAnswer:
        """Expose devices to a claim; see `fleet.node.holding`."""
        if not self._follow():
            raise errors.StoreUnavailable("the node has not adopted from a lease store yet")
        return self._parts.holding.prepare(order, budget_s=budget_s)

    def unprepare(self, uid: str, *, budget_s: float = BUDGET_S) -> ClaimAnswer:
        """Tear a claim down; unknown claims are success."""
        return self._parts.holding.unprepare(ClaimUid(uid), budget_s=budget_s)

    def abandon(self, uid: str, token: str, devices: Sequence[str]) -> Closure:
        """Close a token for a claim this node has no record of. Raises `IllegalTransition`."""
        units = [u for name in devices for u in self._registry.units(self._registry.device(name))]
        return self._parts.holding.abandon(ClaimUid(uid), Token.parse(token), units)

    # --- time ---

    def tick(self, now: float) -> None:
        """Everything that is due: adopt, prove free, sweep, clean idle devices, retest, drain."""
        if self._draining.is_set():
            return
        self._follow()
        self._parts.holding.resume()
        for device in self._tending.step(now):
            operation = OperationId(f"idle/{device.uuid}/{uuid.uuid4().hex[:8]}")
            self._begin(WipeTask(Work(operation, device, idle=True), self._parts.policy))

    def sweep(self) -> list[sweep.Seen]:
        """Read and judge every accelerator now."""
        return self._parts.sweep.run()

    def _follow(self) -> bool:
        try:
            recovery.adopt(self._registry, self._parts.store)
        except errors.StoreUnavailable:
            return bool(self._registry.journal.epoch)
        return True

    # --- end ---

    def drain(self, *, wait_s: float = 10.0) -> None:
        """Accept nothing more; cancel and join what is in work. Its units go DIRTY."""
        self._draining.set()
        for flight in self._parts.holding.flights.flying():
            flight.stop()
        for work in self._registry.works():
            work.cancel.set()
            work.done.wait(wait_s)
        for flight in self._parts.holding.flights.flying():
            flight.done.wait(wait_s)

    def close(self) -> None:
        """Drain and give the journal back. The object is of no use afterwards."""
        self.drain()
        self._registry.journal.close()
        self._parts.lock.release()
