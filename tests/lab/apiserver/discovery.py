"""The documents by which a client learns what the server serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fleet.kube.base import Resource

if TYPE_CHECKING:
    from tests.lab.apiserver.server import StandIn

VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def document(path: str, standin: StandIn) -> dict[str, Any] | None:
    """The document at `path`, None when there is none."""
    place = urlsplit(path).path.rstrip("/")
    if place == "/version":
        major, minor = standin.version.split(".")[:2]
        return {"major": major, "minor": minor, "gitVersion": f"v{major}.{minor}.0"}
    if place in ("/healthz", "/readyz", "/livez"):
        return {"status": "ok"}
    kinds = standin.engine.kinds
    served = [resource for resource in kinds if resource not in standin.hidden]
    if place == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if place == "/apis":
        groups = sorted({resource.group for resource in served if resource.group})
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [
                {
                    "name": group,
                    "versions": [{"groupVersion": f"{group}/v1", "version": "v1"}],
                    "preferredVersion": {"groupVersion": f"{group}/v1", "version": "v1"},
                }
                for group in groups
            ],
        }
    prefix = "/api/" if place.startswith("/api/") else "/apis/"
    version = place.removeprefix(prefix)
    chosen = [resource for resource in served if resource.api_version == version]
    if not place.startswith(prefix) or not chosen:
        return None
    statuses = {resource for resource in chosen if kinds[resource].has_status}
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": [
            *(_entry(resource, "", VERBS) for resource in chosen),
            *(_entry(resource, "/status", ["get", "patch", "update"]) for resource in statuses),
        ],
    }


def _entry(resource: Resource, subresource: str, verbs: list[str]) -> dict[str, Any]:
    return {
        "name": f"{resource.plural}{subresource}",
        "singularName": resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": verbs,
    }
