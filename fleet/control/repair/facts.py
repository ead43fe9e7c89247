"""What a repair looks at: leases, node views, the API, specs, all read at one time. Pure.

What could not be read is said in `silent`, `unknown` and `unclear`, and is never taken for "gone".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from fleet.control.binding import pledge
from fleet.control.binding.claim_facts import ALLOCATOR
from fleet.core.messages import ClaimBrief, DeviceView, NodeView
from fleet.core.model import Lease, UnitId, Uuid
from fleet.kube.base import Object
from fleet.kube.claim import ClaimReading
from fleet.kube.marks import AGENT, Marks
from fleet.plugin.slices.device_attributes import attribute
from fleet.plugin.slices.pool_view import devices_of


@dataclass(frozen=True, slots=True)
class Api:
    """What the API server said, in lists."""

    claims: Mapping[str, ClaimReading] = field(default_factory=dict)
    """By UID; those of other drivers too."""
    unclear: Mapping[str, str] = field(default_factory=dict)
    """Claims by UID that are there and cannot be understood, and why."""
    pods: AbstractSet[str] = frozenset()
    """UIDs of pods that are not over."""
    nodes: AbstractSet[str] = frozenset()
    """Names of Node objects."""
    ready: AbstractSet[str] = frozenset()
    """Those that are Ready."""
    conditions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Types of our conditions by Node."""
    slices: tuple[Object, ...] = ()
    """Of our driver."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Kinds (plural) that could not be listed whole, and why."""

    def trouble(self, *plurals: str) -> str:
        """Why nothing can be proven of these kinds; empty: it can."""
        return "; ".join(
            f"{name}: {self.unknown[name]}" for name in plurals if name in self.unknown
        )

    @property
    def homes(self) -> Mapping[Uuid, str]:
        """The node of each device and accelerator that the slices name."""
        found: dict[Uuid, str] = {}
        for one in self.slices:
            node = node_of_slice(one)
            for entry in devices_of(one):
                for name in ("uuid", "parentUUID"):
                    if (uuid := attribute(entry, name)) and entry.get("name") != AGENT:
                        found[Uuid(uuid)] = node
        return found

    def uid_known(self, uid: str) -> bool:
        """Whether a claim of this UID is there, understood or not."""
        return uid in self.claims or uid in self.unclear


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything at one time. `at` and `settle_s` in seconds."""

    at: float
    marks: Marks
    leases: tuple[Lease, ...] = ()
    open_runs: AbstractSet[str] = frozenset()
    views: Mapping[str, NodeView] = field(default_factory=dict)
    """Nodes that answered."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Nodes that did not, and why."""
    specs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Claims that have a spec, by node; only of nodes whose directory is read here."""
    api: Api | None = None
    """None: there is no cluster to ask."""
    settle_s: float = 600.0
    """An allocation younger than this may be waiting for its first pod."""

    def device(self, node: str, uuid: str) -> DeviceView | None:
        """A device as its node sees it."""
        view = self.views.get(node)
        return next((d for d in view.devices if d.uuid == uuid), None) if view else None

    def allocating(self, claim: ClaimReading) -> bool:
        """Whether somebody allocates the claim now, by its pledge and by the store's word."""
        found = pledge.read(claim.raw, self.marks)
        if found is None or claim.allocated:
            return False
        return any(
            pledge.covers(lease, claim.uid, found.owner)
            for lease in self.leases  # in force by the store's word, which alone can tell
        )

    def awaiting(self, claim: ClaimReading) -> bool:
        """Whether it was allocated by ourselves and waits for its first pod, under its lease."""
        ours = any(claim.receipt(one, ALLOCATOR) for one in claim.holding)
        return ours and not claim.terminating and bool(self.held(claim.uid))

    def held(self, uid: str) -> Collection[Lease]:
        """The leases of a claim."""
        return tuple(lease for lease in self.leases if lease.holder.name == uid)


def records(view: NodeView) -> frozenset[str]:
    """UIDs of the claims that a node has to do with in any way."""
    return frozenset(_records(view))


def _records(view: NodeView) -> Iterator[str]:
    yield from (claim.uid for claim in view.claims)
    for device in view.devices:
        yield from device.attached
        if device.claim:
            yield device.claim


def called(claim: ClaimBrief) -> str:
    """A claim as people find it: by name where the node knows that, and by UID."""
    return f"{claim.namespace}/{claim.name} ({claim.uid})" if claim.name else claim.uid


def homes(facts: Facts) -> Mapping[UnitId, str]:
    """The node of each unit that an answering node reports."""
    return {
        UnitId(unit): name
        for name, view in facts.views.items()
        for device in view.devices
        for unit in device.units
    }


def presumed(lease: Lease, facts: Facts) -> str:
    """The node a lease is about, as far as the API tells: by its claim, else by the slices."""
    if facts.api is None:
        return ""
    claim = facts.api.claims.get(lease.holder.name)
    if claim is not None and len(claim.nodes) == 1:
        return claim.nodes[0]
    homes = facts.api.homes
    found = {homes.get(accelerator_of(unit), "") for unit in lease.units}
    return found.pop() if len(found) == 1 else ""


def accelerator_of(unit: UnitId) -> Uuid:
    """The accelerator a unit belongs to."""
    return Uuid(unit.rpartition("/")[0])


def node_of_slice(found: Object) -> str:
    """The node whose devices a slice lists."""
    return str(found.get("spec", {}).get("nodeName", ""))


def hold_nodes(claim: ClaimReading, marks: Marks) -> frozenset[str]:
    """The nodes that our reservations on a claim name."""
    entries = (claim.raw.get("status") or {}).get("reservedFor") or ()
    return frozenset(
        str(entry.get("name", ""))
        for entry in entries
        if isinstance(entry, dict) and marks.is_hold(entry)
    )
