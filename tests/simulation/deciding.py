"""What the product's own coordinator decides on a claim: `fleet.control.binding.claim_judge` in the
model.

A `Situation` is all that a coordinator can learn about one claim, in the model's words. It is told
to the product as a claim object, a view of the node and leases, and the product's `decide` says
what to do. Time is not in it: whatever waits for some seconds may go on at once.
"""

from __future__ import annotations

from functools import cache
from math import inf
from typing import Any, NamedTuple

from fleet.control.binding.claim_facts import UNDER, Facts, Rules
from fleet.control.binding.claim_judge import decide
from fleet.control.binding.decisions import (
    Acquire,
    Bind,
    Decision,
    Fail,
    LetGo,
    Order,
    PodFact,
    Unbind,
    Undo,
)
from fleet.core.messages import ClaimBrief, DeviceResult, DeviceView, NodeView, Outcome, Owed
from fleet.core.model import Holder, Lease, UnitId
from fleet.kube import claim_bodies
from fleet.kube.claim import read
from fleet.kube.marks import Marks
from tests.fleet.control.binding.scenes import DRIVER, NOW, SPACE, device, reason, result, view
from tests.simulation.rules import REASONS, Model, holder_of, token_of
from tests.simulation.world import CAMPAIGN, NOBODY, World

MARKS = Marks(DRIVER)
TIMEOUT_S = 600.0
TERMS = Rules(MARKS, binding_timeout_s=TIMEOUT_S, fresh_s=60.0)
UID, POD = "u", {"resource": "pods", "name": "p", "uid": "pod"}
GATES = {
    "bindingConditions": [MARKS.sanitized, MARKS.healthy],
    "bindingFailureConditions": [MARKS.failed],
}
DIGEST = "sha256:1"
PHASES: dict[type, str] = {
    Acquire: "acquire",
    Order: "order",
    Bind: "bind",
    Fail: "fail",
    Undo: "undo",
    LetGo: "let go",
    Unbind: "unbind",
}
"""The decisions that change anything, as phases of a coordinator that is about to act on one.

Finalizer and hold are one mark here, so `Finalize` never comes; `Unexposed` tells a pod only.
"""


class Situation(NamedTuple):
    """One claim as it can be read: its object, its device on the node, its leases in the store."""

    allocated: bool
    reserved: bool
    bound: bool
    leaving: bool
    gone: bool
    """Whether its pod is gone, and the claim is being deleted with it."""
    condition: str
    hold: bool
    lease: int
    """Token of its lease of the device it is allocated to; 0 without one."""
    stray: int
    """Token of one of its leases of another device; 0 without one."""
    refused: int
    """Who else has the lease of its device, NOBODY for nobody."""
    taken: bool
    answers: bool
    """Whether the node answers; what follows is what it says."""
    record: str
    owed: bool
    state: str
    reasons: str
    claim: str
    """Whose the device is on the node: "own", "other", or nobody's."""
    under: int
    """Token of the certificate in force; 0 without one."""
    floor: int
    closed: bool
    attached: bool
    ordered: bool
    late: bool


def situation(model: Model, world: World, index: int) -> Situation:
    """What there is to know about the claim now."""
    claim, place = world.claims[index], model.place(index, world.claims[index].seat)[0]
    unit = world.units[place]
    mine = unit.holder == index and claim.allocated
    others = [
        u.lease
        for at, u in enumerate(world.units)
        if u.holder == index and not (mine and at == place)
    ]
    refused = unit.holder if unit.holder != index and claim.allocated else NOBODY
    owner = {NOBODY: "", index: "own"}.get(unit.claim, "other")
    return Situation(
        allocated=claim.allocated,
        reserved=claim.pod in ("live", "dying"),
        bound=claim.bound,
        leaving=claim.pod == "dying",
        gone=claim.pod == "gone",
        condition=claim.condition,
        hold=claim.hold,
        lease=unit.lease if mine else 0,
        stray=max(others, default=0),
        refused=refused,
        taken=refused not in (NOBODY, CAMPAIGN) and world.claims[refused].allocated,
        answers=world.node == "up",
        record=claim.record,
        owed=bool(claim.outbox or claim.seek or claim.giving),
        state=unit.state,
        reasons=unit.reasons,
        claim=owner,
        under=unit.token if unit.state in ("CLEAN", "IN_USE") and unit.certificate else 0,
        floor=unit.floor,
        closed=unit.closed,
        attached=model.watched(world, (place,)),
        ordered=unit.work == f"b{index}",
        late=False,
    )


@cache
def decided(now: Situation) -> tuple[str, int] | None:
    """What the product would do, and the token it is about; None for waiting and resting."""
    decision: Decision = decide(_facts(now), TERMS)
    phase = PHASES.get(type(decision))
    if phase is None:
        return None
    if isinstance(decision, Undo):
        return phase, max(lease.token for lease in decision.leases).counter
    return phase, now.lease if phase == "order" else 0


def _facts(now: Situation) -> Facts:
    seen = _view(now)
    found = seen.devices[0]
    proven = found.state == "CLEAN" and found.certified_under != "0.0"
    return Facts(
        reading=read(_claim(now), MARKS),
        now=NOW,
        lease=_lease(now.lease, found.units) if now.lease else None,
        strays=(_lease(now.stray, ("elsewhere",)),) if now.stray else (),
        view=seen if now.answers else None,
        results={found.uuid: _result(found)} if proven and not now.ordered else {},
        ordered=frozenset({found.uuid} if now.ordered else ()),
        refused=str(holder_of(now.refused)) if now.refused != NOBODY else "",
        taken=now.taken,
        unused_s=inf,
        pods=(PodFact("p", "pod", now.bound, now.leaving),) if now.reserved else (),
    )


def _lease(counter: int, units: tuple[str, ...]) -> Lease:
    return Lease(frozenset(map(UnitId, units)), _holder(), token_of(counter))


def _holder() -> Holder:
    return Holder(holder_of(0).kind, UID)


def _result(found: DeviceView) -> DeviceResult:
    return DeviceResult(
        node="n1",
        device=found.name,
        uuid=found.uuid,
        outcome=Outcome.CERTIFIED,
        state=found.state,
        certificate=found.certificate,
    )


def _claim(now: Situation) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "c", "namespace": SPACE, "uid": UID, "resourceVersion": "1"}
    if now.gone:
        metadata["deletionTimestamp"] = claim_bodies.stamp(NOW)
    if now.hold:
        metadata["finalizers"] = [MARKS.finalizer]
    users = [*([POD] if now.reserved else ()), *([_hold()] if now.hold else ())]
    status: dict[str, Any] = {"reservedFor": users}
    if now.allocated:
        at = NOW - (TIMEOUT_S if now.late else 0.0)
        results = [result("a") | GATES]
        status["allocation"] = {
            "devices": {"results": results},
            "allocationTimestamp": claim_bodies.stamp(at),
        }
        status["devices"] = [_said(now)]
    return {"metadata": metadata, "status": status}


def _hold() -> dict[str, Any]:
    return MARKS.hold(node="n1", uid=UID)


def _said(now: Situation) -> dict[str, Any]:
    kinds = {MARKS.sanitized: "true", MARKS.healthy: "true", MARKS.failed: "failed"}
    conditions = [
        {"type": kind, "status": str(now.condition == meant)} for kind, meant in kinds.items()
    ]
    entry: dict[str, Any] = {"driver": DRIVER, "pool": "n1", "device": "a"}
    # In the model conditions True are for the only lease the claim may have had since.
    return entry | {"conditions": conditions, "data": {UNDER: str(token_of(now.lease))}}


def _view(now: Situation) -> NodeView:
    owner = {"own": UID, "other": "somebody", "": ""}[now.claim]
    open_reasons = tuple(reason(REASONS[letter].code) for letter in now.reasons)
    found = device(
        "a",
        state=now.state,
        reasons=open_reasons,
        claim=owner,
        certificate=DIGEST if now.under else "",
        certified_under=str(token_of(now.under)),
        floor=str(token_of(now.floor)),
        closed=now.closed,
        attached=("somebody",) if now.attached else (),
    )
    briefs = (ClaimBrief(uid=UID, state=now.record),) if now.record != "ABSENT" else ()
    owed = (Owed(uid=UID, namespace=SPACE, name="c"),) if now.owed else ()
    return view(found, claims=briefs, owed=owed)
