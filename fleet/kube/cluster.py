"""The cluster port over any transport: which request each verb is, and what its answer means.

`fleet.kube.client` supplies the transport that reaches a real server. Requests are paced here;
nothing is retried here except a list whose pages expired, and what a watch does inside itself.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol
from urllib.parse import quote, urlencode

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.kube import answers, json_limits
from fleet.kube.base import (
    Event,
    Listing,
    Name,
    Object,
    PatchKind,
    Resource,
    Selection,
    name_of,
    version_of,
)
from fleet.kube.watch import Act, Step, Watching

# Where objects live in the API: paths and queries of requests. Pure.
#
# Every part is checked and quoted: an empty name would address the whole collection, and ``..`` is
# folded away by HTTP clients before the server sees it.


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


# How often the API server is asked: a budget of requests per second with bursts. Pure.
#
# A request is never dropped for the budget, it waits its turn; one whose turn comes later than its
# own deadline is told so instead of joining the queue.


class Pacer:
    """`qps` requests per second on average, `burst` at once after a quiet time.

    Not safe for threads: the caller holds a lock around `reserve` and waits outside it.
    """

    def __init__(self, *, qps: float, burst: float) -> None:
        """`qps` > 0; `burst` >= 1 requests."""
        if qps <= 0 or burst < 1:
            raise ValueError(f"a budget of {qps} requests/s with bursts of {burst} lets none pass")
        self._spacing_s = 1.0 / qps
        self._slack_s = (burst - 1.0) / qps
        self._turn = float("-inf")

    def reserve(self, now: float, *, limit_s: float) -> float | None:
        """Seconds this request has to wait from `now` (monotonic); its turn is taken.

        None, and nothing taken, when that would be more than `limit_s`.
        """
        turn = max(self._turn, now)
        wait_s = max(0.0, turn - self._slack_s - now)
        if wait_s > limit_s:
            return None
        self._turn = turn + self._spacing_s
        return wait_s


LOG = logging.getLogger(__name__)

JSON = "application/json"
APPLY = "application/apply-patch+yaml"
"""Content type of server-side apply; JSON is YAML, so the body stays JSON."""

PAGE = 500
"""Objects per page of a list: the size kubectl uses."""

LIST_RESTARTS = 3
"""How often a list whose pages expired (410) is begun again."""

BURST = 2.0
"""Requests allowed at once after a quiet time, in seconds' worth of the budget."""

EVERYTHING = Selection()

NEEDED = ("resourceclaims", "resourceslices")
NEEDED_REMEDY = "use Kubernetes 1.34 or newer with resource.k8s.io/v1 enabled"


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; `what` names it in errors. `body` is JSON, None for no body."""

    method: str
    target: str
    """Path and query."""
    what: str
    body: object = None
    content_type: str = ""
    read_timeout_s: float = 0.0
    """Longest silence, s; 0: the transport's own."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer, whole."""

    status: int
    body: bytes
    retry_after: str = ""


class Stream(Protocol):
    """An answer that is read while it comes. Reading raises `ApiUnavailable` when it breaks."""

    def chunks(self) -> Iterator[bytes]:
        """Pieces as they arrive, cut anywhere."""
        ...

    def close(self) -> None:
        """Drop the connection. Allowed twice."""
        ...


class Transport(Protocol):
    """Carries requests to the server, authenticated. Safe for threads.

    Raises `ApiUnavailable` when no answer comes; a 401 is repeated once with a renewed credential.
    """

    def exchange(self, request: Request) -> Answer:
        """Send and read the whole answer, whatever its status."""
        ...

    def stream(self, request: Request) -> Stream | Answer:
        """Send and leave a 2xx answer open; any other is read whole."""
        ...

    def close(self) -> None:
        """Close idle connections."""
        ...


class KubernetesCluster:
    """`fleet.kube.base.Cluster` over HTTP. Safe for threads; stays in the process that made it."""

    def __init__(self, transport: Transport, *, qps: float, timeout_s: float, clock: Clock) -> None:
        """`qps` requests per second on average; `timeout_s` as `fleet.kube.client.connect`."""
        self._transport = transport
        self._timeout_s = timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._pacer = Pacer(qps=qps, burst=max(1.0, BURST * qps))
        self._qps = qps
        self._skipped = 0

    @property
    def skipped(self) -> int:
        """Entries of lists and watches that were no objects, since the start (case B19)."""
        with self._lock:
            return self._skipped

    def require(self) -> None:
        """Check once at the start that the server serves what we need.

        Raises `ApiNotFound` naming what the server lacks, and what `get` raises.
        """
        target = group_path("resource.k8s.io", "v1")
        answer = self._exchange(Request("GET", target, "GET the list of resource.k8s.io/v1"))
        served = [
            entry.get("name")
            for entry in answers.parsed(answer.body).get("resources") or []
            if isinstance(entry, dict)
        ]
        missing = [plural for plural in NEEDED if plural not in served]
        if answer.status == 200 and not missing:
            return
        if answer.status not in (200, 404):
            raise self._failure(answer, "GET the list of resource.k8s.io/v1")
        lacking = "the group version" if answer.status == 404 else ", ".join(missing)
        raise errors.ApiNotFound(
            f"the API server ({self._server_version()}) does not serve resource.k8s.io/v1:"
            f" {lacking} is missing",
            remedy=NEEDED_REMEDY,
        )

    def get(self, resource: Resource, name: Name) -> Object:
        """As `Cluster.get`."""
        return self._object("GET", object_path(resource, name), f"{resource.plural} {name}")

    def list(self, resource: Resource, selection: Selection = EVERYTHING) -> Listing:
        """As `Cluster.list`. Entries get the kind and apiVersion that lists leave out."""
        return self._list(resource, selection, limit_s=float("inf"))

    def watch(
        self,
        resource: Resource,
        selection: Selection = EVERYTHING,
        *,
        timeout_s: float,
        alive: bool = False,
    ) -> Iterator[Event]:
        """As `Cluster.watch`. Closing the iterator closes the connection."""
        what, now = f"watch of {resource.plural}", self._clock.monotonic()
        watching = Watching(what=what, timeout_s=timeout_s, now=now, alive=alive)
        while True:
            step = watching.step(self._clock.monotonic(), chance=random.SystemRandom().random())
            if step.delay_s:
                time.sleep(step.delay_s)
            if step.act is Act.END:
                break
            if step.act is Act.LIST:
                yield from self._relist(resource, selection, watching, step)
            else:
                yield from self._follow(resource, selection, watching, step)
        if (error := watching.outcome()) is not None:
            raise error

    def create(self, resource: Resource, body: Object) -> Object:
        """As `Cluster.create`."""
        name = body_name(resource, body)
        shown = name if name.name else f"{name}{body['metadata'].get('generateName', '')}"
        return self._object(
            "POST",
            home_path(resource, name),
            f"{resource.plural} {shown}",
            body=body,
            content_type=JSON,
        )

    def replace(self, resource: Resource, body: Object, *, subresource: str = "") -> Object:
        """As `Cluster.replace`."""
        name = body_name(resource, body)
        if not version_of(body):
            raise errors.InputInvalid(
                f"a replacement of {resource.plural} {name} carries no resourceVersion",
                remedy="read the object and write back what was read, or use apply",
            )
        json_limits.refuse_cut(body, f"{resource.plural} {name}")
        return self._object(
            "PUT",
            object_path(resource, name, subresource),
            _shown(resource, name, subresource),
            body=body,
            content_type=JSON,
        )

    def apply(
        self, resource: Resource, body: Object, *, manager: str, subresource: str = ""
    ) -> Object:
        """As `Cluster.apply`."""
        name = body_name(resource, body)
        if not manager:
            raise errors.InputInvalid(f"an apply to {resource.plural} {name} names no manager")
        target = object_path(resource, name, subresource)
        return self._object(
            "PATCH",
            target + query({"fieldManager": manager, "force": "true"}),
            _shown(resource, name, subresource),
            body=body,
            content_type=APPLY,
        )

    def patch(
        self,
        resource: Resource,
        name: Name,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        kind: PatchKind,
        subresource: str = "",
    ) -> Object:
        """As `Cluster.patch`. Raises `InputInvalid` when body and kind do not match (B76)."""
        if isinstance(body, Mapping) is not (kind is PatchKind.MERGE):
            wanted = "a mapping" if kind is PatchKind.MERGE else "a sequence of operations"
            raise errors.InputInvalid(f"the body of a patch of type {kind} has to be {wanted}")
        return self._object(
            "PATCH",
            object_path(resource, name, subresource),
            _shown(resource, name, subresource),
            body=dict(body) if isinstance(body, Mapping) else [dict(one) for one in body],
            content_type=kind.value,
        )

    def delete(
        self, resource: Resource, name: Name, *, uid: str = "", resource_version: str = ""
    ) -> None:
        """As `Cluster.delete`."""
        guards = {"uid": uid, "resourceVersion": resource_version}
        stated = {key: value for key, value in guards.items() if value}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": stated}
        what, target = f"DELETE {resource.plural} {name}", object_path(resource, name)
        body = options if stated else None
        answer = self._exchange(Request("DELETE", target, what, body=body, content_type=JSON))
        if not 200 <= answer.status < 300:
            failure = self._failure(answer, what, target)
            if not isinstance(failure, errors.ApiNotFound):
                raise failure

    def close(self) -> None:
        """Close idle connections; the object can still be used."""
        self._transport.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a connection to an API server stays in its process, since it holds a credential:"
            " call fleet.kube.client.connect in the other one"
        )

    def _object(
        self, method: str, target: str, shown: str, *, body: object = None, content_type: str = ""
    ) -> Object:
        what = f"{method} {shown}"
        answer = self._exchange(Request(method, target, what, body, content_type))
        if not 200 <= answer.status < 300:
            raise self._failure(answer, what, target)
        return answers.object_of(answer.body, what=what)

    def _exchange(self, request: Request) -> Answer:
        self._wait_turn(request.what)
        return self._transport.exchange(request)

    def _wait_turn(self, what: str) -> None:
        with self._lock:
            wait_s = self._pacer.reserve(self._clock.monotonic(), limit_s=self._timeout_s)
        if wait_s is None:
            raise errors.ApiUnavailable(
                f"{what}: not sent, more requests are waiting than {self._qps:g}/s allow in"
                f" {self._timeout_s:g} s",
                remedy="retry; raise kubernetes.api_qps if this lasts",
                status=0,
                retry_after_s=1.0,
            )
        if wait_s:
            time.sleep(wait_s)

    def _failure(self, answer: Answer, what: str, target: str = "") -> errors.FleetError:
        wait = answer.retry_after
        return answers.failure(
            answer.status, answer.body, what=what, retry_after=wait, target=target
        )

    def _server_version(self) -> str:
        try:
            found = self._object("GET", "/version", "the server's version")
        except errors.FleetError:
            return "version unknown"
        return str(found.get("gitVersion") or "version unknown")

    def _list(self, resource: Resource, selection: Selection, *, limit_s: float) -> Listing:
        what = f"GET list of {resource.plural}"
        target = collection_path(resource, selection.namespace)
        parameters = selection_query(selection) | {"limit": str(PAGE)}
        items: list[Object] = []
        skipped = restarts = 0
        token = ""
        ends = self._clock.monotonic() + limit_s
        while True:
            left_s = max(1.0, ends - self._clock.monotonic())
            answer = self._exchange(
                Request(
                    "GET",
                    target + query(parameters | {"continue": token}),
                    what,
                    read_timeout_s=min(self._timeout_s, left_s),
                )
            )
            if answer.status == answers.GONE and token and restarts < LIST_RESTARTS:
                items, skipped, token = [], 0, ""
                restarts += 1
                continue
            if answer.status != 200:
                raise self._failure(answer, what)
            page = answers.object_of(answer.body, what=what)
            found, bad = answers.entries(resource, page, what=what)
            items += map(selection.trim, found) if selection.trim else found
            skipped += bad
            if isinstance(page, json_limits.Cut):
                LOG.warning(
                    "%s: nested too deep or no UTF-8, read in part: %s",
                    what,
                    json_limits.told(found),
                )
            metadata = page.get("metadata")
            head = metadata if isinstance(metadata, dict) else {}
            token = str(head.get("continue") or "")
            if not token:
                self._count_skipped(skipped, what)
                return Listing(tuple(items), str(head.get("resourceVersion") or ""), skipped)

    def _relist(
        self, resource: Resource, selection: Selection, watching: Watching, step: Step
    ) -> Iterator[Event]:
        try:
            listing = self._list(resource, selection, limit_s=step.read_timeout_s)
        except errors.FleetError as error:
            watching.failed(error, self._clock.monotonic())
            return
        yield from watching.listed(listing)

    def _follow(
        self, resource: Resource, selection: Selection, watching: Watching, step: Step
    ) -> Iterator[Event]:
        what = f"GET watch of {resource.plural}"
        parameters = selection_query(selection) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": step.resource_version,
            "timeoutSeconds": str(step.server_timeout_s),
        }
        target = collection_path(resource, selection.namespace) + query(parameters)
        request = Request("GET", target, what, read_timeout_s=step.read_timeout_s)
        stream: Stream | None = None
        seen = watching.skipped
        try:
            self._wait_turn(what)
            opened = self._transport.stream(request)
            if isinstance(opened, Answer):
                watching.failed(self._failure(opened, what), self._clock.monotonic())
                return
            stream = opened
            watching.opened(step, self._clock.monotonic())
            for chunk in stream.chunks():
                yield from watching.received(chunk, self._clock.monotonic())
                if watching.skipped != seen:
                    self._count_skipped(watching.skipped - seen, what)
                    seen = watching.skipped
                if not watching.streaming:
                    return
            watching.closed(self._clock.monotonic())
        except errors.ApiUnavailable as error:
            watching.failed(error, self._clock.monotonic())
        finally:
            if stream is not None:
                stream.close()

    def _count_skipped(self, count: int, what: str) -> None:
        if not count:
            return
        with self._lock:
            self._skipped += count
            total = self._skipped
        LOG.error("%s: %d entries are no objects and were skipped (%d so far)", what, count, total)


def _shown(resource: Resource, name: Name, subresource: str) -> str:
    return f"{resource.plural}{f'/{subresource}' if subresource else ''} {name}"
