"""Reads the facts: specs and leases first, then nodes, then the API.

In this order nothing that comes to be meanwhile looks like an orphan: a record is there before its
spec, a claim and its allocation before its lease.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fleet.control.repair.facts import Api, Facts, hold_nodes, node_of_slice
from fleet.core import errors
from fleet.core.messages import NodeView
from fleet.core.model import ClaimUid, Lease
from fleet.kube.base import (
    CLAIMS,
    NODES,
    PODS,
    SLICES,
    Cluster,
    Object,
    Resource,
    Selection,
    name_of,
    uid_of,
)
from fleet.kube.claim import ClaimReading, read
from fleet.kube.marks import Marks
from fleet.plugin.slices.pool_view import spec_of
from fleet.rpc.nodes import Nodes
from fleet.stores.base import RunRecord

EVERYTHING = Selection()
OVER = frozenset({"Succeeded", "Failed"})
LISTED = frozenset(one.plural for one in (CLAIMS, NODES, PODS, SLICES))
"""What is read of the API."""


class Coordinating(Protocol):
    """What is read of the coordinator."""

    def leases(self) -> Sequence[Lease]: ...

    def unfinished(self) -> Sequence[RunRecord]: ...


class Specs(Protocol):
    """A node's directory of CDI specs."""

    def listed(self) -> Sequence[ClaimUid]: ...


@dataclass(frozen=True, slots=True)
class Sources:
    """Where to look. `cluster` None: there is none."""

    marks: Marks
    coordinator: Coordinating
    nodes: Nodes
    cluster: Cluster | None = None
    specs: Mapping[str, Specs] = field(default_factory=dict)
    settle_s: float = 600.0


def gather(sources: Sources, now: float) -> Facts:
    """Look everywhere. Raises only what the coordinator's store raises; the rest is told."""
    specs = _specs(sources.specs)
    leases = tuple(sources.coordinator.leases())
    runs = frozenset(run.id for run in sources.coordinator.unfinished())
    views, silent = _views(sources.nodes)
    api = None if sources.cluster is None else read_api(sources.cluster, sources.marks)
    for node in sorted(_mentioned(api, sources.marks) if api else ()):
        if node not in views:
            silent.setdefault(node, "it cannot be reached from here")
    return Facts(
        at=now,
        marks=sources.marks,
        leases=leases,
        open_runs=runs,
        views=views,
        silent=silent,
        specs=specs,
        api=api,
        settle_s=sources.settle_s,
    )


def _mentioned(api: Api, marks: Marks) -> set[str]:
    """Nodes on which something of ours is, by the API."""
    found = {node_of_slice(one) for one in api.slices}
    for claim in api.claims.values():
        found |= {*claim.nodes, *hold_nodes(claim, marks)}
    return found - {""}


def read_api(cluster: Cluster, marks: Marks) -> Api:
    """What the API says; a kind that cannot be listed whole is `unknown`. Raises nothing."""
    unknown: dict[str, str] = {}

    def listed(resource: Resource, selection: Selection = EVERYTHING) -> tuple[Object, ...]:
        try:
            found = cluster.list(resource, selection)
        except errors.FleetError as error:
            unknown[resource.plural] = error.detail
            return ()
        if found.skipped:
            unknown[resource.plural] = f"{found.skipped} entries of the list are no objects"
        return found.items

    claims: dict[str, ClaimReading] = {}
    unclear: dict[str, str] = {}
    for one in listed(CLAIMS):
        _judged(one, marks, claims, unclear)
    slices = [one for one in listed(SLICES) if spec_of(one).get("driver") == marks.driver]
    nodes = listed(NODES)  # after the slices: a node that comes meanwhile is no missing one
    return Api(
        claims=claims,
        unclear=unclear,
        pods=frozenset(uid_of(pod) for pod in listed(PODS) if _lives(pod)),
        nodes=frozenset(name_of(node).name for node in nodes),
        ready=frozenset(name_of(node).name for node in nodes if is_ready(node)),
        conditions={name_of(node).name: kinds for node in nodes if (kinds := _ours(node, marks))},
        slices=tuple(slices),
        unknown=unknown,
    )


def is_ready(node: Object) -> bool:
    """Whether a Node object says that its kubelet reports."""
    return any(
        one.get("type") == "Ready" and one.get("status") == "True" for one in conditions_of(node)
    )


def conditions_of(node: Object) -> Sequence[Object]:
    """The conditions of a Node object."""
    found = (node.get("status") or {}).get("conditions") or ()
    return tuple(one for one in found if isinstance(one, dict))


def _ours(node: Object, marks: Marks) -> tuple[str, ...]:
    kinds = [str(one.get("type", "")) for one in conditions_of(node)]
    return tuple(kind for kind in kinds if kind.startswith(f"{marks.driver}/"))


def _judged(
    one: Object, marks: Marks, claims: dict[str, ClaimReading], unclear: dict[str, str]
) -> None:
    try:
        claims[uid_of(one)] = read(one, marks)
    except errors.ClaimUnready as error:
        unclear[uid_of(one)] = error.detail


def _lives(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") not in OVER


def _views(nodes: Nodes) -> tuple[dict[str, NodeView], dict[str, str]]:
    views: dict[str, NodeView] = {}
    silent: dict[str, str] = {}
    answers = nodes.views(dict.fromkeys(nodes.names(), ()))
    for name, answer in answers.items():
        if isinstance(answer, NodeView):
            views[name] = answer
        else:
            silent[name] = answer.detail
    return views, silent


def _specs(directories: Mapping[str, Specs]) -> Mapping[str, tuple[str, ...]]:
    """One directory that cannot be read hides no other; its node's specs are not judged."""
    found: dict[str, tuple[str, ...]] = {}
    for node, directory in directories.items():
        listing = _tried(directory.listed)
        if listing is not None:
            found[node] = tuple(str(uid) for uid in listing)
    return found


def _tried(look: Callable[[], Sequence[ClaimUid]]) -> Sequence[ClaimUid] | None:
    try:
        return look()
    except errors.FleetError:
        return None
