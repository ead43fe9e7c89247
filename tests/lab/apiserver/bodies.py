"""What a request's body says it is about, held against where the request was sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet.kube.base import Name, Object, Resource
from tests.lab.apiserver.kinds import Kind
from tests.lab.apiserver.refusal import bad_request, unpatchable


def check_head(body: Mapping[str, Any], resource: Resource) -> None:
    """Raise `Refusal` 400 when the body says another kind; saying none is fine."""
    head = (body.get("apiVersion", resource.api_version), body.get("kind", resource.kind))
    if head != (resource.api_version, resource.kind):
        raise bad_request(
            f"the API version or kind in the body ({head[0]}, Kind={head[1]}) does not match the"
            f" expected one ({resource.api_version}, Kind={resource.kind})"
        )


def check_patched(body: Any, resource: Resource) -> None:
    """Raise `Refusal` 422 when a patch turned the object into one of another kind."""
    found = body if isinstance(body, Mapping) else {}
    head = (found.get("apiVersion"), found.get("kind"))
    if head != (resource.api_version, resource.kind):
        raise unpatchable(f"{head[0]}, Kind={head[1]} is not what the resource holds")


def check_place(body: Mapping[str, Any], name: Name) -> None:
    """Raise `Refusal` 400 when the body names another object than the request."""
    metadata = body.get("metadata") or {}
    given = metadata.get("name", name.name)
    if given != name.name:
        raise bad_request(
            f"the name of the object ({given}) does not match the name on the URL ({name.name})"
        )
    if (metadata.get("namespace") or name.namespace) != name.namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def name_for(body: Object, kind: Kind, namespace: str) -> Name:
    """Where a new object goes. Raises `Refusal` 400."""
    if not kind.resource.namespaced:
        return Name(str((body.get("metadata") or {}).get("name", "")))
    metadata = body.get("metadata") or {}
    found = str(metadata.get("namespace") or namespace or "")
    if not found:
        raise bad_request("an object of this kind needs a namespace")
    if namespace and found != namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    return Name(str(metadata.get("name", "")), found)


def written_part(body: Object, kind: Kind, subresource: str) -> Object:
    """The part of a body that this endpoint writes: the rest is ignored without a word."""
    if subresource == "status":
        return {key: value for key, value in body.items() if key == "status"}
    if not kind.has_status:
        return body
    return {key: value for key, value in body.items() if key != "status"}
