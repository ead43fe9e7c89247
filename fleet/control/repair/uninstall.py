"""Everything that is ours, anywhere, and how it goes when the product does (`fleet uninstall`).

Evidence, keys and journals stay: they belong to whoever has to show later what was wiped when.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fleet.control.binding.liveness import LATE_S, Alive
from fleet.control.repair.drain import counted, uncopied
from fleet.control.repair.facts import (
    Api,
    Facts,
    called,
    hold_nodes,
    homes,
    node_of_slice,
    presumed,
)
from fleet.control.repair.leftovers import Kind, Orphan, covering
from fleet.control.repair.repair import Hands, Outcome, fix
from fleet.core.messages import Message
from fleet.core.model import HolderKind, Lease, State
from fleet.kube.base import name_of, uid_of, version_of
from fleet.kube.claim import ClaimReading
from fleet.plugin.slices.pool_view import devices_of

APPLY = "fleet uninstall --apply"
WHY = "it is ours, and the product goes"


FOLLOWS = frozenset({HolderKind.PUBLISHER, HolderKind.QUARANTINE})
"""Leases that plugins and coordinator take again for as long as they run, and that nobody asks for
once the store is gone too."""


class Obstacle(Message):
    """Why nothing is taken away yet, and what to do first."""

    what: str
    remedy: str


def everything(facts: Facts, *, followed: bool = False) -> tuple[Orphan, ...]:
    """All of it, in the order in which it goes: slices, leases, holds, finalizers, the rest.

    `followed`: plugins, coordinator and store are removed right after. Then what they keep is left:
    their leases, and the slices, which kubelet removes when a node's plugin is gone.
    """
    leases = [one for one in facts.leases if not (followed and one.holder.kind in FOLLOWS)]
    return (
        *(() if followed else _slices(facts)),
        *(_lease(lease, facts) for lease in leases),
        *_marks(facts),
        *_conditions(facts),
        *_specs(facts),
    )


def obstacles(facts: Facts, *, followed: bool = False) -> tuple[Obstacle, ...]:
    """Why it must not go yet: somebody uses a device, or it is not known whether.

    `followed`: as in `everything`; a plugin that runs is none then.
    """
    published = () if followed else _published(facts)
    return (*_used(facts), *_unknown(facts), *published, *_uncopied(facts))


def around(*, alive: Alive | None, now: float, unasked: str) -> tuple[Obstacle, ...]:
    """What stands in the way outside of the facts: a coordinator, a cluster that is not asked."""
    found = []
    if unasked:
        what = f"the cluster that is served cannot be asked: {unasked}"
        remedy = "name it with --kubeconfig FILE, or say --no-cluster where the fleet serves none"
        found.append(Obstacle(what=what, remedy=remedy))
    if alive is not None and not alive.gone:
        found.append(
            Obstacle(
                what=f"a coordinator runs (pid {alive.pid} on {alive.host},"
                f" {now - alive.at:.0f} s ago): it would take leases and mark claims again",
                remedy="stop `fleet coordinate` (SIGTERM), or end the actor of the coordinator; one"
                f" that was killed is no obstacle after {LATE_S:.0f} s",
            )
        )
    return tuple(found)


def returned(items: Sequence[Outcome], leases: Sequence[Lease]) -> tuple[Obstacle, ...]:
    """What came back after it was taken away: a coordinator of another host does that."""
    gone = {one.orphan.subject: one.orphan.token for one in items if one.done}
    return tuple(
        Obstacle(
            what=f"the lease of {lease.holder} came back: a coordinator runs somewhere",
            remedy="stop `fleet coordinate`, or end the actor of the coordinator, then repeat",
        )
        for lease in leases
        if gone.get(str(lease.holder), str(lease.token)) != str(lease.token)
    )


def remove(facts: Facts, hands: Hands, *, followed: bool = False) -> tuple[Outcome, ...]:
    """Take everything away. Nothing is changed while there is an obstacle: ask before."""
    return fix(everything(facts, followed=followed), hands)


def _uncopied(facts: Facts) -> Iterator[Obstacle]:
    for node, view in sorted(facts.views.items()):
        if (count := uncopied(view)) != 0:
            error = view.replication.error if view.replication is not None else ""
            why = f": {error}" if error else ""
            yield Obstacle(
                what=f"{counted(count)} on {node} only, not in the archive{why}",
                remedy=f"`fleet node drain {node} --reason WHY --wait 600` waits for them; the"
                " policy evidence.policy = local gives them up",
            )


# --- what is ours ---


def _slices(facts: Facts) -> Iterator[Orphan]:
    for one in facts.api.slices if facts.api is not None else ():
        tainted = sum(bool(device.get("taints")) for device in devices_of(one))
        yield Orphan(
            kind=Kind.SLICE,
            node=node_of_slice(one),
            subject=name_of(one).name,
            what=f"ResourceSlice {name_of(one)}: {len(devices_of(one))} devices,"
            f" {tainted} of them with taints of ours",
            why=WHY,
            fix="the slice is deleted, its taints with it",
            command=APPLY,
            proven=True,
            name=name_of(one).name,
            uid=uid_of(one),
            version=version_of(one),
        )


def _lease(lease: Lease, facts: Facts) -> Orphan:
    places = homes(facts)
    nodes = {places.get(unit, "") for unit in lease.units}
    node = nodes.pop() if len(nodes) == 1 else ""
    view = facts.views.get(node)
    devices = covering(view, lease.units) if view is not None else ()
    claim = lease.holder.kind is HolderKind.CLAIM
    known = bool(devices) or not claim
    lost = node or presumed(lease, facts) or "NODE"
    return Orphan(
        kind=Kind.LEASE,
        node=node,
        subject=str(lease.holder),
        what=f"lease of {lease.holder} on {', '.join(sorted(lease.units))} under {lease.token}",
        why=WHY if known else "no node that answers can close its token",
        fix="the store takes it back" if not claim else "its node closes it, then the store",
        command=APPLY if known else f"fleet node forget {lost} --device UUID",
        proven=known,
        holder=str(lease.holder),
        token=str(lease.token),
        devices=devices,
    )


def _marks(facts: Facts) -> Iterator[Orphan]:
    for claim in facts.api.claims.values() if facts.api is not None else ():
        for kind, there in ((Kind.HOLD, claim.held), (Kind.FINALIZER, claim.finalizer)):
            if there:
                yield _mark(claim, kind, facts)


def _mark(claim: ClaimReading, kind: Kind, facts: Facts) -> Orphan:
    return Orphan(
        kind=kind,
        node=next(iter(sorted({*claim.nodes, *hold_nodes(claim, facts.marks)})), ""),
        subject=claim.uid,
        what=f"our {kind} on claim {claim.name}",
        why=WHY,
        fix="hold and finalizer are taken off, in this order",
        command=APPLY,
        proven=True,
        namespace=claim.name.namespace,
        name=claim.name.name,
        pods=tuple(pod.uid for pod in claim.pods),
    )


def _conditions(facts: Facts) -> Iterator[Orphan]:
    for node, kinds in (facts.api.conditions if facts.api is not None else {}).items():
        for kind in kinds:
            yield Orphan(
                kind=Kind.CONDITION,
                node=node,
                subject=kind,
                what=f"condition {kind} of Node {node}",
                why=WHY,
                fix="the condition is removed",
                command=APPLY,
                proven=True,
                name=node,
            )


def _specs(facts: Facts) -> Iterator[Orphan]:
    for node, uids in facts.specs.items():
        for uid in uids:
            yield Orphan(
                kind=Kind.SPEC,
                node=node,
                subject=uid,
                what=f"CDI spec of claim {uid}",
                why=WHY,
                fix="the file is removed",
                command=APPLY,
                proven=True,
            )


# --- why not yet ---


def _used(facts: Facts) -> Iterator[Obstacle]:
    for node, view in facts.views.items():
        for claim in view.claims:
            yield Obstacle(
                what=f"{node}: claim {called(claim)} is {claim.state}",
                remedy=f"`fleet node drain {node}`, then end its pod; it is wiped on the way out",
            )
        known = {claim.uid for claim in view.claims}
        for device in view.devices:
            if device.claim not in known and (device.claim or device.state == State.IN_USE):
                yield Obstacle(
                    what=f"{node}/{device.name} is in use by {device.claim or 'somebody'}",
                    remedy=f"`fleet node drain {node}`, then end that claim",
                )
    api = facts.api or Api()
    for reading in api.claims.values():
        if reading.holding and any(pod.uid in api.pods for pod in reading.pods):
            yield Obstacle(
                what=f"claim {reading.name} is allocated on {', '.join(reading.nodes)} and a pod"
                " uses it",
                remedy="end that pod",
            )


def _unknown(facts: Facts) -> Iterator[Obstacle]:
    for node, why in facts.silent.items():
        yield Obstacle(
            what=f"{node} does not answer, so that what runs there is not known: {why}",
            remedy=f"start its service, or `fleet node forget {node}` if it is gone",
        )
    for kind, why in facts.api.unknown.items() if facts.api is not None else ():
        yield Obstacle(what=f"{kind} could not be read: {why}", remedy="see the API server")
    for uid, why in facts.api.unclear.items() if facts.api is not None else ():
        yield Obstacle(
            what=f"claim {uid} cannot be understood: {why}",
            remedy="look at it with `kubectl`; delete it if nobody needs it",
        )


def _published(facts: Facts) -> Iterator[Obstacle]:
    """A plugin that runs would make its slices again."""
    for lease in _publishers(facts.leases):
        yield Obstacle(
            what=f"the node plugin {lease.holder.name} publishes its devices",
            remedy="stop the node plugins first (remove their DaemonSet), wait a minute, repeat",
        )


def _publishers(leases: Sequence[Lease]) -> Iterator[Lease]:
    seen: set[str] = set()
    for lease in leases:
        if lease.holder.kind is HolderKind.PUBLISHER and lease.holder.name not in seen:
            seen.add(lease.holder.name)
            yield lease
