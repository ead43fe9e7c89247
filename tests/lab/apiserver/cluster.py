"""`MemoryCluster`: the in-memory twin of the Cluster port, over the engine, with faults on request.

It answers as `fleet.kube.client` does against a real server; tests/contracts holds both to that.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fleet.core.clock import SystemClock
from fleet.core.errors import ApiForbidden, ApiInvalid, ApiUnavailable, FleetError, InputInvalid
from fleet.kube import cluster
from fleet.kube.answers import verdict
from fleet.kube.base import (
    Change,
    Event,
    Listing,
    Name,
    Object,
    PatchKind,
    Resource,
    Selection,
    version_of,
)
from tests.lab.apiserver.access import Caller
from tests.lab.apiserver.engine import APPLY_YAML, EVERYTHING, Engine, Options, Target
from tests.lab.apiserver.faults import Faults
from tests.lab.apiserver.refusal import Refusal
from tests.lab.apiserver.removal import Preconditions

Answer = TypeVar("Answer")

POLL_S = 0.25
"""How long, s, a watch waits at a time before it looks whether it was broken."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the port, as the twin saw it."""

    verb: str
    resource: Resource
    name: Name
    subresource: str = ""
    body: Any = None


class MemoryCluster:
    """A `Cluster` in this process. Several may share one engine, each with its own caller."""

    def __init__(self, engine: Engine | None = None, *, caller: Caller | None = None) -> None:
        """`caller`: whose rights and field manager the calls carry."""
        self.engine = engine or Engine()
        self.faults = Faults()
        self._caller = caller or Caller(manager="fleetscrub")
        self._calls: list[Call] = []
        self._lock = threading.Lock()
        self._breaks = 0

    @property
    def calls(self) -> Sequence[Call]:
        """Every call so far, in order."""
        with self._lock:
            return tuple(self._calls)

    def writes(self) -> Sequence[Call]:
        """The calls that were meant to change something."""
        return [call for call in self.calls if call.verb not in ("get", "list", "watch")]

    def break_watches(self) -> None:
        """Close the connection of every watch: each delivers everything again."""
        with self._lock:
            self._breaks += 1
        with self.engine.changed:
            self.engine.changed.notify_all()

    def get(self, resource: Resource, name: Name) -> Object:
        """One object. Raises `ApiNotFound`."""
        target = _target(resource, name)
        call = Call("get", resource, name)
        return self._do(call, lambda: self.engine.get(target, self._options()))

    def list(self, resource: Resource, selection: Selection = EVERYTHING) -> Listing:
        """All objects selected."""
        call = Call("list", resource, Name("", selection.namespace))
        return self._do(call, lambda: self.engine.list(resource, selection, self._options()))

    def watch(
        self,
        resource: Resource,
        selection: Selection = EVERYTHING,
        *,
        timeout_s: float,
        alive: bool = False,
    ) -> Iterator[Event]:
        """The objects selected, SYNCED, then changes; all again after each loss. ALIVE is told
        every `POLL_S`.

        Raises what kept the server away until the end of `timeout_s`; `ApiInvalid` and
        `ApiForbidden` at once.
        """
        clock = SystemClock()
        deadline = clock.monotonic() + timeout_s
        while True:
            lost: FleetError | None = None
            try:
                for event in self._connection(resource, selection, deadline):
                    if alive or event.change is not Change.ALIVE:
                        yield event
            except (ApiInvalid, ApiForbidden):
                raise
            except FleetError as error:
                lost = error
            left = deadline - clock.monotonic()
            if left <= 0:
                if isinstance(lost, ApiUnavailable):
                    raise lost
                if lost is not None:
                    raise ApiUnavailable(lost.detail) from lost
                return
            if lost is not None:
                with self.engine.changed:
                    self.engine.changed.wait(min(left, POLL_S))

    def _connection(
        self, resource: Resource, selection: Selection, deadline: float
    ) -> Iterator[Event]:
        """One connection of a watch, until it breaks or `deadline` (monotonic s) has passed."""
        clock = SystemClock()
        with self._lock:
            breaks = self._breaks
        call = Call("watch", resource, Name("", selection.namespace))
        listing = self._do(call, lambda: self.engine.list(resource, selection, self._options()))
        for found in listing.items:
            yield Event(Change.ADDED, found)
        yield Event(Change.SYNCED)
        try:
            feed = self.engine.watch(
                resource, selection, since=listing.resource_version, options=self._options()
            )
            while (left := deadline - clock.monotonic()) > 0:
                for seen in feed.poll(min(left, POLL_S)):
                    yield Event(seen.change, json.loads(seen.text))
                if self.faults.offline:
                    raise ApiUnavailable("watch: the API server is offline")
                with self._lock:
                    if self._breaks != breaks:
                        return
                yield Event(Change.ALIVE)
        except Refusal as refusal:
            if refusal.code != 410:
                raise _told(call, refusal) from refusal

    def create(self, resource: Resource, body: Object) -> Object:
        """Create. Raises `ApiConflict` (reason AlreadyExists), `ApiInvalid`."""
        name = cluster.body_name(resource, body)
        cluster.home_path(resource, name)
        call = Call("create", resource, name, body=body)
        return self._do(
            call, lambda: self.engine.create(resource, _copy(body), options=self._options())
        )

    def replace(self, resource: Resource, body: Object, *, subresource: str = "") -> Object:
        """PUT under the body's resourceVersion. Raises `InputInvalid` when it carries none."""
        name = cluster.body_name(resource, body)
        if not version_of(body):
            raise InputInvalid(
                f"{resource.kind} {name}: a replacement must carry the resourceVersion it"
                " was made from",
                remedy="read the object and change what was read",
            )
        target = _target(resource, name, subresource)
        call = Call("replace", resource, target.name, subresource, body)
        return self._do(call, lambda: self.engine.replace(target, _copy(body), self._options()))

    def apply(
        self, resource: Resource, body: Object, *, manager: str, subresource: str = ""
    ) -> Object:
        """Server-side apply with force."""
        target = _target(resource, cluster.body_name(resource, body), subresource)
        if not manager:
            raise InputInvalid(f"an apply to {resource.plural} {target.name} names no manager")
        options = Options(self._caller, manager=manager, force=True)
        call = Call("apply", resource, target.name, subresource, body)
        return self._do(call, lambda: self.engine.patch(target, APPLY_YAML, _copy(body), options))

    def patch(
        self,
        resource: Resource,
        name: Name,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        kind: PatchKind,
        subresource: str = "",
    ) -> Object:
        """A merge patch or a JSON patch. Raises `InputInvalid` when body and kind differ (B76)."""
        if isinstance(body, Mapping) is not (kind is PatchKind.MERGE):
            wanted = "a mapping" if kind is PatchKind.MERGE else "a sequence of operations"
            raise InputInvalid(f"the body of a patch of type {kind} has to be {wanted}")
        target = _target(resource, name, subresource)
        call = Call("patch", resource, name, subresource, body)
        return self._do(
            call, lambda: self.engine.patch(target, str(kind), _copy(body), self._options())
        )

    def delete(
        self, resource: Resource, name: Name, *, uid: str = "", resource_version: str = ""
    ) -> None:
        """Delete under preconditions; an object that is gone already is fine."""
        target = _target(resource, name)
        conditions = Preconditions(uid, resource_version)
        call = Call("delete", resource, name)

        def act() -> None:
            try:
                self.engine.delete(target, conditions, self._options())
            except Refusal as refusal:
                if refusal.code != 404:
                    raise

        self._do(call, act)

    def _options(self) -> Options:
        return Options(self._caller)

    def _do(self, call: Call, act: Callable[[], Answer]) -> Answer:
        with self._lock:
            self._calls.append(call)
        self.faults.before(call.verb)
        try:
            answer = act()
        except Refusal as refusal:
            raise _told(call, refusal) from refusal
        self.faults.after(call.verb)
        return answer


def _target(resource: Resource, name: Name, subresource: str = "") -> Target:
    cluster.object_path(resource, name, subresource)
    return Target(resource, name, subresource)


def _told(call: Call, refusal: Refusal) -> FleetError:
    part = f"/{call.subresource}" if call.subresource else ""
    what = f"{call.verb} {call.resource.plural}{part} {call.name}"
    return verdict(refusal.code, refusal.status(), what=what)


def _copy(body: Any) -> Any:
    return json.loads(json.dumps(body))
