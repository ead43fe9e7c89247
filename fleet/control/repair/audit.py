"""Do claims at the API agree with leases and nodes? Pure.

An allocation without a lease of ours (B8), two claims on one piece of memory, a lease or a record
whose claim is gone, a claim of ours that nobody holds any more: none of them exposes anything, for
the node refuses, and each says that somebody acts around us or that something was left behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fleet.control.repair.facts import Api
from fleet.control.repair.troubles import AuditFinding, Trouble, finding
from fleet.core.messages import NodeView
from fleet.core.model import NO_TOKEN, HolderKind, Lease, Token
from fleet.kube.claim import Allotted, ClaimReading
from fleet.plugin.slices.device_attributes import uuid_of


@dataclass(frozen=True, slots=True)
class Compared:
    """What is compared. `at` and `settle_s` (age from which a lease has to be there) in seconds."""

    at: float
    leases: Sequence[Lease]
    views: Mapping[str, NodeView]
    api: Api
    settle_s: float


def compare(sources: Compared) -> Iterator[AuditFinding]:
    """All disagreements. What the API did not tell is said, and nothing is concluded from it."""
    api = sources.api
    for kind, why in api.unknown.items():
        yield finding(Trouble.API_SILENT, kind, why)
    for uid, why in api.unclear.items():
        yield finding(Trouble.CLAIM_UNCLEAR, uid, why)
    if not api.trouble("resourceclaims"):
        yield from _holders(sources)
    for claim in api.claims.values():
        yield from _claim(claim, sources)
    yield from _twice(sources)


def _holders(sources: Compared) -> Iterator[AuditFinding]:
    for lease in sources.leases:
        uid = lease.holder.name
        if lease.holder.kind is HolderKind.CLAIM and not sources.api.uid_known(uid):
            detail = f"leased under {lease.token} to claim {uid}, which the API does not have"
            place = ", ".join(sorted(lease.units))
            yield finding(Trouble.LEASE_OF_GONE_CLAIM, place, detail)
    for node, view in sources.views.items():
        for claim in view.claims:
            if not sources.api.uid_known(claim.uid):
                detail = f"record of {claim.uid} ({claim.state}), which the API does not have"
                yield finding(Trouble.RECORD_OF_GONE_CLAIM, node, detail)


def _claim(claim: ClaimReading, sources: Compared) -> Iterator[AuditFinding]:
    if claim.marked and not claim.holding:
        yield finding(
            Trouble.FREE_BUT_MARKED,
            str(claim.name),
            "our hold or finalizer is on it, and it has no device of ours",
        )
    held = any(
        lease.holder.kind is HolderKind.CLAIM and lease.holder.name == claim.uid
        for lease in sources.leases
    )
    young = claim.allocated_at is not None and sources.at - claim.allocated_at < sources.settle_s
    if claim.holding and not held and ((claim.gated and claim.bound) or not young):
        devices = ", ".join(f"{one.node}/{one.device}" for one in claim.holding)
        token = _recorded(claim, sources.views)
        known = f"; its node has a record of one under {token}" if token else ""
        yield finding(
            Trouble.LEASE_MISSING if token else Trouble.ALLOCATED_WITHOUT_LEASE,
            str(claim.name),
            f"claim {claim.uid} is allocated {devices} and has no lease{known}",
        )


def _recorded(claim: ClaimReading, views: Mapping[str, NodeView]) -> str:
    """The token under which a node has the claim in its records; "" where none has."""
    told = [one.token for view in views.values() for one in view.claims if one.uid == claim.uid]
    return next((token for token in told if Token.parse(token) > NO_TOKEN), "")


def _twice(sources: Compared) -> Iterator[AuditFinding]:
    """By memory where the node tells it, so that a part and its whole are found; else by name."""
    users: dict[str, dict[str, str]] = {}
    for claim in sources.api.claims.values():
        for one in claim.holding:
            for piece in _pieces(one, sources.views.get(one.node)):
                users.setdefault(piece, {})[str(claim.name)] = f"{one.node}/{one.device}"
    told: set[tuple[str, ...]] = set()
    for claims in users.values():
        names = tuple(sorted(claims))
        if len(names) > 1 and names not in told:
            told.add(names)
            places = ", ".join(sorted(set(claims.values())))
            detail = f"allocated to {' and to '.join(names)} at the same time"
            yield finding(Trouble.ALLOCATED_TWICE, places, detail)


def _pieces(one: Allotted, view: NodeView | None) -> Sequence[str]:
    uuid = uuid_of(view, one.device) if view is not None else None
    device = next((d for d in view.devices if d.uuid == uuid), None) if view else None
    if device is None:
        return (f"{one.node}/{one.device}",)
    return tuple(f"{one.node}/{unit}" for unit in device.units)
