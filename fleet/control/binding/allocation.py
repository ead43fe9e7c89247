"""What we write when we allocate a claim ourselves, and who keeps a device given twice. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping

from fleet.control.binding import receipt
from fleet.control.binding.claim_facts import ALLOCATOR
from fleet.control.binding.device_choice import Choice, Pick
from fleet.control.binding.offers import results_of
from fleet.core.messages import DeviceResult
from fleet.core.model import Token
from fleet.core.profiles import RULES, Profile, Rules
from fleet.kube import claim_bodies
from fleet.kube.base import Object, uid_of
from fleet.kube.claim import ClaimReading
from fleet.kube.claim_bodies import Told, Word
from fleet.kube.marks import Marks
from fleet.plugin.slices.device_attributes import attribute

BUILTIN_FINALIZER = "resource.kubernetes.io/delete-protection"
"""With it the claim's allocation ends with its last pod, and a deletion waits for that."""


def allocation(choice: Choice, *, now: float) -> Object:
    """``status.allocation``. The time has to be there: the scheduler cannot add it (measured)."""
    devices: Object = {"results": [_result(pick) for pick in choice.picks]}
    if choice.config:
        devices["config"] = list(choice.config)
    term = {"key": "metadata.name", "operator": "In", "values": [choice.node]}
    return {
        "devices": devices,
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [term]}]},
        "allocationTimestamp": claim_bodies.stamp(now),
    }


def _result(pick: Pick) -> Object:
    found: Object = {
        "request": pick.wish.name,
        "driver": pick.offer.driver,
        "pool": pick.offer.pool,
        "device": pick.offer.name,
    }
    if pick.wish.tolerations:
        found["tolerations"] = list(pick.wish.tolerations)
    for name in ("bindingConditions", "bindingFailureConditions"):
        if pick.offer.entry.get(name):
            found[name] = list(pick.offer.entry[name])
    return found


def with_allocation(claim: Object, given: Object) -> Object:
    """The claim as read, with the allocation: the body of a guarded PUT of its status."""
    body = copy.deepcopy(claim)
    body["status"] = {**(body.get("status") or {}), "allocation": given}
    return body


def with_protection(claim: Object, *, present: bool) -> Object | None:
    """The claim with or without the builtin finalizer; None: it is so already."""
    finalizers = list(claim["metadata"].get("finalizers") or ())
    if (BUILTIN_FINALIZER in finalizers) is present:
        return None
    if present:
        finalizers.append(BUILTIN_FINALIZER)
    else:
        finalizers.remove(BUILTIN_FINALIZER)
    body = copy.deepcopy(claim)
    body["metadata"]["finalizers"] = finalizers
    return body


def is_given(claim: Object, given: Object) -> bool:
    """Whether the claim has this very allocation: of this moment, with these devices."""
    found = (claim.get("status") or {}).get("allocation")
    return (
        isinstance(found, dict)
        and found.get("allocationTimestamp") == given["allocationTimestamp"]
        and [_place(one) for one in results_of(claim)]
        == [_place(one) for one in given["devices"]["results"]]
    )


def told(
    reading: ClaimReading, marks: Marks, token: Token, proofs: Mapping[str, DeviceResult]
) -> list[Told]:
    """Conditions True and receipts for each device; `proofs` by name in the slice.

    The receipt says that we allocated the claim: it may wait long for its first pod.
    """
    reasons = {marks.sanitized: "Certified", marks.healthy: "Checked"}
    return [
        Told(
            one,
            tuple(
                Word(kind, reasons.get(kind, "Proven"), f"under token {token}", true=True)
                for kind in one.conditions
            ),
            {**receipt.written(token, proofs[one.device]), ALLOCATOR: marks.driver},
        )
        for one in reading.devices
    ]


def rules_of(choice: Choice) -> Rules:
    """The profile's rules of the devices chosen; a profile we do not know counts as strict."""
    named = {attribute(pick.offer.entry, "sanitizationProfile") for pick in choice.picks}
    profile = Profile(named.pop()) if len(named) == 1 and named <= set(Profile) else Profile.STRICT
    return RULES[profile]


def rival(reading: ClaimReading, claims: Iterable[Object], driver: str) -> Object | None:
    """A claim that has one of our devices and for whom ours has to make room; None: ours stays.

    We hold the lease of every device, so only ours can ever be exposed; the other's node refuses.
    Ours gives way where pods wait for the other while none waits for ours: nobody has to wait for a
    device that its claim does not use. Where a pod waits for ours, the other one gets an answer
    from the coordinator and is allocated anew.
    """
    if reading.pods or reading.others:
        return None
    mine = {(one.node, one.device) for one in reading.holding}
    for claim in claims:
        if uid_of(claim) == reading.uid or not (claim.get("status") or {}).get("reservedFor"):
            continue
        for result in results_of(claim):
            place = (str(result.get("pool")), str(result.get("device")))
            if result.get("driver") == driver and place in mine and not result.get("adminAccess"):
                return claim
    return None


def _place(result: Object) -> tuple[str, ...]:
    return tuple(str(result.get(name)) for name in ("request", "driver", "pool", "device"))
