"""The port to a Kubernetes API server: raw JSON objects and explicit write guards.

Objects are plain dictionaries as the server sent them: a typed model would drop fields it does not
know, and a later write would erase them (case B19). Every write says what it must not overwrite:
a resourceVersion, a UID, or a field manager's ownership (server-side apply).

`fleet.kube.client` talks to a real server; the tests have a twin in memory (tests/lab/apiserver).
The contract suite in tests/contracts holds for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

Object = dict[str, Any]
"""One API object as JSON."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object: where it lives in the API. `group` is "" for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """``group/version`` as objects carry it."""
        return f"{self.group}/{self.version}" if self.group else self.version


CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", namespaced=True)
SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod", namespaced=True)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
EVENTS = Resource("", "v1", "events", "Event", namespaced=True)
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True)


@dataclass(frozen=True, slots=True)
class Name:
    """The name of one object; `namespace` is "" for cluster-scoped kinds."""

    name: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects a list or watch is about. Selectors are the server's own strings."""

    namespace: str = ""
    """"" means all namespaces."""
    fields: str = ""
    """Field selector such as ``spec.nodeName=node-1,spec.driver=gpu.example.com``."""
    labels: str = ""
    trim: Callable[[Object], Object] | None = None
    """What to keep of each object, for whoever keeps many; applied page by page where the server
    is far, so that a list never has all of everything at one time."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A list as of `resource_version`. `skipped`: entries that were no objects (B19)."""

    items: tuple[Object, ...]
    resource_version: str
    skipped: int = 0


class Change(StrEnum):
    """What a watch reports."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    SYNCED = "SYNCED"
    """The objects delivered since the last (re)start of the watch are all there are: whatever the
    watcher knows and has not seen again since then is gone. `object` is empty."""
    ALIVE = "ALIVE"
    """The server is there, and nothing has changed (a bookmark). `object` is empty."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change of one object."""

    change: Change
    object: Object = field(default_factory=dict)


class PatchKind(StrEnum):
    """Content type of a patch; always sent explicitly (case B76)."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"


class Cluster(Protocol):
    """An API server. Safe for threads. All calls are bounded in time.

    Errors (all in `fleet.core.errors`): `ApiNotFound` a 404 whose Status names the object;
    `ApiConflict` 409 (a guard did not hold, or the object exists already: field ``reason``);
    `ApiInvalid` 422 and 400 (the body is refused; field ``causes``); `ApiForbidden` 401, 403 and a
    422 whose cause is FieldValueForbidden (a right is missing: fields ``status``, ``causes``);
    `ApiUnavailable` no connection, time-out, 429, 503, 504 and any other 404 (retryable; a write
    may have been carried out); `ApiFailed` any other 5xx: never retried blindly, since the server
    answers 500 to malformed bodies.
    """

    def get(self, resource: Resource, name: Name) -> Object:
        """One object, live from the server."""
        ...

    def list(self, resource: Resource, selection: Selection = Selection()) -> Listing:
        """All objects selected, all pages."""
        ...

    def watch(
        self,
        resource: Resource,
        selection: Selection = Selection(),
        *,
        timeout_s: float,
        alive: bool = False,
    ) -> Iterator[Event]:
        """The objects selected now (ADDED, then SYNCED), then their changes, for `timeout_s`.

        With `alive` also ALIVE, at least every minute or so, while the server is there: a watch
        that stays silent for longer is one whose connection is dead.

        Survives closed connections, 410 and gaps inside itself: after each loss it delivers all
        objects again and SYNCED. Ends when `timeout_s` is over; raises `ApiUnavailable`, or
        `ApiForbidden` for a credential, only when the server cannot be reached for the rest of that
        time, and `ApiForbidden` for a right that is missing at once.
        """
        ...

    def create(self, resource: Resource, body: Object) -> Object:
        """Create; the name comes from the body (`name` or `generateName`)."""
        ...

    def replace(self, resource: Resource, body: Object, *, subresource: str = "") -> Object:
        """PUT. The body must carry metadata.resourceVersion; without it: `InputInvalid`.

        An unconditional PUT of a status clears an allocation (measured), hence no way to send one.
        """
        ...

    def apply(
        self, resource: Resource, body: Object, *, manager: str, subresource: str = ""
    ) -> Object:
        """Server-side apply with ``force``: `manager` owns exactly the fields of `body` then.

        metadata.uid and metadata.resourceVersion in the body are guards, honoured by the server
        (422 and 409).
        """
        ...

    def patch(
        self,
        resource: Resource,
        name: Name,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        kind: PatchKind,
        subresource: str = "",
    ) -> Object:
        """A merge patch (a mapping) or a JSON patch (a sequence of operations)."""
        ...

    def delete(
        self, resource: Resource, name: Name, *, uid: str = "", resource_version: str = ""
    ) -> None:
        """Delete under preconditions; one that is gone already is fine, a failed guard is not."""
        ...


def object_in(found: object) -> Object:
    """A field that should be an object; {} for what is none, whoever wrote it (B19)."""
    return found if isinstance(found, dict) else {}


def objects_in(found: object) -> Sequence[Object]:
    """The objects of a field that should be a list of them; what is none is left out."""
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else ()


def name_of(found: Object) -> Name:
    """The name of an object."""
    metadata = found.get("metadata", {})
    return Name(str(metadata.get("name", "")), str(metadata.get("namespace", "") or ""))


def version_of(found: Object) -> str:
    """The object's resourceVersion, "" without one."""
    return str(found.get("metadata", {}).get("resourceVersion", ""))


def uid_of(found: Object) -> str:
    """The object's UID, "" without one."""
    return str(found.get("metadata", {}).get("uid", ""))
