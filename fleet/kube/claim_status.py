"""One write of our part of a claim's status, however the claim's opaque parameters are spelled.

The API server keeps opaque parameters byte by byte and compares them so, but a server-side apply
writes the whole claim out anew: keys sorted, no spaces. An allocation whose parameters were sent
otherwise has changed then, and it is immutable: 422, whatever was applied (F61). A merge patch
leaves what it does not name, the order of keys included; spaces are lost by every way of writing
JSON, and such a claim takes no status from anybody but the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping

from fleet.core import errors
from fleet.kube.base import (
    CLAIMS,
    EVENTS,
    Cluster,
    Name,
    Object,
    PatchKind,
    Selection,
    name_of,
    object_in,
    objects_in,
    uid_of,
    version_of,
)
from fleet.kube.marks import MANAGER, Marks

REASON = "ParametersRespelled"
"""Reason of the event that tells the owner of such a claim."""
_KEYS = ("driver", "pool", "device", "shareID")


def write(cluster: Cluster, body: Object, marks: Marks) -> Object:
    """Carry `body` (`fleet.kube.claim_bodies.status`) out; the claim as the server has it
    then.

    Raises `ParametersRespelled` where no way of writing leaves the claim's parameters as they are,
    and what `Cluster.apply` raises.
    """
    try:
        return cluster.apply(CLAIMS, body, manager=MANAGER, subresource="status")
    except errors.ApiInvalid as error:
        if not _is_respelled(error):
            raise
    name, guard = name_of(body), (uid_of(body), version_of(body))
    found = cluster.get(CLAIMS, name)
    if (uid_of(found), version_of(found)) != guard:
        raise errors.ApiConflict(f"claim {name} changed meanwhile", reason="Conflict")
    merged = {
        "metadata": {"uid": guard[0], "resourceVersion": guard[1]},
        "status": _merged(object_in(found.get("status")), body["status"], marks),
    }
    try:
        return cluster.patch(CLAIMS, name, merged, kind=PatchKind.MERGE, subresource="status")
    except errors.ApiInvalid as error:
        if not _is_respelled(error):
            raise
        raise errors.ParametersRespelled(
            f"claim {name} cannot be told anything: its opaque parameters are JSON with spaces or"
            " other marks that the API server does not keep when it writes the claim again",
            **error.fields,
        ) from error


def told(cluster: Cluster, name: Name, uid: str) -> str:
    """What the owner was told of the spelling of a claim; "": nothing, as far as can be read."""
    chosen = Selection(namespace=name.namespace, fields=f"involvedObject.uid={uid}")
    try:
        found = cluster.list(EVENTS, chosen).items
    except errors.FleetError:
        return ""
    return next((str(one.get("message", "")) for one in found if one.get("reason") == REASON), "")


def _is_respelled(error: errors.ApiInvalid) -> bool:
    """Whether the server found the allocation changed, which nobody has named."""
    causes = error.fields.get("causes") or ()
    return any(str(cause[1]).startswith("status.allocation") for cause in causes)


def _merged(status: Mapping[str, object], wanted: Object, marks: Marks) -> Object:
    """Both lists as they are to be: a merge patch replaces a list as a whole.

    As an apply would do it: what others wrote stays, what is ours and not named goes.
    """
    there = objects_in(status.get("devices"))
    mine = {_key(entry): entry for entry in objects_in(wanted.get("devices"))}
    others = [one for one in there if one.get("driver") != marks.driver]
    known = {_key(one): one for one in there}
    ours = [_joined(known.get(key, {}), entry) for key, entry in mine.items()]
    holds = objects_in(wanted.get("reservedFor"))
    kept = [one for one in objects_in(status.get("reservedFor")) if not marks.is_hold(one)]
    return {"devices": [*others, *ours] or None, "reservedFor": [*kept, *holds] or None}


def _joined(known: Object, entry: Object) -> Object:
    """One device: our conditions beside those of other types."""
    found = {key: value for key, value in known.items() if key not in ("conditions", "data")}
    named = {one.get("type") for one in objects_in(entry.get("conditions"))}
    kept = [one for one in objects_in(known.get("conditions")) if one.get("type") not in named]
    ours = [one for one in kept if not _is_ours(one, entry)]
    return {**found, **entry, "conditions": [*ours, *objects_in(entry.get("conditions"))]}


def _is_ours(condition: Object, entry: Object) -> bool:
    return str(condition.get("type", "")).startswith(f"{entry.get('driver')}/")


def _key(entry: Object) -> tuple[str, ...]:
    return tuple(str(entry.get(key) or "") for key in _KEYS)
