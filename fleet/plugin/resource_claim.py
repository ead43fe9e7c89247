"""A ResourceClaim as the API server has it, read for one node: what is ours in it. Pure.

The claim is raw JSON and may hold anything. What belongs to other drivers, or to another node's
pool, is passed over (B37); what is needed and malformed is named, never guessed. Whether the
consumers still live, and whether the node may serve them, is decided by those who know more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fleet.core import errors
from fleet.core.settings import WipePolicy
from fleet.core.settings_parse import Problem
from fleet.kube.base import Object
from fleet.plugin.configuration import Demand, Entry, Origin, Statement, demanded, parsed, statement

_RESULTS = "status.allocation.devices.results"
_CONFIG = "status.allocation.devices.config"


@dataclass(frozen=True, slots=True)
class Result:
    """One device of ours, on this node, that the claim was allocated."""

    request: str
    """Base name: kubelet compares it with the container's own word (reference 1.3)."""
    pool: str
    device: str
    share_id: str | None = None
    """Set for one share of a device that may be allocated several times."""
    admin: bool = False
    """Allocated with adminAccess: looks into the device, does not hold it (B35)."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A pod the claim is reserved for, by the API's word alone."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What the claim means for this node."""

    uid: str
    namespace: str
    name: str
    results: tuple[Result, ...]
    """Empty: allocated, but nothing of it is ours here. That is a valid claim."""
    consumers: tuple[Consumer, ...]
    """Pods only; our own hold and other kinds of consumers do not count (B12)."""
    terminating: bool
    demand: Demand
    others: tuple[str, ...] = ()
    """What else it is reserved for but pods and us, in words: ``podgroups.scheduling.k8s.io g``."""
    statements: tuple[Statement, ...] = ()
    """For each of `results`, what its configuration states of isolation and deallocation."""
    created_at: float | None = None
    """When the API server made the claim, s since the epoch; None: it does not say."""


def read(
    claim: Object, *, uid: str, driver: str, pool: str, policy: WipePolicy | None = None
) -> Reading:
    """The claim kubelet named by `uid`, as far as `driver` and the node's `pool` are concerned.

    `policy` is the node's own, against which the claim's wishes are measured. Raises
    `ClaimReplaced` (the name now belongs to another claim), `ClaimUnready` (no allocation, or a
    part that cannot be understood; the message names it), `ClaimConfigInvalid`.
    """
    metadata = _object(_object(claim, "the object").get("metadata"), "metadata")
    name = _text(metadata.get("name"), "metadata.name")
    namespace = _text(metadata.get("namespace"), "metadata.namespace")
    found = _text(metadata.get("uid"), "metadata.uid")
    if found != uid:
        raise errors.ClaimReplaced(f"claim {namespace}/{name} has UID {found}, asked was {uid}")
    status = _object(claim.get("status") or {}, "status")
    if status.get("allocation") is None:
        raise errors.ClaimUnready(f"claim {namespace}/{name} ({uid}) has no allocation")
    allocation = _object(status["allocation"], "status.allocation")
    devices = _object(allocation.get("devices") or {}, "status.allocation.devices")
    ours = tuple(_results(devices.get("results"), driver=driver, pool=pool))
    wishes = tuple(_entries(devices.get("config"), driver=driver)) if ours else ()
    problems: list[Problem] = []
    understood = parsed(wishes, problems)
    requests = [request for request, _ in ours]
    asked = demanded(understood, requests, policy=policy, problems=problems)
    return Reading(
        uid=uid,
        namespace=namespace,
        name=name,
        results=tuple(result for _, result in ours),
        consumers=tuple(_consumers(status.get("reservedFor"))),
        terminating=metadata.get("deletionTimestamp") is not None,
        demand=asked,
        others=tuple(_others(status.get("reservedFor"), driver)),
        statements=tuple(
            statement(understood, request, default_path=_CONFIG) for request in requests
        ),
        created_at=moment(metadata.get("creationTimestamp")),
    )


def _results(found: Any, *, driver: str, pool: str) -> Iterator[tuple[str, Result]]:
    """Our results in this pool, each with its full request name."""
    for index, item in enumerate(_list(found, _RESULTS)):
        path = f"{_RESULTS}[{index}]"
        result = _object(item, path)
        if _text(result.get("driver"), path, ".driver") != driver:
            continue
        if _text(result.get("pool"), path, ".pool") != pool:
            continue
        request = _text(result.get("request"), path, ".request")
        share = result.get("shareID")
        admin = result.get("adminAccess")
        if admin is not None and not isinstance(admin, bool):
            raise _malformed(f"{path}.adminAccess", admin, "true or false")
        yield (
            request,
            Result(
                request=_text(request.partition("/")[0], path, ".request"),
                pool=pool,
                device=_text(result.get("device"), path, ".device"),
                share_id=None if share is None else _text(share, path, ".shareID"),
                admin=bool(admin),
            ),
        )


def _entries(found: Any, *, driver: str) -> Iterator[Entry]:
    """Configuration for our driver. Entries of other drivers, or of a kind that is not opaque,
    are not ours to judge, whatever is in them.
    """
    for index, item in enumerate(_list(found, _CONFIG)):
        path = f"{_CONFIG}[{index}]"
        entry = _object(item, path)
        opaque = entry.get("opaque")
        if not isinstance(opaque, dict) or opaque.get("driver") != driver:
            continue
        source = entry.get("source")
        if source not in (Origin.CLASS.value, Origin.CLAIM.value):
            raise _malformed(f"{path}.source", source, "FromClass or FromClaim")
        names = _list(entry.get("requests"), f"{path}.requests")
        yield Entry(
            path=f"{path}.opaque.parameters",
            origin=Origin(source),
            requests=tuple(
                _text(request, f"{path}.requests[{place}]") for place, request in enumerate(names)
            ),
            parameters=opaque.get("parameters"),
        )


def _consumers(found: Any) -> Iterator[Consumer]:
    for index, item in enumerate(_list(found, "status.reservedFor")):
        path = f"status.reservedFor[{index}]"
        entry = _object(item, path)
        if entry.get("resource") == "pods" and not entry.get("apiGroup"):
            yield Consumer(
                name=_text(entry.get("name"), path, ".name"),
                uid=_text(entry.get("uid"), path, ".uid"),
            )


def _others(found: Any, driver: str) -> Iterator[str]:
    """Consumers of a kind nobody here can follow to pods; our own hold has the driver as group."""
    for index, item in enumerate(_list(found, "status.reservedFor")):
        entry = _object(item, f"status.reservedFor[{index}]")
        group, resource = entry.get("apiGroup"), entry.get("resource")
        if group != driver and (group or resource != "pods"):
            yield f"{resource}{f'.{group}' if group else ''} {entry.get('name')}"


def moment(found: Any) -> float | None:
    """Seconds since the epoch of the API server's own time; None: there is none."""
    try:
        when = datetime.fromisoformat(found)
    except (TypeError, ValueError):
        return None
    return when.timestamp() if when.tzinfo is not None else None


def _object(found: Any, path: str) -> Object:
    if not isinstance(found, dict):
        raise _malformed(path, found, "an object")
    return found


def _list(found: Any, path: str) -> list[Any]:
    if found is None:
        return []
    if not isinstance(found, list):
        raise _malformed(path, found, "a list")
    return found


def _text(found: Any, path: str, field: str = "") -> str:
    """`field`: what is added to the path where it has to be named."""
    if not isinstance(found, str) or not found:
        raise _malformed(f"{path}{field}", found, "a text")
    return found


def _malformed(path: str, found: Any, expected: str) -> errors.ClaimUnready:
    kind = "missing" if found is None else f"of type {type(found).__name__}"
    if isinstance(found, str):
        kind = f"{found[:60]!r}"
    return errors.ClaimUnready(f"claim: {path} is {kind}, expected was {expected}", field=path)
