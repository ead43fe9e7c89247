"""Reviews as an API server sends them: the same wish in every shape and version."""

from __future__ import annotations

import copy
from typing import Any

from tests.fleet.admission.rights import DRIVER, SPACE, config

Document = dict[str, Any]
FORBIDDEN_WISH: Document = {
    "tolerations": [{"key": f"{DRIVER}/quarantined", "operator": "Exists"}],
}
"""Tolerates the quarantine."""
EXPLICIT = {"allocationMode": "ExactCount", "count": 1}


def wish(**more: Any) -> Document:
    """What is asked of the driver's class."""
    return {"deviceClassName": DRIVER, **EXPLICIT, **more}


def devices(*requests: Document, entries: list[Document] | None = None) -> Document:
    """`spec.devices`, with a good tag unless `entries` are given."""
    return {"requests": list(requests), "config": [config()] if entries is None else entries}


def exactly(**more: Any) -> Document:
    """A request as v1 and v1beta2 have it."""
    return {"name": "gpu", "exactly": wish(**more)}


def flat(**more: Any) -> Document:
    """A request as v1beta1 has it."""
    return {"name": "gpu", **wish(**more)}


def second(**more: Any) -> Document:
    """A request whose second alternative asks for `more`."""
    first = {"name": "a", **wish()}
    return {"name": "gpu", "firstAvailable": [first, {"name": "b", **wish(**more)}]}


def claim(spec: Document, version: str = "v1", **metadata: Any) -> Document:
    """A claim of these devices."""
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "metadata": {"name": "x", "namespace": SPACE, **metadata},
        "spec": {"devices": spec},
    }


def template(spec: Document, version: str = "v1", **metadata: Any) -> Document:
    """A template of such claims."""
    found = claim(spec, version, **metadata)
    return {**found, "kind": "ResourceClaimTemplate", "spec": {"spec": found["spec"]}}


def review(
    document: Document | None, *, operation: str = "CREATE", uid: str = "rev-1", **more: Any
) -> Document:
    """The review of an object about to be written."""
    shown = document or more.get("oldObject") or {"apiVersion": "v1", "kind": "Pod"}
    group, _, version = shown["apiVersion"].rpartition("/")
    request: Document = {
        "uid": uid,
        "operation": operation,
        "namespace": SPACE,
        "kind": {"group": group, "version": version, "kind": shown["kind"]},
        "resource": {"group": group, "version": version, "resource": shown["kind"].lower() + "s"},
        "userInfo": {"username": "user-1", "groups": ["system:authenticated"]},
        "object": copy.deepcopy(document),
        "oldObject": None,
        **more,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
