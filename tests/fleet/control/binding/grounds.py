"""A small cluster where claims are allocated by ourselves: API server and leases in memory, nodes
that keep strictly to the port, and what a scheduler and kubelet would do, by hand.

Waiting passes at once: the clock is moved by it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.control.binding import pledge
from fleet.control.binding.allocator import Allocator, AllocatorTerms
from fleet.control.binding.claim_leases import ClaimLeases
from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.leases import ClosedBy, Closure
from fleet.core.messages import Acceptance, DeviceResult, DeviceView, NodeView, Outcome, ScrubOrder
from fleet.core.model import NO_TOKEN, Holder, HolderKind, Lease, NodeName, Token, UnitId
from fleet.core.profiles import Profile
from fleet.core.settings import WipePolicy
from fleet.kube.base import CLAIMS, CLASSES, SLICES, Name, Object, uid_of
from fleet.kube.claim import ClaimReading, read
from fleet.kube.marks import Marks
from fleet.rpc.node_api import NodeApi
from fleet.rpc.nodes import Abandonment
from fleet.stores.base import Release
from tests.fleet.control.binding.scenes import (
    DRIVER,
    NOW,
    SPACE,
    claim,
    device,
    device_class,
    entry,
    reason,
    request,
    result,
    slice_of,
)
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine
from tests.lab.stores import MemoryLeaseStore

MARKS = Marks(DRIVER)
POD: Object = {"resource": "pods", "name": "p", "uid": "pod-uid"}


@dataclass
class Machine:
    """One accelerator of a node as its journal has it."""

    seen: DeviceView
    certified_under: Token = NO_TOKEN
    floor: Token = NO_TOKEN
    closed: bool = False

    def accepts(self, token: Token) -> bool:
        """The node's fence."""
        return token > self.floor or (token == self.floor and not self.closed)


@dataclass
class Leases:
    """The coordinator's leases over a store."""

    store: MemoryLeaseStore

    def acquire(self, requests: Sequence[object]) -> list[Lease | errors.FleetError]:
        return self.store.acquire(requests)  # type: ignore[arg-type]

    def release_all(self, releases: Sequence[Release]) -> list[bool | errors.FleetError]:
        return self.store.release(releases)

    def leases(self, holder: Holder | None = None) -> Sequence[Lease]:
        return self.store.leases(holder)

    def held_by(self, holders: Collection[Holder]) -> Sequence[Lease]:
        return self.store.held_by(holders)


@dataclass
class Nodes:
    """Nodes of accelerators; a wipe ends when its result is asked for."""

    clock: ManualClock
    machines: dict[str, dict[str, Machine]] = field(default_factory=dict)
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    """What the next wipes of a device come to; CERTIFIED when nothing is said."""
    spoiled: dict[str, dict[str, object]] = field(default_factory=dict)
    """What has become of a device by the time its result is told."""
    records: set[tuple[str, str]] = field(default_factory=set)
    """Node and claim UID of what is exposed."""
    silent: set[str] = field(default_factory=set)
    lost: int = 0
    """So many answers to `scrub` are lost on their way back."""
    meanwhile: Callable[[], None] = lambda: None
    orders: dict[str, ScrubOrder] = field(default_factory=dict)
    results: dict[str, DeviceResult] = field(default_factory=dict)
    abandoned: list[Abandonment] = field(default_factory=list)

    def names(self) -> Collection[str]:
        return tuple(self.machines)

    def views(
        self, asked: Mapping[str, Sequence[str]]
    ) -> Mapping[str, NodeView | errors.FleetError]:
        self.meanwhile()
        return {node: self._view(node, operations) for node, operations in asked.items()}

    def _view(self, node: str, operations: Sequence[str]) -> NodeView | errors.FleetError:
        if node in self.silent or node not in self.machines:
            return errors.NotOwner(f"nobody answers for {node}")
        for operation in operations:
            if operation in self.orders and operation not in self.results:
                self._finish(self.orders[operation])
        now = self.clock.now()
        return NodeView(
            node=node,
            incarnation="i",
            boot_id="b",
            at=now,
            simulated=True,
            backend="simulated",
            devices=tuple(self._shown(one, now) for one in self.machines[node].values()),
            results=tuple(self.results[one] for one in operations if one in self.results),
        )

    def _shown(self, one: Machine, now: float) -> DeviceView:
        shown = {
            "checked_at": one.seen.checked_at and now,
            "floor": str(one.floor),
            "closed": one.closed,
            "certified_under": str(one.certified_under),
        }
        return one.seen.model_copy(update=shown)

    def _finish(self, order: ScrubOrder) -> None:
        machine = self.machines[order.node][order.device]
        left = self.outcomes.get(order.device, [])
        outcome = left.pop(0) if left else Outcome.CERTIFIED
        token = Token.parse(order.token)
        if not machine.accepts(token):
            outcome = Outcome.REFUSED
        certificate = f"sha256:{order.operation}" if outcome is Outcome.CERTIFIED else ""
        changed: dict[str, object] = {"certificate": certificate}
        if outcome in (Outcome.QUARANTINED, Outcome.FAILED):
            changed |= {"state": "QUARANTINED", "reasons": (reason("wipe-failed"),)}
        if outcome is Outcome.CERTIFIED:
            changed |= {"state": "CLEAN"}
            machine.certified_under = token
        changed |= self.spoiled.get(order.device, {})
        machine.seen = machine.seen.model_copy(update=changed)
        self.results[order.operation] = DeviceResult(
            operation=order.operation,
            node=order.node,
            device=machine.seen.name,
            uuid=order.device,
            outcome=outcome,
            state=machine.seen.state,
            certificate=certificate,
        )

    def scrub(
        self, orders: Mapping[str, Sequence[ScrubOrder]]
    ) -> Mapping[str, Sequence[Acceptance] | errors.FleetError]:
        found: dict[str, Sequence[Acceptance] | errors.FleetError] = {}
        for node, asked in orders.items():
            if node in self.silent:
                found[node] = errors.NotOwner(f"nobody answers for {node}")
                continue
            found[node] = [self._accept(order) for order in asked]
            if self.lost:
                self.lost -= 1
                found[node] = errors.NotOwner("the answer was lost")
        return found

    def _accept(self, order: ScrubOrder) -> Acceptance:
        machine = self.machines[order.node][order.device]
        known = self.orders.get(order.operation)
        if known is None:
            token = Token.parse(order.token)
            if not machine.accepts(token):
                return Acceptance(
                    operation=order.operation,
                    accepted=False,
                    error=f"token {token} is older than {machine.floor}",
                    kind="TokenStale",
                )
            machine.floor, machine.closed = token, False
            machine.seen = machine.seen.model_copy(update={"state": "WIPING"})
            self.orders[order.operation] = order
        assert known in (None, order)
        return Acceptance(operation=order.operation, accepted=True)

    def abandon(self, asked: Sequence[Abandonment]) -> Sequence[Closure | errors.FleetError]:
        return [self._abandon(one) for one in asked]

    def _abandon(self, one: Abandonment) -> Closure | errors.FleetError:
        if one.node in self.silent:
            return errors.NotOwner(f"nobody answers for {one.node}")
        if (one.node, one.uid) in self.records:
            return errors.IllegalTransition(f"claim {one.uid} has a record")
        self.abandoned.append(one)
        token = Token.parse(one.token)
        for name in one.devices:
            for uuid, machine in self.machines[one.node].items():
                if name in (uuid, *machine.seen.units) and machine.accepts(token):
                    machine.floor, machine.closed = token, True
        holder = Holder(HolderKind.CLAIM, one.uid)
        return Closure(holder, token, NodeName(one.node), ClosedBy.ABANDON)

    def node(self, name: str) -> NodeApi:
        raise NotImplementedError(name)


class Ground:
    """Nodes `n1`, ... of so many devices each, published; everything CLEAN."""

    def __init__(self, *counts: int, profile: Profile = Profile.STRICT) -> None:
        self.clock = ManualClock(NOW)
        self.engine = Engine()
        self.cluster = MemoryCluster(self.engine)
        self.store = MemoryLeaseStore(self.clock)
        self.store.init()
        self.nodes = Nodes(self.clock)
        self.cluster.create(CLASSES, device_class())
        for number, count in enumerate(counts, 1):
            node = f"n{number}"
            found = [device(f"gpu-{index}", node=node) for index in range(count)]
            self.nodes.machines[node] = {one.uuid: Machine(one) for one in found}
            published = slice_of(*(entry(one, profile=profile) for one in found), node=node)
            self.cluster.create(SLICES, published)

    def allocator(self, **terms: float) -> Allocator:
        """A process that allocates; each has its own connection, with its own faults."""
        self.connection = MemoryCluster(self.engine)
        return Allocator(
            self.connection,
            ClaimLeases(Leases(self.store), self.nodes),
            self.nodes,
            terms=AllocatorTerms(MARKS, 60.0, WipePolicy(), **terms),  # type: ignore[arg-type]
            clock=self.clock,
            sleep=self.clock.advance,
        )

    def create(
        self,
        name: str = "c",
        *requests: Object,
        finalizers: Sequence[str] = (),
        config: Sequence[Object] = (),
    ) -> Name:
        """A claim without an allocation; `config`: opaque parameters for our driver."""
        given = [{"opaque": {"driver": DRIVER, "parameters": one}} for one in config]
        body = claim(*(requests or (request(),)), name=name, config=given)
        body["metadata"]["finalizers"] = list(finalizers)
        self.cluster.create(CLAIMS, body)
        return Name(name, SPACE)

    def reading(self, name: Name) -> ClaimReading:
        """The claim now."""
        return read(self.cluster.get(CLAIMS, name), MARKS)

    def change(self, name: Name, **status: object) -> None:
        """A write of somebody else to the claim's status; with a fresh reading."""
        found = self.cluster.get(CLAIMS, name)
        found["status"] = {**found.get("status", {}), **status}
        self.cluster.replace(CLAIMS, found, subresource="status")

    def annotate(self, name: Name, text: str) -> None:
        """A write that has nothing to do with us."""
        found = self.cluster.get(CLAIMS, name)
        found["metadata"].setdefault("annotations", {})["x.example.com/note"] = text
        self.cluster.replace(CLAIMS, found)

    def schedule(self, name: Name, device_name: str, *, pool: str = "n1", pod: bool = True) -> None:
        """A scheduler gives the claim a device it believes free, for a pod."""
        given: Object = {
            "devices": {"results": [result(device_name, pool=pool)]},
            "allocationTimestamp": "2023-11-14T22:13:20Z",
        }
        self.change(name, allocation=given, **({"reservedFor": [POD]} if pod else {}))

    def lease(self, name: Name) -> Lease | None:
        """The lease of the claim."""
        uid = uid_of(self.cluster.get(CLAIMS, name))
        found = self.store.leases(Holder(HolderKind.CLAIM, uid))
        return found[0] if found else None

    def exposable(self, name: Name) -> Iterator[str]:
        """Devices that their node would expose to the claim now, once a pod is there."""
        reading = self.reading(name)
        lease = self.lease(name)
        for one in reading.holding:
            machine = self.nodes.machines[one.node][f"GPU-{one.node}-{one.device}"]
            mine = lease is not None and UnitId(machine.seen.units[0]) in lease.units
            if lease is None or not mine or not machine.accepts(lease.token):
                continue
            if machine.certified_under == lease.token and machine.seen.state == "CLEAN":
                yield f"{one.node}/{one.device}"

    def is_untouched(self, name: Name, before: Object) -> bool:
        """Whether nothing of ours is left of an attempt: claim, pledge, leases."""
        found = self.cluster.get(CLAIMS, name)
        return (
            all(found.get(part) == before.get(part) for part in ("spec", "status"))
            and found["metadata"].get("finalizers") == before["metadata"].get("finalizers")
            and pledge.read(found, MARKS) is None
            and not self.store.leases(Holder(HolderKind.CLAIM, uid_of(found)))
        )
