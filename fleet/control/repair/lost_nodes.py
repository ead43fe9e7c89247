"""A node declared lost: by an operator, or because its Node object has been gone for long.

Its claims' leases, holds and finalizers end here without the node's word, so the order is: first a
durable mark that the node reads before it accepts any act should it come back (`fleet.node.lost`:
it starts HELD then, as with a lost journal), then its slices, so that nobody is sent there, then
the leases, then the marks on its claims. The mark keeps which accelerators were the node's: once
its slices are gone (we delete them, or garbage collection did with the Node) nothing else tells.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fleet.control.repair.facts import Api, accelerator_of, hold_nodes, node_of_slice
from fleet.control.repair.repair import LettingGo, released
from fleet.control.repair.survey import read_api
from fleet.core import errors
from fleet.core.leases import AcquireRequest, ClosedBy, Closure
from fleet.core.messages import Message
from fleet.core.model import Holder, HolderKind, Lease, NodeName, UnitId, Uuid
from fleet.kube.base import SLICES, Cluster, Object, name_of, uid_of, version_of
from fleet.kube.claim import ClaimReading
from fleet.kube.marks import AGENT, Marks
from fleet.node.lost import MARK_TTL_S, lost_unit
from fleet.plugin.slices.device_attributes import attribute
from fleet.plugin.slices.pool_view import devices_of
from fleet.stores.base import Release


class Coordinating(Protocol):
    """What is asked of the coordinator."""

    def leases(self) -> Sequence[Lease]: ...

    def acquire(
        self, requests: Sequence[AcquireRequest]
    ) -> Sequence[Lease | errors.FleetError]: ...

    def release_all(self, releases: Sequence[Release]) -> Sequence[bool | errors.FleetError]: ...


@dataclass(frozen=True, slots=True)
class Parting:
    """Through what a node is given up. `cluster` and `holds` None: there is no cluster."""

    marks: Marks
    coordinator: Coordinating
    cluster: Cluster | None = None
    holds: LettingGo | None = None
    devices: Collection[str] = field(default_factory=frozenset)
    """UUIDs of accelerators known to be the node's, where nothing else tells any more."""


class Forgotten(Message):
    """What was given up for a node. `failed` empty: nothing of it is left."""

    node: str
    operator: str
    token: str
    """Of the mark that makes the node start HELD."""
    slices: tuple[str, ...] = ()
    leases: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    """Claims whose hold and finalizer were taken off."""
    failed: tuple[str, ...] = ()


def forget(node: str, parting: Parting, *, operator: str) -> Forgotten:
    """Give up everything of a lost node, on the record as decided by `operator`.

    Doing it twice changes nothing more, and goes on where the first time failed. Raises, before
    anything is changed, what store or API raise when they do not answer. Who calls has made sure
    that the node is gone.
    """
    held = parting.coordinator.leases()
    api = _api(parting)
    mark = _mark(node, held, {*parting.devices, *_accelerators(node, api)}, parting, operator)
    token = str(mark.token)
    slices, failed = _delete_slices(node, api, parting)
    if failed:
        return Forgotten(
            node=node, operator=operator, token=token, slices=tuple(slices), failed=tuple(failed)
        )
    devices = {*parting.devices, *_accelerators(node, api), *_remembered(node, mark)}
    mine = _of_node(node, held, api, devices)
    leases, unreleased = _release_leases(node, mine, parting.coordinator)
    unreleased |= {} if devices else _unplaced(held, api)
    claims, unmarked = _let_go(node, api, parting, stuck=set(unreleased))
    return Forgotten(
        node=node,
        operator=operator,
        token=token,
        slices=tuple(slices),
        leases=tuple(leases),
        claims=tuple(claims),
        failed=(*unreleased.values(), *unmarked),
    )


def life(node: str, parting: Parting) -> str:
    """What store and API say against the node being lost; empty: nothing.

    A node that neither knows is a slip of the pen, unless devices of it were named.
    """
    held = parting.coordinator.leases()
    for lease in held:
        if lease.holder.kind is HolderKind.PUBLISHER and lease.holder.name.startswith(f"{node}/"):
            return "its plugin publishes its devices"
    if parting.cluster is None:
        return ""
    api = _api(parting)
    if trouble := api.trouble("nodes"):
        raise errors.ApiUnavailable(f"the API does not tell whether the node is there: {trouble}")
    if node in api.ready:
        return "its Node object is Ready"
    known = node in api.nodes or any(node_of_slice(one) == node for one in api.slices)
    known = known or any(node in claim.nodes for claim in api.claims.values())
    if not (known or parting.devices):
        return "the cluster asked knows no such node: is it the right one?"
    return ""


def _api(parting: Parting) -> Api:
    if parting.cluster is None:
        return Api()
    api = read_api(parting.cluster, parting.marks)
    if trouble := api.trouble("resourceclaims", "resourceslices"):
        raise errors.ApiUnavailable(f"the API does not tell what belongs to the node: {trouble}")
    return api


def _mark(
    node: str, held: Sequence[Lease], devices: Collection[str], parting: Parting, operator: str
) -> Lease:
    """The mark that is there, or a new one that keeps these accelerators."""
    known = next((one for one in held if lost_unit(node) in one.units), None)
    if known is not None:
        return known
    kept = {UnitId(f"{lost_unit(node)}/{uuid}") for uuid in devices}
    request = AcquireRequest(
        units=frozenset({lost_unit(node), *kept}),
        holder=Holder(HolderKind.OPERATOR, operator),
        ttl_s=MARK_TTL_S,
    )
    (answer,) = parting.coordinator.acquire([request])
    if isinstance(answer, errors.FleetError):
        raise answer
    return answer


def _remembered(node: str, mark: Lease) -> set[str]:
    """The accelerators that the mark keeps."""
    prefix = f"{lost_unit(node)}/"
    return {unit.removeprefix(prefix) for unit in mark.units if unit.startswith(prefix)}


def _accelerators(node: str, api: Api) -> set[str]:
    """UUIDs of the accelerators that the node's slices name."""
    entries = [e for one in api.slices if node_of_slice(one) == node for e in devices_of(one)]
    return {
        uuid
        for entry in entries
        if entry.get("name") != AGENT
        and (uuid := attribute(entry, "parentUUID") or attribute(entry, "uuid"))
    }


def _delete_slices(node: str, api: Api, parting: Parting) -> tuple[list[str], list[str]]:
    gone: list[str] = []
    failed: list[str] = []
    for one in api.slices:
        if node_of_slice(one) != node or parting.cluster is None:
            continue
        try:
            _delete(parting.cluster, one)
            gone.append(name_of(one).name)
        except errors.FleetError as error:
            failed.append(f"ResourceSlice {name_of(one)}: {error}")
    return gone, failed


def _delete(cluster: Cluster, one: Object) -> None:
    cluster.delete(SLICES, name_of(one), uid=uid_of(one), resource_version=version_of(one))


def _of_node(
    node: str, held: Sequence[Lease], api: Api, devices: Collection[str]
) -> Iterator[Lease]:
    """Leases of claims on the node; one that may be another node's is not among them."""
    others = Api(slices=tuple(one for one in api.slices if node_of_slice(one) != node))
    # A card may have been moved since: the node that publishes it now has the last word.
    homes = {**api.homes, **{Uuid(uuid): node for uuid in devices}, **others.homes}
    for lease in held:
        if lease.holder.kind is HolderKind.CLAIM and _places(lease, api, homes) == {node}:
            yield lease


def _places(lease: Lease, api: Api, homes: Mapping[Uuid, str]) -> Collection[str]:
    """The nodes of a claim's lease; none where nothing tells."""
    claim = api.claims.get(lease.holder.name)
    places = {homes.get(accelerator_of(unit), "") for unit in lease.units} - {""}
    return places or (frozenset() if claim is None else frozenset(claim.nodes))


def _unplaced(held: Sequence[Lease], api: Api) -> dict[str, str]:
    """Leases of claims that may be the node's, since nothing tells whose they are."""
    return {
        lease.holder.name: f"lease of {lease.holder}: nothing tells of which node it is; name the"
        " node's accelerators (`fleet node forget NODE --device UUID`)"
        for lease in held
        if lease.holder.kind is HolderKind.CLAIM and not _places(lease, api, api.homes)
    }


def _release_leases(
    node: str, leases: Iterable[Lease], coordinator: Coordinating
) -> tuple[list[str], dict[str, str]]:
    gone: list[str] = []
    failed: dict[str, str] = {}
    for lease in leases:
        closure = Closure(lease.holder, lease.token, NodeName(node), ClosedBy.NODE_LOST)
        if why := released(coordinator, Release(lease.holder, lease.token, closure)):
            failed[lease.holder.name] = f"lease of {lease.holder}: {why}"
        else:
            gone.append(str(lease.holder))
    return gone, failed


def _let_go(
    node: str, api: Api, parting: Parting, *, stuck: set[str]
) -> tuple[list[str], list[str]]:
    """`stuck`: claims whose lease is still there; their marks stay."""
    gone: list[str] = []
    failed: list[str] = []
    for claim in api.claims.values():
        if not _is_marked_here(claim, node, parting.marks) or parting.holds is None:
            continue
        if claim.uid in stuck:
            failed.append(f"marks on claim {claim.name}: its lease has to go first")
            continue
        try:
            marked = parting.holds.release(claim.name, claim.uid, of=claim)
            if marked.left:
                failed.append(f"marks on claim {claim.name}: it is used anew, and is looked at so")
            elif marked.finalizer:
                failed.append(
                    f"finalizer on claim {claim.name}: the server took no write of it from us;"
                    " `fleet reconcile` tries again"
                )
            else:
                gone.append(str(claim.name))
        except errors.FleetError as error:
            failed.append(f"marks on claim {claim.name}: {error}")
    return gone, failed


def _is_marked_here(claim: ClaimReading, node: str, marks: Marks) -> bool:
    return claim.marked and node in {*claim.nodes, *hold_nodes(claim, marks)}
