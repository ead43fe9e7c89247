"""The bodies of our writes to claims: server-side applies with UID and resourceVersion as guards.

Pure. Every apply of a status carries the full set of what is to be ours afterwards: what a body
leaves out, the server takes away (names.MANAGER is one owner, see there). Timestamps are whole
seconds with a zone: one without is answered with 500, not 422.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fleet.kube.base import CLAIMS, Object
from fleet.kube.claim import Allotted, ClaimReading
from fleet.kube.marks import Marks

MESSAGE_MAX = 256
"""Characters of a condition's message: it goes into a pod's event word for word."""


@dataclass(frozen=True, slots=True)
class Word:
    """One condition to be set. `reason` is CamelCase; `message` names nothing of other tenants."""

    kind: str
    reason: str
    message: str = ""
    true: bool = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Told:
    """What we say about one device of a claim."""

    device: Allotted
    words: tuple[Word, ...]
    receipt: Mapping[str, str | int] | None = None
    """``status.devices[].data``: token, certificate digest, verdict."""


def status(
    reading: ClaimReading, marks: Marks, *, told: Iterable[Told], hold: str = "", now: float
) -> Object:
    """An apply to the status: these words and, with `hold` (a node), our reservation.

    Guarded by UID and resourceVersion of the reading: said is only what was examined.
    """
    content: Object = {"devices": [_entry(one, marks, now=now) for one in told]}
    if hold:
        content["reservedFor"] = [marks.hold(node=hold, uid=reading.uid)]
    return {**_guarded(reading), "status": content}


def finalizer(reading: ClaimReading, marks: Marks, *, present: bool) -> Object:
    """A merge patch of the claim itself: with our finalizer, or without it.

    No apply: who creates a claim under our manager's name would make us the owner of its spec, and
    every apply of less be refused. The list is whole, and guarded by the reading's version.
    """
    body = _guarded(reading)
    others = [one for one in _finalizers(reading) if one != marks.finalizer]
    body["metadata"]["finalizers"] = [*others, marks.finalizer] if present else others
    return body


def deallocation(reading: ClaimReading) -> Object:
    """A merge patch of the status that ends allocation and reservations in one step.

    For a claim that is not Terminating and whose last reservation is ours: taking the entry away
    alone would leave it allocated for ever (measured).
    """
    body: Object = {"metadata": {"uid": reading.uid, "resourceVersion": reading.version}}
    return {**body, "status": {"allocation": None, "reservedFor": None, "devices": None}}


def unreserved(reading: ClaimReading, marks: Marks) -> Object:
    """A merge patch of the status without our reservation, all others as they are.

    For an entry that an apply without it leaves there: whoever may write a claim can make its
    fields his own, or nobody's, in managedFields.
    """
    body: Object = {"metadata": {"uid": reading.uid, "resourceVersion": reading.version}}
    entries = (reading.raw.get("status") or {}).get("reservedFor") or []
    kept = [entry for entry in entries if not marks.is_hold(entry)]
    return {**body, "status": {"reservedFor": kept or None}}


def stamp(now: float) -> str:
    """A time as the API server takes it."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _finalizers(reading: ClaimReading) -> list[str]:
    found = reading.raw["metadata"].get("finalizers")
    return [str(one) for one in found] if isinstance(found, list) else []


def _guarded(reading: ClaimReading) -> Object:
    return {
        "apiVersion": CLAIMS.api_version,
        "kind": CLAIMS.kind,
        "metadata": {
            "name": reading.name.name,
            "namespace": reading.name.namespace,
            "uid": reading.uid,
            "resourceVersion": reading.version,
        },
    }


def _entry(told: Told, marks: Marks, *, now: float) -> Object:
    one = told.device
    entry: Object = {"driver": marks.driver, "pool": one.node, "device": one.device}
    if one.share:
        entry["shareID"] = one.share
    entry["conditions"] = [
        {
            "type": word.kind,
            "status": "True" if word.true else "False",
            "reason": word.reason,
            "message": word.message[:MESSAGE_MAX],
            "lastTransitionTime": stamp(now),
        }
        for word in told.words
    ]
    if told.receipt is not None:
        entry["data"] = dict(told.receipt)
    return entry
