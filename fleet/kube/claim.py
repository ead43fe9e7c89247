"""A ResourceClaim as the coordinator reads it: what is ours, who uses it, what we wrote. Pure.

The claim is raw JSON and may hold anything (B19). What belongs to other drivers is passed over;
what is ours and cannot be understood is `ClaimUnready`, never guessed. Unlike
`fleet.plugin.resource_claim`, which answers kubelet for one node, this reads the whole life of a
claim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fleet.core import errors
from fleet.kube.base import Name, Object, name_of, uid_of, version_of
from fleet.kube.marks import AGENT, Marks

EXTENDED = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of a claim that no pod's spec names: only the pod's status does."""
Key = tuple[str, str, str]
"""Pool, device name and share ("" without one): what identifies our entry in status.devices."""


@dataclass(frozen=True, slots=True)
class Allotted:
    """One of our devices that the claim was given."""

    request: str
    """As the allocation names it: ``request`` or ``request/subrequest``."""
    node: str
    """Name of the pool, which is the node's."""
    device: str
    """Name in the slice."""
    share: str = ""
    admin: bool = False
    """Allocated with adminAccess: looked into, never held (B35)."""
    conditions: tuple[str, ...] = ()
    """Binding conditions as copied at allocation; empty: the scheduler does not wait."""
    failures: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        return (self.node, self.device, self.share)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod the claim is reserved for, by the claim's word."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ClaimReading:
    """One claim now."""

    name: Name
    uid: str
    version: str
    """resourceVersion: the guard of whatever is decided on this reading."""
    terminating: bool
    allocated: bool
    allocated_at: float | None
    """allocationTimestamp, seconds since the epoch; None: not stated."""
    devices: tuple[Allotted, ...]
    """Ours, without the agent device."""
    pods: tuple[Pod, ...]
    held: bool
    """Whether our entry is in reservedFor."""
    others: int
    """Entries in reservedFor that are neither pods nor ours."""
    finalizer: bool
    """Whether our finalizer is on the claim."""
    builtin_finalizer: bool
    conditions: Mapping[Key, Mapping[str, str]]
    """Status by type of the conditions on our devices, whoever wrote them."""
    receipts: Mapping[Key, Mapping[str, Any]]
    """What we noted about our devices when we said the conditions: ``status.devices[].data``."""
    raw: Object
    extended: bool = False
    """Whether the scheduler made it for a pod that asked for an extended resource."""
    holding: tuple[Allotted, ...] = field(init=False, repr=False, compare=False)
    """Our devices that the claim has to itself."""
    nodes: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Nodes of these devices, each once."""
    gated: bool = field(init=False, repr=False, compare=False)
    """Whether the scheduler waits for our conditions."""
    bound: bool = field(init=False, repr=False, compare=False)
    """Whether every condition the scheduler waits for is True."""

    def __post_init__(self) -> None:
        """Once for each reading: every decision asks for these again and again."""
        devices, keep = self.devices, object.__setattr__
        holding = tuple([one for one in devices if not one.admin])
        keep(self, "holding", holding)
        keep(self, "nodes", tuple(dict.fromkeys([one.node for one in holding])))
        keep(self, "gated", any(one.conditions for one in devices))
        bound = all(self.is_true(one, kind) for one in devices for kind in one.conditions)
        keep(self, "bound", bound)

    def receipt(self, one: Allotted, key: str) -> str:
        """One text of a device's receipt, "" without one."""
        return str(self.receipts.get(one.key, {}).get(key, ""))

    @property
    def marked(self) -> bool:
        """Whether anything of ours is on the claim that somebody has to take off again."""
        return self.held or self.finalizer

    def is_true(self, one: Allotted, kind: str) -> bool:
        """Whether the condition `kind` of a device is True."""
        return self.conditions.get(one.key, {}).get(kind) == "True"

    @property
    def failed(self) -> bool:
        """Whether a failure condition of ours is True."""
        return any(self.is_true(one, kind) for one in self.devices for kind in one.failures)


def read(claim: Object, marks: Marks) -> ClaimReading:
    """The claim as it stands. Raises `ClaimUnready` for what is ours and not to be understood."""
    metadata = _mapping(claim.get("metadata"), "metadata")
    uid, name = uid_of(claim), name_of(claim)
    if not uid or not name.name:
        raise errors.ClaimUnready("a claim without name or UID", field="metadata")
    status = _mapping(_or_empty(claim.get("status")), "status")
    allocation = status.get("allocation")
    allotted = tuple(_allotted(allocation, marks)) if allocation is not None else ()
    entries = _strict(status.get("reservedFor"), "status.reservedFor")
    pods = tuple(
        Pod(str(entry.get("name", "")), str(entry.get("uid", "")))
        for entry in entries
        if entry.get("resource") == "pods" and not entry.get("apiGroup")
    )
    holds = sum(1 for entry in entries if marks.is_hold(entry))
    finalizers = _list(metadata.get("finalizers"))
    told = tuple(_entries(status.get("devices"), marks))
    return ClaimReading(
        name=name,
        uid=uid,
        version=version_of(claim),
        terminating=metadata.get("deletionTimestamp") is not None,
        allocated=allocation is not None,
        allocated_at=_time(_mapping(allocation or {}, "status.allocation")),
        devices=allotted,
        pods=pods,
        held=holds > 0,
        others=len(entries) - len(pods) - holds,
        finalizer=marks.finalizer in finalizers,
        builtin_finalizer="resource.kubernetes.io/delete-protection" in finalizers,
        conditions={
            key: {str(one.get("type")): str(one.get("status")) for one in _objects(entry)}
            for key, entry in told
        },
        receipts={key: one["data"] for key, one in told if isinstance(one.get("data"), dict)},
        raw=claim,
        extended=_is_extended(metadata.get("annotations")),
    )


def _is_extended(annotations: Any) -> bool:
    return isinstance(annotations, dict) and annotations.get(EXTENDED) == "true"


def _allotted(allocation: Any, marks: Marks) -> Iterator[Allotted]:
    path = "status.allocation.devices.results"
    given = _mapping(allocation, "status.allocation").get("devices")
    devices = _mapping(_or_empty(given), path)
    for found in _strict(devices.get("results"), path):
        if found.get("driver") != marks.driver:
            continue
        one = Allotted(
            request=_text(found.get("request"), path, "request"),
            node=_text(found.get("pool"), path, "pool"),
            device=_text(found.get("device"), path, "device"),
            share=str(found.get("shareID") or ""),
            admin=found.get("adminAccess") is True,
            conditions=_texts(found.get("bindingConditions")),
            failures=_texts(found.get("bindingFailureConditions")),
        )
        if one.device != AGENT:
            yield one


def _entries(found: Any, marks: Marks) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    for entry in _list(found):
        if isinstance(entry, dict) and entry.get("driver") == marks.driver:
            share = str(entry.get("shareID") or "")
            yield (str(entry.get("pool")), str(entry.get("device")), share), entry


def _objects(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in _list(entry.get("conditions")) if isinstance(one, dict)]


def _time(allocation: Mapping[str, Any]) -> float | None:
    text = allocation.get("allocationTimestamp")
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.timestamp() if found.tzinfo is not None else None


def _mapping(found: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise errors.ClaimUnready(f"claim: {path} is no object", field=path)
    return found


def _or_empty(found: Any) -> Any:
    return {} if found is None else found


def _strict(found: Any, path: str) -> list[Mapping[str, Any]]:
    """Objects of which none may be overlooked: a user or a device less is a lease given back."""
    if found is None:
        return []
    if not isinstance(found, list):
        raise errors.ClaimUnready(f"claim: {path} is no list", field=path)
    if not all(isinstance(one, dict) for one in found):
        raise errors.ClaimUnready(f"claim: {path}[] is no object", field=f"{path}[]")
    return found


def _list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _text(found: Any, within: str, name: str) -> str:
    if not isinstance(found, str) or not found:
        path = f"{within}.{name}"
        raise errors.ClaimUnready(f"claim: {path} is {found!r}, expected was a text", field=path)
    return found


def _texts(found: Any) -> tuple[str, ...]:
    return tuple(one for one in _list(found) if isinstance(one, str))
