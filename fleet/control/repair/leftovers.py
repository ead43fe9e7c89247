"""Which leases, marks, records, specs, slices and taints belong to nobody any more. Pure.

Nothing is an orphan without proof: an error of the API, a silent node, a claim that cannot be
understood are "unknown", are told with what is missing, and are left alone. Each finding says what
it is, why it is nobody's, what takes it away and which command does.

Of a claim is proof: it is gone (by UID), or not allocated on the node asked about, or nobody uses
it (no live pod, no other consumer) and it is Terminating or was allocated long ago; and in each
case its node has no record of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum

from fleet.control.repair.facts import (
    Api,
    Facts,
    called,
    hold_nodes,
    homes,
    node_of_slice,
    presumed,
    records,
)
from fleet.core.messages import DeviceView, Message, NodeView
from fleet.core.model import HolderKind, Lease, UnitId
from fleet.kube.base import name_of
from fleet.kube.claim import ClaimReading
from fleet.plugin.slices import takeover
from fleet.plugin.slices.device_attributes import attribute
from fleet.plugin.slices.gate import is_quarantined
from fleet.plugin.slices.pool_view import devices_of

RECONCILE = "fleet reconcile"


class Kind(StrEnum):
    """What can be left behind, in the order in which it is taken away."""

    RECORD = "record"
    LEASE = "lease"
    HOLD = "hold"
    FINALIZER = "finalizer"
    SPEC = "spec"
    SLICE = "slice"
    TAINT = "taint"
    CONDITION = "condition"
    """Of a Node; only an uninstall takes it away, its writer keeps it right."""


class Orphan(Message):
    """Something of ours that belongs to nobody."""

    kind: Kind
    node: str
    """"" where no node is known."""
    subject: str
    """Claim UID, holder, name of a slice or ``slice device``: with kind and node its identity."""
    what: str
    why: str
    """Why it is nobody's; where `proven` is False, what is missing for the proof."""
    fix: str
    command: str
    proven: bool
    namespace: str = ""
    name: str = ""
    holder: str = ""
    token: str = ""
    devices: tuple[str, ...] = ()
    """UUIDs the token is to be closed on."""
    uid: str = ""
    version: str = ""
    """UID and resourceVersion of the slice, as guards."""
    pods: tuple[str, ...] = ()
    """UIDs of the pods the claim was reserved for when it was judged."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What identifies it from one look to the next."""
        return (self.kind, self.node, self.subject, self.token)


@dataclass(frozen=True, slots=True)
class Verdict:
    """On a claim: `why` it is nobody's ("" it is somebody's), or what is `missing` to know."""

    why: str = ""
    missing: str = ""


def find(facts: Facts) -> tuple[Orphan, ...]:
    """Everything of ours that is nobody's, in the order in which it is to be taken away."""
    found = [*_records(facts), *_leases(facts), *_marks(facts), *_specs(facts)]
    found += [*_slices(facts), *_taints(facts)]
    order = list(Kind)
    return tuple(sorted(found, key=lambda one: (order.index(one.kind), one.node, one.subject)))


def judge(uid: str, node: str, facts: Facts) -> Verdict:
    """Whether anybody has a use for the claim on this node, by the API alone."""
    api = facts.api
    if api is None:
        return Verdict(missing="there is no cluster to ask whether the claim still exists")
    if trouble := api.trouble("resourceclaims", "nodes"):
        return Verdict(missing=f"the API does not tell ({trouble})")
    if node and node not in api.nodes:
        return Verdict(missing=f"the cluster asked has no Node {node}: is it the right one?")
    if uid in api.unclear:
        return Verdict(missing=f"the claim is there and cannot be read: {api.unclear[uid]}")
    claim = api.claims.get(uid)
    if claim is None:
        return Verdict(why="the claim is gone from the API")
    if facts.allocating(claim):
        return Verdict()  # it has its lease before its allocation
    if node and node not in {one.node for one in claim.devices}:
        return Verdict(why=f"the claim is not allocated on {node}")
    return _unused(claim, facts)


def _unused(claim: ClaimReading, facts: Facts) -> Verdict:
    api = facts.api
    if api is None or claim.others:
        return Verdict()
    if claim.pods and (trouble := api.trouble("pods")):
        return Verdict(missing=f"the API does not tell whether its pods live ({trouble})")
    if any(pod.uid in api.pods for pod in claim.pods):
        return Verdict()
    if claim.terminating:
        return Verdict(why="the claim is being deleted and no pod uses it")
    age_s = None if claim.allocated_at is None else facts.at - claim.allocated_at
    if claim.allocated and age_s is not None and age_s < facts.settle_s:
        return Verdict()  # its pod may be on its way
    if facts.awaiting(claim):
        return Verdict()  # allocated by `fleet claim bind`, whose pod may come any day
    return Verdict(why="no live pod uses the claim")


# --- records and specs ---


def _records(facts: Facts) -> Iterator[Orphan]:
    if facts.api is None:
        return
    for node, view in facts.views.items():
        for claim in view.claims:
            verdict = judge(claim.uid, node, facts)
            if claim.state == "UNPREPARING" or not verdict.why:
                continue
            if claim.state == "PREPARED" and not claim.name:
                continue  # not of the API: a verb of ours has it, such as `fleet prove`
            yield Orphan(
                kind=Kind.RECORD,
                node=node,
                subject=claim.uid,
                what=f"record of claim {called(claim)} ({claim.state})",
                why=verdict.why,
                fix="the node tears it down, once its tenant is proven gone",
                command=RECONCILE,
                proven=True,
                namespace=claim.namespace,
                name=claim.name,
            )


def _specs(facts: Facts) -> Iterator[Orphan]:
    for node, uids in facts.specs.items():
        view = facts.views.get(node)
        known = records(view) if view is not None else frozenset()
        for uid in uids:
            if uid in known:
                continue
            silent = facts.silent.get(node, "it was not asked")
            yield Orphan(
                kind=Kind.SPEC,
                node=node,
                subject=uid,
                what=f"CDI spec of claim {uid}",
                why="its node has no record of the claim"
                if view is not None
                else f"the node does not answer: {silent}",
                fix="the file is removed",
                command=RECONCILE if view is not None else "start the node's service",
                proven=view is not None,
            )


# --- leases ---


def _leases(facts: Facts) -> Iterator[Orphan]:
    places = homes(facts)
    for lease in facts.leases:
        kind = lease.holder.kind
        if kind is HolderKind.CLAIM:
            yield from _claim_lease(lease, {places.get(unit, "") for unit in lease.units}, facts)
        elif kind is HolderKind.CAMPAIGN and lease.holder.name not in facts.open_runs:
            yield _lease(lease, "", why="its run has ended", fix="the store takes it back")
        elif kind is HolderKind.QUARANTINE:
            yield from _quarantine_lease(lease, facts)


def _claim_lease(lease: Lease, nodes: AbstractSet[str], facts: Facts) -> Iterator[Orphan]:
    uid = lease.holder.name
    node = next(iter(nodes)) if len(nodes) == 1 else ""
    view = facts.views.get(node)
    if view is None:
        yield from _out_of_reach(lease, facts)
        return
    if uid in records(view):
        return
    verdict = judge(uid, node, facts)
    if not (verdict.why or verdict.missing):
        return
    devices = covering(view, lease.units)
    missing = verdict.missing or ("" if devices else "its node does not list the devices it is of")
    why = missing or f"{verdict.why}, and {node} has no record of it"
    fix = "the node closes its token, then the store takes it back"
    found = _lease(lease, node, why=why, fix=fix)
    yield found.model_copy(update={"proven": not missing, "devices": devices})


def _out_of_reach(lease: Lease, facts: Facts) -> Iterator[Orphan]:
    """A lease whose node does not answer is left; it is told where nobody has a use for it."""
    node = presumed(lease, facts)
    if not judge(lease.holder.name, "", facts).why:
        return
    api = facts.api or Api()
    gone = bool(node) and not api.trouble("nodes") and node not in api.nodes
    who = node or "no node that answers reports its devices"
    state = "has no Node object any more" if gone else "does not answer"
    why = f"{node} {state}: what runs there is not known" if node else who
    found = _lease(lease, node, why=why, fix="the node closes the token when it is back")
    command = f"fleet node forget {node or 'NODE'} (only once it is surely gone)"
    yield found.model_copy(update={"proven": False, "command": command})


def _quarantine_lease(lease: Lease, facts: Facts) -> Iterator[Orphan]:
    """The coordinator keeps these in line with the nodes; one it forgot keeps a good device."""
    for node in facts.views:
        device = facts.device(node, lease.holder.name)
        if device is not None and not is_quarantined(device):
            why = f"{node} has no reason against {device.name} any more"
            yield _lease(lease, node, why=why, fix="the store takes it back")


def _lease(lease: Lease, node: str, *, why: str, fix: str) -> Orphan:
    return Orphan(
        kind=Kind.LEASE,
        node=node,
        subject=str(lease.holder),
        what=f"lease of {lease.holder} on {', '.join(sorted(lease.units))} under {lease.token}",
        why=why,
        fix=fix,
        command=RECONCILE,
        proven=True,
        holder=str(lease.holder),
        token=str(lease.token),
    )


def covering(view: NodeView, units: AbstractSet[UnitId]) -> tuple[str, ...]:
    """UUIDs of devices that are made of exactly these units together; empty: there are none."""
    left, chosen = {str(unit) for unit in units}, []
    for device in sorted(view.devices, key=lambda d: (-len(d.units), d.uuid)):
        if left.issuperset(device.units) and device.units:
            chosen.append(device.uuid)
            left -= set(device.units)
    return () if left else tuple(chosen)


# --- marks on claims ---


def _marks(facts: Facts) -> Iterator[Orphan]:
    if facts.api is None:
        return
    for claim in facts.api.claims.values():
        if claim.marked:
            yield from _mark(claim, facts)


def _mark(claim: ClaimReading, facts: Facts) -> Iterator[Orphan]:
    nodes = {*claim.nodes, *hold_nodes(claim, facts.marks)}
    verdict = _unused(claim, facts)
    why = verdict.why if claim.holding else "the claim has no device of ours"
    if not why:
        return  # somebody uses it, or nothing is known of its pods: both are no orphan
    asked = nodes or {*facts.views, *facts.silent}
    if any(claim.uid in records(facts.views[node]) for node in asked if node in facts.views):
        return
    away = sorted(node for node in asked if node not in facts.views)
    missing, command = "", RECONCILE
    if away:
        missing = f"{', '.join(away)} does not answer: whether it has a record is not known"
        command = f"fleet node forget {away[0]} (only once it is surely gone)"
    where = ", ".join(sorted(nodes)) or "all nodes"
    for kind, there in ((Kind.HOLD, claim.held), (Kind.FINALIZER, claim.finalizer)):
        if there:
            yield Orphan(
                kind=kind,
                node=next(iter(sorted(nodes)), ""),
                subject=claim.uid,
                what=f"our {kind} on claim {claim.name}",
                why=missing or f"{why}, and {where} has no record of it",
                fix="hold and finalizer are taken off, in this order",
                command=command,
                proven=not missing,
                namespace=claim.name.namespace,
                name=claim.name.name,
                pods=tuple(pod.uid for pod in claim.pods),
            )


# --- slices ---


def _slices(facts: Facts) -> Iterator[Orphan]:
    api = facts.api
    if api is None:
        return
    trouble = api.trouble("nodes", "resourceslices")
    for found in api.slices:
        node = node_of_slice(found)
        if not node or node in api.nodes or (trouble and "nodes" in api.unknown):
            continue
        missing = trouble
        if node in facts.views:
            missing = "its Node object is gone, and yet the node answers"
        metadata = found.get("metadata", {})
        yield Orphan(
            kind=Kind.SLICE,
            node=node,
            subject=name_of(found).name,
            what=f"ResourceSlice {name_of(found)} with {len(devices_of(found))} devices",
            why=missing or f"there is no Node {node}",
            fix="the slice is deleted",
            command=RECONCILE if not missing else "see `fleet status` on that node",
            proven=not missing,
            name=name_of(found).name,
            uid=str(metadata.get("uid", "")),
            version=str(metadata.get("resourceVersion", "")),
        )


def _taints(facts: Facts) -> Iterator[Orphan]:
    """The node's publisher is the only writer of its slices: a taint is told, never taken off."""
    driver = facts.marks.driver
    for found in facts.api.slices if facts.api is not None else ():
        node = node_of_slice(found)
        taken = {one.device for one in takeover.taken_over(found, driver=driver)}
        for entry in devices_of(found):
            device = facts.device(node, attribute(entry, "uuid"))
            name = str(entry.get("name"))
            marked = any(t.get("key") == f"{driver}/quarantined" for t in entry.get("taints") or ())
            if device is None or is_quarantined(device) or not (marked or name in taken):
                continue
            yield _taint(node, name_of(found).name, device, taken=name in taken)


def _taint(node: str, name: str, device: DeviceView, *, taken: bool) -> Orphan:
    what = "mark of a take-over" if taken else "quarantine taint"
    return Orphan(
        kind=Kind.TAINT,
        node=node,
        subject=f"{name} {device.name}",
        what=f"{what} on {device.name}",
        why="its node has no reason against the device; only the node's publisher may write there",
        fix="the node's publisher takes it off with its next step",
        command="see that the node plugin runs; see its log if this stays",
        proven=False,
    )
