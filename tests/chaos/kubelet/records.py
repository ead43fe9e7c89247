"""What must hold of claims, specs and leases on disk after any kill, and at rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fleet.core.claim_states import ClaimState
from fleet.core.model import ClaimUid, HolderKind, State, UnitId
from fleet.evidence import layout
from fleet.node.cdi.directory import SpecDirectory
from fleet.wiring.adapters import specs_of
from fleet.wiring.plans import NodePlan
from tests.chaos.checks import NodeSample, Sample


def after_a_kill(plan: NodePlan, now: Sample) -> list[str]:
    """What holds whenever the owner is dead."""
    node = now.nodes.get(plan.node)
    if node is None:
        return []
    return [*_specs(plan, node), *_holders(node, now)]


def _specs(plan: NodePlan, node: NodeSample) -> Iterator[str]:
    """Promise 3: a spec exists only while a durable record names its devices."""
    listed = set(_directory(plan).listed())
    for uid in sorted(listed - node.claims.keys()):
        yield f"the spec of {uid} has no record"
    for uid, claim in node.claims.items():
        if claim.state is ClaimState.PREPARED and uid not in listed:
            yield f"{uid} is PREPARED and has no spec"
        if uid in listed and not claim.devices:
            yield f"the record of {uid} names no device and has a spec"


def _holders(node: NodeSample, now: Sample) -> Iterator[str]:
    """Promise 2: one holder per unit, and the lease of an exposed unit is that claim's."""
    named: dict[UnitId, str] = {}
    for uid, claim in node.claims.items():
        for unit_id in claim.units:
            if unit_id in named:
                yield f"{unit_id} is held by {named[unit_id]} and {uid}"
            named[unit_id] = uid
    leases = {unit_id: lease for lease in now.leases for unit_id in lease.units}
    for unit_id, unit in node.units.items():
        if unit.claim != named.get(unit_id):
            yield f"{unit_id} has the claim {unit.claim}, the records say {named.get(unit_id)}"
        if unit.state is not State.IN_USE:
            continue
        holder, lease = node.claims.get(unit.claim or ClaimUid("")), leases.get(unit_id)
        if holder is None or lease is None:
            yield f"{unit_id} is IN_USE, record {holder}, lease {lease}"
        elif (lease.holder.name, lease.token) != (holder.uid, holder.token):
            yield f"{unit_id} is exposed to {holder.uid} under {holder.token}, the lease is {lease}"


def _directory(plan: NodePlan) -> SpecDirectory:
    return specs_of(plan, layout.node_directory(Path(plan.state), plan.node))


def at_rest(plan: NodePlan, now: Sample) -> list[str]:
    """What holds once every pod is gone: nothing is left anywhere, every device is clean."""
    node, specs = now.nodes[plan.node], _directory(plan).directory
    return [
        *(f"the record of {uid} is left" for uid in node.claims),
        *(
            f"{lease.holder} still has {lease.token}"
            for lease in now.leases
            if lease.holder.kind is HolderKind.CLAIM
        ),
        *(f"{path.name} is left in the CDI directory" for path in specs.glob("*")),
        *(
            f"{unit_id} is {unit.state} of {unit.claim} at rest"
            for unit_id, unit in node.units.items()
            if unit.state is not State.CLEAN or unit.claim is not None
        ),
        *([f"{node.outbox} acts are left in the outbox"] if node.outbox else []),
        *([f"{node.workers} workers are still journalled"] if node.workers else []),
    ]
