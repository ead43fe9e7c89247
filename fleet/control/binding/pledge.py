"""The pledge on a claim that we are about to allocate: who works on it, and until when. Pure.

A claim that we wipe devices for has a lease but no allocation yet. The pledge, an annotation, tells
the coordinator that this lease is no leftover, and a second allocator that it comes too late. It
ends by itself: whoever died in mid-work is in nobody's way.

Whoever owns the claim can write the annotation as well, and would keep devices from others with it.
So it counts only together with a lease of the unit that stands for the claim, which its owner in
the store takes first and gives back last: a tenant cannot have one.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.core.model import Holder, HolderKind, Lease, UnitId
from fleet.kube.base import Object, uid_of, version_of
from fleet.kube.marks import Marks

OWNER_MAX = 64
"""Longest name of an owner that is believed to be one."""
LIFETIME_S = 60.0
"""How long, s, a pledge counts; it is renewed at half of that."""


@dataclass(frozen=True, slots=True)
class Pledge:
    """`owner` (an id of one attempt) allocates the claim, until `until` seconds since the epoch."""

    owner: str
    until: float

    def counts(self, now: float) -> bool:
        """Whether somebody is at work; one far in the future is a broken clock, not a pledge."""
        return now < self.until <= now + 2 * LIFETIME_S


def key(marks: Marks) -> str:
    """Name of the annotation."""
    return f"{marks.driver}/allocating"


def read(claim: Object, marks: Marks) -> Pledge | None:
    """The pledge on a claim; None: there is none, or it cannot be understood."""
    metadata = claim.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    text = annotations.get(key(marks)) if isinstance(annotations, dict) else None
    owner, _, until = str(text or "").rpartition(" ")
    if not owner or len(owner) > OWNER_MAX or not until.isdecimal() or len(until) > OWNER_MAX:
        return None
    return Pledge(owner, float(until))


def unit(uid: str) -> UnitId:
    """What is leased to allocate the claim of this UID: no device, a right."""
    return UnitId(f"allocating/{uid}")


def holder(owner: str) -> Holder:
    """In whose name that lease is."""
    return Holder(HolderKind.OPERATOR, f"bind:{owner}")


def is_right(lease: Lease) -> bool:
    """Whether the lease is of no device, but of somebody's right to allocate a claim."""
    return any(one.startswith(unit("")) for one in lease.units)


def covers(lease: Lease, uid: str, owner: str) -> bool:
    """Whether the lease is the one that makes the pledge of `owner` on this claim good."""
    return lease.holder == holder(owner) and unit(uid) in lease.units


def body(claim: Object, marks: Marks, pledge: Pledge | None) -> Object:
    """A merge patch of the claim that sets the pledge, or takes it off; guarded."""
    text = f"{pledge.owner} {int(pledge.until)}" if pledge is not None else None
    return {
        "metadata": {
            "uid": uid_of(claim),
            "resourceVersion": version_of(claim),
            "annotations": {key(marks): text},
        }
    }
