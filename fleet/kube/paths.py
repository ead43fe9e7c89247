"""Where objects live in the API: paths and queries of requests. Pure.

Every part is checked and quoted: an empty name would address the whole collection, and ``..`` is
folded away by HTTP clients before the server sees it.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from fleet.core import errors
from fleet.kube.base import Name, Object, Resource, Selection, name_of


def group_path(group: str, version: str = "") -> str:
    """Path of a group's discovery document, or of one version's list of resources."""
    root = f"/apis/{_part(group, 'group')}" if group else "/api"
    return f"{root}/{_part(version, 'version')}" if version else root


def collection_path(resource: Resource, namespace: str = "") -> str:
    """Path of all objects of a kind; `namespace` "" means all, and is ignored for cluster scope."""
    root = group_path(resource.group, resource.version)
    if resource.namespaced and namespace:
        root = f"{root}/namespaces/{_part(namespace, 'namespace')}"
    return f"{root}/{resource.plural}"


def home_path(resource: Resource, name: Name) -> str:
    """Path an object is created at. Raises `InputInvalid` when its namespace is not said."""
    if resource.namespaced and not name.namespace:
        raise errors.InputInvalid(f"the {resource.kind} {name.name!r} names no namespace")
    return collection_path(resource, name.namespace)


def object_path(resource: Resource, name: Name, subresource: str = "") -> str:
    """Path of one object. Raises `InputInvalid` for a name that addresses something else."""
    path = f"{home_path(resource, name)}/{_part(name.name, f'name of a {resource.kind}')}"
    return f"{path}/{_part(subresource, 'subresource')}" if subresource else path


def body_name(resource: Resource, body: Object) -> Name:
    """The name in `body`. Raises `InputInvalid` when the body says another kind or no metadata."""
    kind, version = body.get("kind"), body.get("apiVersion")
    if (kind, version) != (resource.kind, resource.api_version):
        raise errors.InputInvalid(
            f"a body of kind {version}/{kind} was meant for {resource.api_version}/{resource.kind}",
            remedy="set kind and apiVersion of the body",
        )
    if not isinstance(body.get("metadata"), dict):
        raise errors.InputInvalid(f"the body of a {resource.kind} carries no metadata")
    return name_of(body)


def query(parameters: Mapping[str, str]) -> str:
    """``?a=b&c=d`` of what is not empty, "" when nothing is left."""
    stated = {key: value for key, value in parameters.items() if value}
    return f"?{urlencode(stated)}" if stated else ""


def selection_query(selection: Selection) -> dict[str, str]:
    """The parameters by which a list or watch is narrowed."""
    return {"fieldSelector": selection.fields, "labelSelector": selection.labels}


def _part(text: str, role: str) -> str:
    if text in ("", ".", ".."):
        raise errors.InputInvalid(f"{text!r} is no {role}")
    return quote(text, safe="")
