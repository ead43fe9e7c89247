"""Pods, templates, classes and claims as the twin makes and reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from fleet.kube.base import CLAIMS, Name, Object, name_of, uid_of

BUILTIN = "resource.kubernetes.io/delete-protection"
POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
ENDED = ("Succeeded", "Failed")
CLASS = "gpu"


def stamp(now: float) -> str:
    """A time as the API carries it, whole seconds."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str) -> float:
    """The moment behind such a text."""
    return datetime.fromisoformat(text).timestamp()


def spec(count: int = 1, *, class_name: str = CLASS, tolerant: bool = False) -> Object:
    """The spec of a claim of `count` devices; `tolerant`: it tolerates every taint."""
    asked: Object = {"deviceClassName": class_name, "count": count}
    if tolerant:
        asked["tolerations"] = [{"operator": "Exists"}]
    return {"devices": {"requests": [{"name": "gpu", "exactly": asked}]}}


def template(name: Name, content: Object) -> Object:
    """A claim template."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name.name, "namespace": name.namespace},
        "spec": {"spec": content},
    }


def claim(name: Name, content: Object, *, owner: Object | None = None) -> Object:
    """A claim that somebody makes by hand, or for `owner`, a pod."""
    metadata: Object = {"name": name.name, "namespace": name.namespace}
    if owner is not None:
        metadata["ownerReferences"] = [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": name_of(owner).name,
                "uid": uid_of(owner),
                "controller": True,
            }
        ]
    return {"apiVersion": CLAIMS.api_version, "kind": CLAIMS.kind, "metadata": metadata,
            "spec": content}  # fmt: skip


def pod(name: Name, uses: Sequence[Object], *, grace_s: int = 30) -> Object:
    """A pod with entries of ``spec.resourceClaims``."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name.name, "namespace": name.namespace},
        "spec": {"resourceClaims": list(uses), "terminationGracePeriodSeconds": grace_s},
    }


def claim_names(found: Object) -> Mapping[str, Name | None]:
    """The claim behind each entry of a pod; None: not made yet."""
    namespace = name_of(found).namespace
    listed = found.get("status", {}).get("resourceClaimStatuses") or ()
    made = {one["name"]: one.get("resourceClaimName") for one in listed}
    names: dict[str, Name | None] = {}
    for entry in found["spec"].get("resourceClaims") or ():
        direct = entry.get("resourceClaimName") or made.get(entry["name"])
        names[entry["name"]] = Name(direct, namespace) if direct else None
    return names


def deleting(found: Object) -> bool:
    """Whether an object is Terminating."""
    return "deletionTimestamp" in found["metadata"]


def ended(found: Object) -> bool:
    """Whether a pod is in a terminal phase."""
    return found.get("status", {}).get("phase") in ENDED


def node_name(found: Object) -> str:
    """The node a pod is bound to, "" without one."""
    return str(found["spec"].get("nodeName", ""))


def reserved(found: Object) -> list[Object]:
    """Entries of a claim's reservedFor."""
    return list(found.get("status", {}).get("reservedFor") or ())


def is_pod(entry: Object) -> bool:
    """Whether an entry of reservedFor is a pod."""
    return entry.get("resource") == "pods" and not entry.get("apiGroup")


def allocation(found: Object) -> Object | None:
    """A claim's allocation."""
    allocated: Object | None = found.get("status", {}).get("allocation")
    return allocated


def results(found: Object) -> Iterator[Object]:
    """Allocated devices of a claim."""
    yield from ((allocation(found) or {}).get("devices") or {}).get("results") or ()


def with_status(found: Object, **fields: object) -> Object:
    """The object with fields of its status set, or taken out (None)."""
    status = {**found.get("status", {}), **fields}
    return {**found, "status": {k: v for k, v in status.items() if v is not None}}


def with_finalizers(found: Object, *, add: str = "", drop: str = "") -> Object:
    """The object with a finalizer more or less."""
    kept = [one for one in found["metadata"].get("finalizers") or () if one != drop]
    if add and add not in kept:
        kept.append(add)
    metadata = {k: v for k, v in found["metadata"].items() if k != "finalizers"}
    return {**found, "metadata": {**metadata, **({"finalizers": kept} if kept else {})}}


def conditions(found: Object) -> Mapping[tuple[str, str, str], Mapping[str, Object]]:
    """Conditions by type, by (driver, pool, device)."""
    return {
        (entry["driver"], entry["pool"], entry["device"]): {
            one["type"]: one for one in entry.get("conditions") or ()
        }
        for entry in found.get("status", {}).get("devices") or ()
    }
