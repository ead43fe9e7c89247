"""A small cluster to look through: an API server, a store, nodes that fence by token."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet.control.binding.claim_facts import Rules
from fleet.control.binding.claim_leases import ClaimLeases
from fleet.control.binding.decisions import PodFact
from fleet.control.binding.object_cache import Cached
from fleet.control.binding.service import Binder
from fleet.control.binding.shard import Charge
from fleet.control.binding.surroundings import BinderTerms, Surroundings
from fleet.control.binding.visibility import Visible
from fleet.control.coordinator import Coordinator
from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.labels import selector
from fleet.core.leases import AcquireRequest, ClosedBy, Closure
from fleet.core.messages import (
    Acceptance,
    ClaimBrief,
    DeviceResult,
    DeviceView,
    NodeView,
    Outcome,
    Owed,
    ReasonView,
    ScrubOrder,
)
from fleet.core.model import Holder, HolderKind, Lease, NodeName, Token
from fleet.core.profiles import Profile
from fleet.core.settings import Unexposed, WipePolicy
from fleet.evidence.ledger import LedgerHead
from fleet.kube import claim_bodies
from fleet.kube.base import CLAIMS, NODES, PODS, SLICES, Name, Object, PatchKind, uid_of
from fleet.kube.claim import ClaimReading, read
from fleet.kube.claim_holds import Holds
from fleet.kube.marks import Marks
from fleet.plugin.slices.device_attributes import Terms, render
from fleet.rpc.node_api import NodeApi
from fleet.rpc.nodes import Abandonment
from fleet.stores.base import Release
from tests.fleet.control.binding import scenes
from tests.lab.apiserver.access import Access, Caller, Rule
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine
from tests.lab.stores import MemoryLeaseStore, MemoryRunStore

DRIVER, SPACE, NOW = scenes.DRIVER, scenes.SPACE, scenes.NOW
MARKS = Marks(DRIVER)
BUILTIN = "resource.kubernetes.io/delete-protection"
CONDITIONS = [MARKS.sanitized, MARKS.healthy]
STEP_S = 0.25


def terms(**changes: object) -> BinderTerms:
    """What is bound by; `changes` replace fields."""
    fields: dict[str, object] = {
        "rules": Rules(MARKS, binding_timeout_s=600.0, fresh_s=60.0, admins=frozenset({SPACE})),
        "hold_event_after_s": 900.0,
        "unexposed": Unexposed.TAINT,
        "wipe": WipePolicy(),
    }
    return BinderTerms(**(fields | changes))  # type: ignore[arg-type]


class NoSigner:
    """Countersigns nothing."""

    def sign(self, heads: Mapping[NodeName, LedgerHead]) -> None:
        """Nothing."""


@dataclass
class Told:
    """Events, as they were told."""

    claims: list[tuple[str, str]] = field(default_factory=list)
    pods: list[tuple[str, str]] = field(default_factory=list)
    waits: list[tuple[str, str]] = field(default_factory=list)
    broken: bool = False
    """Whether nobody can be told about a claim."""

    def claim(self, reading: ClaimReading, reason: str, message: str) -> None:
        """About a claim."""
        self.claims.append((str(reading.name), f"{reason}: {message}"))
        if self.broken:
            raise errors.ApiUnavailable("no events now")

    def waiting(self, reading: ClaimReading, why: str) -> None:
        """About a claim, and the pods it is for."""
        self.waits.append((str(reading.name), why))
        if self.broken:
            raise errors.ApiUnavailable("no events now")

    def pod(self, namespace: str, pod: PodFact, reason: str, message: str) -> None:
        """About a pod."""
        self.pods.append((f"{namespace}/{pod.name}", f"{reason}: {message}"))


@dataclass
class Node:
    """One node's journal: devices, claim records, operations."""

    name: str
    devices: dict[str, DeviceView]
    claims: dict[str, ClaimBrief] = field(default_factory=dict)
    owed: dict[str, Owed] = field(default_factory=dict)
    working: dict[str, ScrubOrder] = field(default_factory=dict)
    results: dict[str, DeviceResult] = field(default_factory=dict)
    lost: dict[str, DeviceView] = field(default_factory=dict)
    """Devices that the journal knows and the driver does not show any more."""
    incarnation: int = 1

    def uuids(self, name: str) -> list[str]:
        """The device that is, or has, `name`: its UUID or the id of a unit."""
        known = {**self.lost, **self.devices}.items()
        return [uuid for uuid, device in known if name == uuid or name in device.units]

    def change(self, uuid: str, **fields: object) -> None:
        """Set fields of a device."""
        there = self.devices if uuid in self.devices else self.lost
        there[uuid] = there[uuid].model_copy(update=fields)


class Nodes:
    """All nodes: idempotent by operation, fenced by token; a claim with a record is not abandoned.

    Work ends when `work` is called, with the outcome in `outcomes` (by UUID) or CERTIFIED.
    """

    def __init__(self, clock: ManualClock, nodes: Iterable[Node]) -> None:
        self.clock = clock
        self.by_name = {node.name: node for node in nodes}
        self.silent: set[str] = set()
        self.outcomes: dict[str, Outcome] = {}
        self.orders: list[ScrubOrder] = []
        self.looks: list[Mapping[str, Sequence[str]]] = []
        self.abandoned: list[Abandonment] = []
        self.batches: list[int] = []
        """How much each call to abandon asked for."""
        self.chatter: tuple[Acceptance, ...] = ()
        """Answers to orders that were never given."""
        self.busy = 0
        """Quarantines that are refused for the moment."""
        self._certificates = 0

    def names(self) -> Collection[str]:
        """Nodes that exist."""
        return tuple(self.by_name)

    def views(
        self, asked: Mapping[str, Sequence[str]]
    ) -> Mapping[str, NodeView | errors.FleetError]:
        """As real nodes."""
        self.looks.append(asked)
        return {name: self._view(name, operations) for name, operations in asked.items()}

    def _view(self, name: str, operations: Sequence[str]) -> NodeView | errors.FleetError:
        node = self.by_name.get(name)
        if node is None or name in self.silent:
            return errors.NotOwner(f"node {name} does not answer")
        return scenes.view(
            *node.devices.values(),
            node=name,
            incarnation=str(node.incarnation),
            at=self.clock.now(),
            results=tuple(node.results[op] for op in operations if op in node.results),
            claims=tuple(node.claims.values()),
            owed=tuple(node.owed.values()),
            gone=tuple(unit for device in node.lost.values() for unit in device.units),
        )

    def scrub(
        self, orders: Mapping[str, Sequence[ScrubOrder]]
    ) -> Mapping[str, Sequence[Acceptance] | errors.FleetError]:
        """As real nodes."""
        found: dict[str, Sequence[Acceptance] | errors.FleetError] = {}
        for name, asked in orders.items():
            if name in self.silent:
                found[name] = errors.NotOwner(f"node {name} does not answer")
            else:
                answers = [self._order(self.by_name[name], order) for order in asked]
                found[name] = [*self.chatter, *answers]
        return found

    def _order(self, node: Node, order: ScrubOrder) -> Acceptance:
        self.orders.append(order)
        assert order.node == node.name
        if order.operation in node.working or order.operation in node.results:
            return Acceptance(operation=order.operation, accepted=True)
        device, token = node.devices[order.device], Token.parse(order.token)
        floor = Token.parse(device.floor)
        why = "stale" if token < floor or (token == floor and device.closed) else ""
        why = why or ("held" if device.claim or device.state == "IN_USE" else "")
        why = why or ("busy" if device.state == "WIPING" else "")
        if why:
            kind = "TokenStale" if why == "stale" else "DeviceBusy"
            return Acceptance(operation=order.operation, accepted=False, error=why, kind=kind)
        node.working[order.operation] = order
        node.change(
            order.device, state="WIPING", operation=order.operation, floor=order.token,
            closed=False, certificate="", certified_under="0.0",
        )  # fmt: skip
        return Acceptance(operation=order.operation, accepted=True)

    def work(self) -> None:
        """End every wipe."""
        for node in self.by_name.values():
            for operation in list(node.working):
                self._end(node, operation)

    def _end(self, node: Node, operation: str, outcome: Outcome | None = None) -> None:
        order = node.working.pop(operation)
        uuid = order.device
        outcome = outcome or self.outcomes.get(uuid, Outcome.CERTIFIED)
        after: dict[str, object] = {"state": "DIRTY", "operation": ""}
        if outcome is Outcome.CERTIFIED:
            after |= {"state": "CLEAN", "certificate": self.certificate()}
            after |= {"certified_under": order.token, "checked_at": self.clock.now()}
        if outcome is Outcome.QUARANTINED:
            after |= {"state": "QUARANTINED", "reasons": (scenes.reason(),)}
        node.change(uuid, **after)
        device = {**node.lost, **node.devices}[uuid]
        node.results[operation] = DeviceResult(
            operation=operation, node=node.name, device=device.name, uuid=uuid, outcome=outcome,
            state=device.state, certificate=device.certificate,
        )  # fmt: skip

    def certificate(self) -> str:
        """A new digest."""
        self._certificates += 1
        return f"sha256:{self._certificates:064x}"

    def abandon(self, asked: Sequence[Abandonment]) -> Sequence[Closure | errors.FleetError]:
        """As real nodes."""
        self.batches.append(len(asked))
        return [self._abandon(one) for one in asked]

    def _abandon(self, asked: Abandonment) -> Closure | errors.FleetError:
        self.abandoned.append(asked)
        node = self.by_name.get(asked.node)
        if node is None or asked.node in self.silent:
            return errors.NotOwner(f"node {asked.node} does not answer")
        if asked.uid in node.claims:
            return errors.IllegalTransition(f"claim {asked.uid} has a record")
        named = [node.uuids(name) for name in asked.devices]
        if not named or not all(named):
            return errors.DeviceUnknown(f"{asked} names no device of {node.name}")
        meant = [uuid for each in named for uuid in each]
        for uuid in meant:
            self.close(node, uuid, asked.token)
        for operation, order in list(node.working.items()):
            if order.token == asked.token and order.device in meant:
                self._end(node, operation, Outcome.INTERRUPTED)
        return closure(asked.uid, asked.token, node.name, ClosedBy.ABANDON)

    def close(self, node: Node, uuid: str, token: str) -> None:
        """Refuse a token, and all older ones, from now on."""
        floor = Token.parse({**node.lost, **node.devices}[uuid].floor)
        if Token.parse(token) >= floor:
            node.change(uuid, floor=token, closed=True)

    def node(self, name: str) -> NodeApi:
        """As real nodes."""
        return Asked(self, name)


@dataclass
class Asked(NodeApi):
    """One of the nodes, asked by itself."""

    nodes: Nodes
    name: str

    def quarantine_add(
        self, device: str, *, detail: str, operator: str, codes: Sequence[str] = ()
    ) -> DeviceView:
        """As real nodes."""
        if self.name in self.nodes.silent:
            raise errors.NotOwner(f"node {self.name} does not answer")
        if self.nodes.busy:
            self.nodes.busy -= 1
            raise errors.NotOwner(f"node {self.name} is handing over")
        reasons = [
            ReasonView(code=code, source=operator, liftable=True, detail=detail) for code in codes
        ]
        node = self.nodes.by_name[self.name]
        known = node.devices[device].reasons
        node.change(device, state="QUARANTINED", reasons=(*known, *reasons))
        return node.devices[device]


def closure(uid: str, token: str, node: str, by: ClosedBy) -> Closure:
    """A node's word."""
    return Closure(Holder(HolderKind.CLAIM, uid), Token.parse(token), NodeName(node), by)


class Store(MemoryLeaseStore):
    """A store that can be away."""

    away = False

    def leases(self, holder: Holder | None = None) -> list[Lease]:
        """As a store."""
        self._answering()
        return super().leases(holder)

    def acquire(
        self, requests: Sequence[AcquireRequest], *, out_of_service_max: int | None = None
    ) -> list[Lease | errors.FleetError]:
        """As a store."""
        self._answering()
        return super().acquire(requests, out_of_service_max=out_of_service_max)

    def _answering(self) -> None:
        if self.away:
            raise errors.StoreUnavailable("the store does not answer")


BARE = (
    Rule("user", ("get", "list", "watch", "patch", "delete"), ("resourceclaims", "pods")),
    Rule("user", ("patch",), ("resourceclaims/status",)),
    Rule("user", ("arbitrary-node:patch",), ("resourceclaims/driver",)),
    Rule("user", ("get", "list", "update"), ("resourceslices",)),
)
"""What the coordinator may without the right to reserve."""


class Bench:
    """Two nodes of two devices each, all CLEAN; and a hand for scheduler, kubelet and users."""

    def __init__(
        self, *, rights: Sequence[Rule] | None = None, newer: Sequence[str] = (), **changed: object
    ) -> None:
        """`rights`: what the coordinator may, None: everything; `newer`: paths of fields of claims
        that the server knows and we do not; `changed`: the coordinator's terms."""
        self.clock = ManualClock(NOW)
        access = None if rights is None else Access(list(rights))
        fields = {CLAIMS: tuple(newer)} if newer else None
        self.engine = Engine(clock=self.clock, access=access, extra_fields=fields)
        self.admin = MemoryCluster(self.engine, caller=Caller(manager="scheduler", exact=True))
        caller = Caller(manager="fleetscrub") if rights is None else Caller("user")
        self.cluster = MemoryCluster(self.engine, caller=caller)
        self.store = Store(self.clock)
        self.store.init()
        self.coordinator = Coordinator(
            self.store, MemoryRunStore(self.clock), clock=self.clock, signer=NoSigner()
        )
        self.nodes = Nodes(
            self.clock,
            [
                Node(name, {d.uuid: d for d in (scenes.device(x, node=name) for x in ("a", "b"))})
                for name in ("n1", "n2")
            ],
        )
        self.told = Told()
        self.terms = terms(**changed)
        self._published: set[str] = set()
        for name in self.nodes.by_name:
            self.publish(name)
        self.claims, self.binder = self.begin()

    def begin(self) -> tuple[Cached, Binder]:
        """A coordinator that knows nothing yet."""
        claims = Cached(self.cluster, CLAIMS, clock=self.clock)
        around = Surroundings(
            cluster=self.cluster,
            leases=ClaimLeases(self.coordinator, self.nodes),
            nodes=self.nodes,
            holds=Holds(self.cluster, MARKS, self.clock, self.clock.advance),
            visible=Visible(self.cluster, DRIVER),
            tell=self.told,
            claims=claims,
        )
        return claims, Binder(around, self.terms)

    def restart(self) -> None:
        """The coordinator dies, and another one takes its place."""
        self.claims, self.binder = self.begin()
        self.survey()

    def survey(self) -> None:
        """The regular look at all nodes."""
        self.binder.saw(self.nodes.views(dict.fromkeys(self.nodes.names(), ())), self.clock.now())

    # --- time --------------------------------------------------------------------------------

    def step(self, *, wait_s: float = STEP_S) -> None:
        """One step on all there is, then `wait_s` pass."""
        self.claims.refresh()
        self.binder.step(self.clock.now())
        self.clock.advance(wait_s)

    def run(self, seconds: float = 3.0, *, wait_s: float = STEP_S, work: bool = True) -> None:
        """Steps for this long; nodes end their work between any two."""
        until = self.clock.now() + seconds
        while self.clock.now() < until:
            self.step(wait_s=wait_s)
            if work:
                self.nodes.work()

    # --- the scheduler and its like ----------------------------------------------------------

    def publish(self, name: str) -> None:
        """The node's slice as it should be now."""
        shown = Terms(driver=DRIVER, node=name, profile=Profile.STRICT)
        entries = []
        for device in self.nodes.by_name[name].devices.values():
            out = device.state == "QUARANTINED"
            taints = [{"key": f"{DRIVER}/quarantined", "value": "ecc", "effect": "NoSchedule"}]
            entries.append(render(device, device.name, taints=taints if out else (), terms=shown))
        body = scenes.slice_of(*entries, node=name)
        if name in self._published:
            found = self.admin.get(SLICES, Name(body["metadata"]["name"]))
            self.admin.replace(SLICES, {**found, "spec": body["spec"]})
        else:
            self.admin.create(SLICES, body)
        self._published.add(name)

    def create(self, name: str = "c", devices: int = 1, *, parameters: Object | None = None) -> str:
        """A claim of a user; its UID. `parameters`: its opaque ones for us."""
        made = scenes.claim(
            scenes.request(count=devices), scenes.request("look", adminAccess=True), name=name
        )
        if parameters is not None:
            opaque = {"driver": DRIVER, "parameters": parameters}
            made["spec"]["devices"]["config"] = [{"opaque": opaque}]
        made["metadata"]["finalizers"] = [BUILTIN]
        return uid_of(self.admin.create(CLAIMS, made))

    def allocate(
        self, name: str, *devices: str, node: str = "n1", gated: bool = True, **more: object
    ) -> None:
        """As the scheduler does: results with copies of both lists, and the time."""
        lists = {"bindingConditions": CONDITIONS, "bindingFailureConditions": [MARKS.failed]}
        results = [
            scenes.result(device, pool=node) | (lists if gated else {}) | more for device in devices
        ]
        spec = self.admin.get(CLAIMS, Name(name, SPACE))["spec"]["devices"]
        config = [{"source": "FromClaim", **one} for one in spec.get("config", ())]
        allocation = {
            "devices": {"results": results, **({"config": config} if config else {})},
            "allocationTimestamp": claim_bodies.stamp(self.clock.now()),
        }
        self.write(name, allocation=allocation, devices=None)

    def given(self, name: str, *devices: str, node: str = "n1", **more: object) -> str:
        """A claim with devices for which a pod of its name waits; the claim's UID."""
        uid = self.create(name, max(1, len(devices)))
        self.allocate(name, *devices, node=node, **more)  # type: ignore[arg-type]
        self.reserve(name, self.pod(f"{name}-pod"))
        return uid

    def pod(self, name: str) -> Object:
        """A pod, not bound yet; its entry in reservedFor."""
        body: Object = {"apiVersion": "v1", "kind": "Pod"}
        body |= {"metadata": {"name": name, "namespace": SPACE}, "spec": {}}
        made = self.admin.create(PODS, body)
        return {"resource": "pods", "name": name, "uid": uid_of(made)}

    def change_pod(self, name: str, body: Object, *, part: str = "") -> None:
        """Merge into a pod, or into `part` of it."""
        name_ = Name(name, SPACE)
        self.admin.patch(PODS, name_, body, kind=PatchKind.MERGE, subresource=part)

    def bind(self, name: str, node: str = "n1") -> None:
        """The scheduler has bound the pod."""
        self.change_pod(name, {"spec": {"nodeName": node}})

    def reserve(self, name: str, *entries: Object) -> None:
        """Exactly these users, besides our own reservation."""
        ours = [one for one in self.reserved(name) if MARKS.is_hold(one)]
        self.write(name, reservedFor=[*entries, *ours] or None)

    def write(self, name: str, **fields: object) -> None:
        """A PUT of the status, of what was just read."""
        found = self.admin.get(CLAIMS, Name(name, SPACE))
        merged = {**found.get("status", {}), **fields}
        found["status"] = {key: value for key, value in merged.items() if value is not None}
        self.admin.replace(CLAIMS, found, subresource="status")

    def deallocate(self, name: str) -> None:
        """The scheduler gives up what it chose."""
        self.write(name, allocation=None, reservedFor=None, devices=None)

    def delete(self, name: str) -> None:
        """A user deletes the claim."""
        self.admin.delete(CLAIMS, Name(name, SPACE))

    # --- kubelet and the node's plugin -------------------------------------------------------

    def prepare(self, name: str, node: str = "n1") -> None:
        """The claim is exposed on its node."""
        reading, there = self.reading(name), self.nodes.by_name[node]
        there.claims[reading.uid] = self._brief(reading, "PREPARED")
        for uuid in self._uuids(reading, node):
            there.change(uuid, state="IN_USE", claim=reading.uid, held=reading.held)

    def unprepare(self, name: str, node: str = "n1") -> None:
        """Teardown has begun."""
        reading = self.reading(name)
        self.nodes.by_name[node].claims[reading.uid] = self._brief(reading, "UNPREPARING")

    def bury(self, name: str, node: str = "n1", *, state: str = "CLEAN", owes: bool = True) -> None:
        """Teardown has ended; the lease is given back, our marks are still owed."""
        reading, there = self.reading(name), self.nodes.by_name[node]
        del there.claims[reading.uid]
        lease = self.lease(reading.uid)
        for uuid in self._uuids(reading, node):
            there.change(uuid, state=state, claim="", held=False, certificate="")
            if state == "CLEAN":
                there.change(uuid, certificate=self.nodes.certificate())
            if lease is not None:
                self.nodes.close(there, uuid, str(lease.token))
        if owes:
            there.owed[reading.uid] = Owed(
                uid=reading.uid, namespace=SPACE, name=name, devices=self._uuids(reading, node)
            )
        if lease is not None:
            word = closure(reading.uid, str(lease.token), node, ClosedBy.TEARDOWN)
            self.store.release([Release(lease.holder, lease.token, word)])

    def _brief(self, reading: ClaimReading, state: str) -> ClaimBrief:
        return ClaimBrief(
            uid=reading.uid, state=state, namespace=SPACE, name=reading.name.name, held=reading.held
        )

    def _uuids(self, reading: ClaimReading, node: str) -> tuple[str, ...]:
        return tuple(self.uuid(one.device, node) for one in reading.holding)

    # --- what there is -----------------------------------------------------------------------

    def uuid(self, device: str, node: str = "n1") -> str:
        """A device's UUID."""
        return f"GPU-{node}-{device}"

    def device(self, device: str, node: str = "n1") -> DeviceView:
        """A device now."""
        return self.nodes.by_name[node].devices[self.uuid(device, node)]

    def lose(self, device: str, node: str = "n1") -> None:
        """The driver does not show a device any more."""
        there, uuid = self.nodes.by_name[node], self.uuid(device, node)
        there.lost[uuid] = there.devices.pop(uuid)

    def change(self, device: str, *, node: str = "n1", **fields: object) -> None:
        """Set fields of a device."""
        self.nodes.by_name[node].change(self.uuid(device, node), **fields)

    def raw(self, name: str = "c") -> Object:
        """The claim as the server has it."""
        return self.admin.get(CLAIMS, Name(name, SPACE))

    def reading(self, name: str = "c") -> ClaimReading:
        """The claim, read."""
        return read(self.raw(name), MARKS)

    def exists(self, name: str = "c") -> bool:
        """Whether the claim is there."""
        return any(one["metadata"]["name"] == name for one in self.admin.list(CLAIMS).items)

    def reserved(self, name: str = "c") -> list[Object]:
        """Entries of reservedFor."""
        return list(self.raw(name).get("status", {}).get("reservedFor") or ())

    def lease(self, uid: str) -> Lease | None:
        """The claim's lease."""
        found = self.store.leases(Holder(HolderKind.CLAIM, uid))
        return found[0] if found else None

    def words(self, name: str = "c") -> list[tuple[str, str]]:
        """Device and status of Sanitized of all entries."""
        reading = self.reading(name)
        return sorted(
            (key[1], told.get(MARKS.sanitized, "")) for key, told in reading.conditions.items()
        )


def shared(bench: Bench, *mine: str, until_verified: bool = False) -> Charge:
    """Have the bench's coordinator be one of several, responsible for these nodes."""
    for name in bench.nodes.by_name:
        metadata = {"name": name, "labels": {"mine": str(name in mine).lower()}}
        bench.admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    known = Cached(bench.cluster, NODES, clock=bench.clock)
    known.refresh()
    charge = Charge(MARKS, known, selector("mine=true"), until_verified=until_verified)
    charge.refresh()
    around = replace(bench.binder.look.around, charge=charge)
    bench.binder = Binder(around, bench.terms)
    return charge
