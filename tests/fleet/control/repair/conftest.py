"""A small cluster with everything that can be left behind, and nodes that answer strictly."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from fleet.control.coordinator import Coordinator
from fleet.control.repair.facts import Facts
from fleet.control.repair.leftovers import Orphan, find
from fleet.control.repair.repair import Hands, Outcome, fix
from fleet.control.repair.survey import Sources, gather
from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.leases import AcquireRequest, ClosedBy, Closure
from fleet.core.messages import ClaimBrief, DeviceView, NodeView, ReasonView, Replication
from fleet.core.model import ClaimUid, Holder, HolderKind, Lease, NodeName, Token, UnitId
from fleet.evidence.ledger import LedgerHead
from fleet.kube import claim_bodies
from fleet.kube.base import CLAIMS, NODES, PODS, SLICES, Name, Object
from fleet.kube.claim import ClaimReading, read
from fleet.kube.claim_holds import Holds
from fleet.kube.marks import MANAGER, Marks
from fleet.rpc.nodes import Abandonment, CalledNodes
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine
from tests.lab.stores import MemoryLeaseStore, MemoryRunStore

MARKS = Marks("gpu.fleetscrub.dev")
SETTLE_S = 600.0


class Silent:
    """Signs nothing: nobody certifies here."""

    def sign(self, heads: Mapping[NodeName, LedgerHead]) -> None:
        """Nothing to sign."""
        assert not heads


@dataclass
class FakeNode:
    """One node: two devices of one unit each, records, and the tokens it has closed."""

    name: str
    claims: dict[str, tuple[str, str]] = field(default_factory=dict)
    """State and device by UID of the claim."""
    reasons: dict[str, tuple[ReasonView, ...]] = field(default_factory=dict)
    closed: list[Abandonment] = field(default_factory=list)
    away: bool = False
    replication: Replication | None = None

    def uuid(self, number: int) -> str:
        return f"GPU-{self.name}-{number}"

    def unit(self, number: int) -> UnitId:
        return UnitId(f"{self.uuid(number)}/all")

    def view(self) -> NodeView:
        devices = []
        for number in range(2):
            uuid = self.uuid(number)
            uid = next((u for u, (_, device) in self.claims.items() if device == uuid), "")
            reasons = self.reasons.get(uuid, ())
            devices.append(
                DeviceView(
                    uuid=uuid, name=f"gpu-{number}", accelerator=uuid, units=(f"{uuid}/all",),
                    memory_bytes=64, claim=uid, reasons=reasons,
                    state="IN_USE" if uid else "QUARANTINED" if reasons else "CLEAN",
                )
            )  # fmt: skip
        briefs = tuple(ClaimBrief(uid=u, state=s, name=u) for u, (s, _) in self.claims.items())
        return NodeView(
            node=self.name, incarnation="i", boot_id="b", at=0.0, simulated=True,
            backend="simulated", devices=tuple(devices), claims=briefs,
            replication=self.replication,
        )  # fmt: skip


@dataclass
class FakeNodes(CalledNodes):
    """The port to nodes; asking for a node that does not exist is a mistake of the caller."""

    nodes: dict[str, FakeNode]

    def names(self) -> Collection[str]:
        return tuple(self.nodes)

    def views(
        self, asked: Mapping[str, Sequence[str]]
    ) -> Mapping[str, NodeView | errors.FleetError]:
        return {name: self._view(self.nodes[name]) for name in asked}

    def _view(self, node: FakeNode) -> NodeView | errors.FleetError:
        return errors.NotOwner(f"{node.name} is away") if node.away else node.view()

    def abandon(self, asked: Sequence[Abandonment]) -> Sequence[Closure | errors.FleetError]:
        return [self._abandon(self.nodes[one.node], one) for one in asked]

    def _abandon(self, node: FakeNode, one: Abandonment) -> Closure | errors.FleetError:
        if node.away:
            return errors.NotOwner(f"{node.name} is away")
        if one.uid in node.claims:
            return errors.IllegalTransition(f"claim {one.uid} has a record")
        if not one.devices or not set(one.devices) <= {node.uuid(0), node.uuid(1)}:
            return errors.DeviceUnknown(f"{one.devices}")
        node.closed.append(one)
        holder, token = Holder(HolderKind.CLAIM, one.uid), Token.parse(one.token)
        return Closure(holder, token, NodeName(node.name), ClosedBy.ABANDON)

    def tear_down(self, node: str, uid: str) -> None:
        """Begins; the tenant is still there."""
        state, device = self.nodes[node].claims[uid]
        assert state != "UNPREPARING", "asked twice"
        self.nodes[node].claims[uid] = ("UNPREPARING", device)
        raise errors.DeviceBusy("begun")


@dataclass
class FakeSpecs:
    """A directory of specs."""

    there: set[str] = field(default_factory=set)

    def listed(self) -> Sequence[ClaimUid]:
        return tuple(ClaimUid(uid) for uid in sorted(self.there))

    def remove(self, uid: ClaimUid) -> None:
        self.there.discard(uid)


class Site:
    """An API server, a lease store and two nodes."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_700_000_000.0)
        self.cluster = MemoryCluster(Engine(clock=self.clock))
        store = MemoryLeaseStore(self.clock)
        store.init()
        self.store = store
        self.coordinator = Coordinator(
            store, MemoryRunStore(self.clock), clock=self.clock, signer=Silent()
        )
        self.n1, self.n2 = FakeNode("n1"), FakeNode("n2")
        self.nodes = FakeNodes({"n1": self.n1, "n2": self.n2})
        self.specs = {"n1": FakeSpecs(), "n2": FakeSpecs()}
        for node in ("n1", "n2"):
            self.make_node(node)
            self.make_slice(node)

    # --- the API ---

    def make_node(self, name: str, *conditions: str) -> None:
        """A Ready Node object with these conditions too."""
        body: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        found = self.cluster.create(NODES, body)
        kinds = ("Ready", *conditions)
        found["status"] = {"conditions": [{"type": kind, "status": "True"} for kind in kinds]}
        self.cluster.replace(NODES, found, subresource="status")

    def make_slice(self, node: str, *, taint: str = "") -> None:
        """The slice of a node's two devices; `taint`: the first one is quarantined for it."""
        devices: list[Object] = [
            {"name": f"gpu-{n}", "attributes": {"uuid": {"string": f"GPU-{node}-{n}"}}}
            for n in range(2)
        ]
        if taint:
            key = f"{MARKS.driver}/quarantined"
            devices[0]["taints"] = [{"key": key, "value": taint, "effect": "NoSchedule"}]
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": MARKS.driver, "nodeName": node, "pool": pool, "devices": devices}
        body: Object = {
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": f"slice-{node}"}, "spec": spec,
        }  # fmt: skip
        self.cluster.delete(SLICES, Name(f"slice-{node}"))
        self.cluster.create(SLICES, body)

    def make_pod(self, name: str) -> str:
        """A pod; its UID."""
        body: Object = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "tenant"},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }  # fmt: skip
        return str(self.cluster.create(PODS, body)["metadata"]["uid"])

    def make_claim(
        self,
        name: str,
        *,
        node: str = "n1",
        pods: Sequence[str] = (),
        marked: bool = True,
        age_s: float = 2 * SETTLE_S,
    ) -> ClaimReading:
        """A claim allocated `age_s` ago on a node's first device, used by pods of these UIDs."""
        body: Object = {
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "tenant"},
            "spec": {"devices": {"requests": [
                {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 1}}
            ]}},
        }  # fmt: skip
        found = self.cluster.create(CLAIMS, body)
        result = {"request": "gpu", "driver": MARKS.driver, "pool": node, "device": "gpu-0"}
        then = claim_bodies.stamp(self.clock.now() - age_s)
        found["status"] = {
            "allocation": {"devices": {"results": [result]}, "allocationTimestamp": then},
            "reservedFor": [{"resource": "pods", "name": f"p-{uid}", "uid": uid} for uid in pods],
        }
        self.cluster.replace(CLAIMS, found, subresource="status")
        if marked:
            self.mark(name, node)
        return self.claim(name)

    def mark(self, name: str, node: str) -> None:
        """Our hold and our finalizer."""
        now = self.clock.now()
        body = claim_bodies.status(self.claim(name), MARKS, told=(), hold=node, now=now)
        self.cluster.apply(CLAIMS, body, manager=MANAGER, subresource="status")
        body = claim_bodies.finalizer(self.claim(name), MARKS, present=True)
        self.cluster.apply(CLAIMS, body, manager=MANAGER)

    def claim(self, name: str) -> ClaimReading:
        """A claim as it stands."""
        return read(self.cluster.get(CLAIMS, Name(name, "tenant")), MARKS)

    # --- the store ---

    def lease(self, uid: str, node: FakeNode, number: int = 0) -> Lease:
        """A claim's lease on one device."""
        request = AcquireRequest(
            units=frozenset({node.unit(number)}), holder=Holder(HolderKind.CLAIM, uid)
        )
        return self.granted(request)

    def granted(self, request: AcquireRequest) -> Lease:
        """The lease asked for."""
        (lease,) = self.coordinator.acquire([request])
        assert isinstance(lease, Lease), lease
        return lease

    @property
    def held(self) -> set[str]:
        """Who has a lease."""
        return {str(lease.holder) for lease in self.coordinator.leases()}

    # --- repair ---

    @property
    def sources(self) -> Sources:
        return Sources(
            marks=MARKS,
            coordinator=self.coordinator,
            nodes=self.nodes,
            cluster=self.cluster,
            specs=self.specs,
            settle_s=SETTLE_S,
        )

    @property
    def hands(self) -> Hands:
        return Hands(
            marks=MARKS,
            coordinator=self.coordinator,
            nodes=self.nodes,
            cluster=self.cluster,
            holds=self.holds,
            tear_down=self.nodes.tear_down,
            specs=self.specs,
        )

    @property
    def holds(self) -> Holds:
        return Holds(self.cluster, MARKS, self.clock, self.clock.advance)

    def facts(self) -> Facts:
        return gather(self.sources, self.clock.now())

    def find(self) -> dict[str, Orphan]:
        """What is found, by kind and subject."""
        return {f"{one.kind} {one.subject}": one for one in find(self.facts())}

    def fix(self) -> tuple[Outcome, ...]:
        return fix(find(self.facts()), self.hands)

    def quarantine(self, node: FakeNode, number: int = 0) -> None:
        """A reason of the node against a device."""
        node.reasons[node.uuid(number)] = (ReasonView(code="xid", source="health", liftable=True),)


@pytest.fixture
def site() -> Site:
    """Two nodes in order, nothing left behind."""
    return Site()
