"""Which object a path of the Kubernetes API addresses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from fleet.kube.base import Name, Resource, Selection
from tests.lab.apiserver.refusal import bad_request


@dataclass(frozen=True, slots=True)
class Address:
    """A path that addresses a collection (no name) or an object."""

    resource: Resource
    name: Name
    subresource: str
    query: dict[str, str]

    @property
    def selection(self) -> Selection:
        """The selection a list, watch or delete of the collection is about."""
        query = self.query
        return Selection(
            self.name.namespace, query.get("fieldSelector", ""), query.get("labelSelector", "")
        )

    def says(self, option: str) -> bool:
        """Whether a boolean option is on."""
        return self.query.get(option, "").lower() in ("1", "true")

    def number(self, option: str) -> int | None:
        """The value of a numeric option, None without one. Raises `Refusal` 400."""
        text = self.query.get(option, "")
        if text and not text.isdecimal():
            raise bad_request(f"{option}: {text!r} is no number")
        return int(text) if text else None


def parse(target: str, resources: Iterable[Resource]) -> Address | None:
    """The address of a request target, None when nothing is served there."""
    parts = urlsplit(target)
    pieces = [unquote(piece) for piece in parts.path.split("/") if piece]
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if pieces[:1] == ["api"]:
        group, rest = "", pieces[1:]
    elif pieces[:1] == ["apis"] and len(pieces) > 2:
        group, rest = pieces[1], pieces[2:]
    else:
        return None
    if len(rest) < 2:
        return None
    version, rest = rest[0], rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    for resource in resources:
        if (resource.group, resource.version, resource.plural) != (group, version, rest[0]):
            continue
        if len(rest) > 3 or (namespace and not resource.namespaced):
            return None
        name = rest[1] if len(rest) > 1 else ""
        if name and resource.namespaced and not namespace:
            return None
        subresource = rest[2] if len(rest) > 2 else ""
        return Address(resource, Name(name, namespace), subresource, query)
    return None
