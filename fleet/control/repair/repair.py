"""Carries out what was found twice: records, leases, holds, finalizers, specs, slices, in order.

Each act is guarded by itself as well (the node refuses to abandon a claim it has a record of, the
store releases by token, the API by resourceVersion), so that a fact which changed since does no
harm. One that fails stops no other, but for what hangs on it: marks of a claim stay while its
lease does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fleet.control.repair.facts import records
from fleet.control.repair.leftovers import Kind, Orphan
from fleet.control.repair.survey import conditions_of
from fleet.core import errors
from fleet.core.leases import Closure
from fleet.core.messages import Message, NodeView
from fleet.core.model import ClaimUid, Holder, HolderKind, Token
from fleet.kube.base import (
    CLAIMS,
    NODES,
    SLICES,
    Cluster,
    Name,
    PatchKind,
    uid_of,
    version_of,
)
from fleet.kube.claim import ClaimReading, read
from fleet.kube.claim_holds import Marked
from fleet.kube.marks import Marks
from fleet.rpc.nodes import Abandonment, Nodes
from fleet.stores.base import Release

LOG = logging.getLogger(__name__)
BEGUN = "its teardown has begun; the node ends it once its tenant is proven gone"


class Releasing(Protocol):
    """What takes leases back."""

    def release_all(self, releases: Sequence[Release]) -> Sequence[bool | errors.FleetError]: ...


class LettingGo(Protocol):
    """What takes our hold and finalizer off a claim; see `fleet.kube.claim_holds.Holds`."""

    def release(self, name: Name, uid: str, *, of: ClaimReading | None = None) -> Marked: ...


class SpecFiles(Protocol):
    """A node's directory of CDI specs."""

    def remove(self, uid: ClaimUid) -> None: ...


TearDown = Callable[[str, str], None]
"""Has a node (first) tear a claim (second, by UID) down; returns or raises once it has begun."""


@dataclass(frozen=True, slots=True)
class Hands:
    """Through what things are changed. What is missing is left to whom it belongs."""

    marks: Marks
    coordinator: Releasing
    nodes: Nodes
    cluster: Cluster | None = None
    holds: LettingGo | None = None
    tear_down: TearDown | None = None
    specs: Mapping[str, SpecFiles] = field(default_factory=dict)


class Outcome(Message):
    """What became of one orphan. `detail`: why it is still there; "" when it is gone."""

    orphan: Orphan
    done: bool
    detail: str = ""
    begun: bool = False
    """Whether its end has begun, and comes by itself."""


def fix(orphans: Sequence[Orphan], hands: Hands) -> tuple[Outcome, ...]:
    """Take the proven ones away, in their order; the others are left and say why."""
    found: list[Outcome] = []
    stuck: set[str] = set()
    for one in orphans:
        why = one.why if not one.proven else _carried_out(one, hands, stuck)
        if why == BEGUN:
            found.append(Outcome(orphan=one, done=False, detail=why, begun=True))
            continue
        if why:
            stuck.add(_claim_of(one))
            LOG.warning("%s on %s stays: %s", one.what, one.node or "no node", why)
        found.append(Outcome(orphan=one, done=not why, detail=why))
    return tuple(found)


def _carried_out(one: Orphan, hands: Hands, stuck: set[str]) -> str:
    """Why it could not be done; empty: it was."""
    if one.kind in (Kind.HOLD, Kind.FINALIZER) and one.subject in stuck:
        return "what has to go before it is still there"
    try:
        return _ACTS[one.kind](one, hands)
    except errors.FleetError as error:
        return str(error)


def _claim_of(one: Orphan) -> str:
    return one.subject.removeprefix(f"{HolderKind.CLAIM}:")


def _record(one: Orphan, hands: Hands) -> str:
    if hands.tear_down is None:
        return "the node's own look for orphans tears it down within a minute or two"
    try:
        hands.tear_down(one.node, one.subject)
    except errors.DeviceBusy:
        return BEGUN
    return ""


def _lease(one: Orphan, hands: Hands) -> str:
    holder, token = Holder.parse(one.holder), Token.parse(one.token)
    if holder.kind is not HolderKind.CLAIM:
        return released(hands.coordinator, Release(holder, token))
    asked = Abandonment(one.node, holder.name, one.token, one.devices)
    (answer,) = hands.nodes.abandon([asked])
    if not isinstance(answer, Closure):
        return str(answer)
    return released(hands.coordinator, Release(holder, token, answer))


def released(coordinator: Releasing, release: Release) -> str:
    """Why the lease was not taken back; empty: nobody has it any more."""
    (answer,) = coordinator.release_all([release])
    return str(answer) if isinstance(answer, errors.FleetError) else ""


def _mark(one: Orphan, hands: Hands) -> str:
    if hands.cluster is None or hands.holds is None:
        return "there is no cluster to change"
    name = Name(one.name, one.namespace)
    try:
        found = hands.cluster.get(CLAIMS, name)
    except errors.ApiNotFound:
        return ""
    if uid_of(found) != one.subject:
        return ""
    reading = read(found, hands.marks)
    if {pod.uid for pod in reading.pods} - set(one.pods):
        return "another pod uses the claim by now"
    answer = hands.nodes.views({one.node: ()}).get(one.node) if one.node else None
    if isinstance(answer, NodeView) and one.subject in records(answer):
        return "its node has a record of the claim by now"
    marked = hands.holds.release(name, one.subject, of=reading)
    if marked.left:
        return "it is used anew by now"
    left = marked.reading
    if left is None or (left.terminating and not left.raw["metadata"].get("finalizers")):
        return ""  # gone, with the finalizer that was taken off last
    there = left.held if one.kind is Kind.HOLD else left.finalizer
    return _by_hand(one) if there else ""


def _by_hand(one: Orphan) -> str:
    """A mark that the server would not take off, as the log says why."""
    status = " --subresource=status" if one.kind is Kind.HOLD else ""
    return (
        f"our {one.kind} is still on it: the server took no write of it from us; try"
        f" `kubectl edit resourceclaim -n {one.namespace} {one.name}{status}`"
    )


def _spec(one: Orphan, hands: Hands) -> str:
    files = hands.specs.get(one.node)
    if files is None:
        return "its directory cannot be reached from here"
    files.remove(ClaimUid(one.subject))
    return ""


def _slice(one: Orphan, hands: Hands) -> str:
    if hands.cluster is None:
        return "there is no cluster to change"
    hands.cluster.delete(SLICES, Name(one.name), uid=one.uid, resource_version=one.version)
    return ""


def _taint(one: Orphan, hands: Hands) -> str:  # noqa: ARG001  only the publisher may
    return one.fix


def _condition(one: Orphan, hands: Hands) -> str:
    """Guarded by resourceVersion: places in a list move."""
    if hands.cluster is None:
        return "there is no cluster to change"
    name = Name(one.node)
    node = hands.cluster.get(NODES, name)
    kinds = [str(found.get("type")) for found in conditions_of(node)]
    if one.subject not in kinds:
        return ""
    body = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version_of(node)},
        {"op": "remove", "path": f"/status/conditions/{kinds.index(one.subject)}"},
    ]
    hands.cluster.patch(NODES, name, body, kind=PatchKind.JSON, subresource="status")
    return ""


_ACTS: Mapping[Kind, Callable[[Orphan, Hands], str]] = {
    Kind.RECORD: _record,
    Kind.LEASE: _lease,
    Kind.HOLD: _mark,
    Kind.FINALIZER: _mark,
    Kind.SPEC: _spec,
    Kind.SLICE: _slice,
    Kind.TAINT: _taint,
    Kind.CONDITION: _condition,
}
