"""What the models of Kubernetes see of the API: an informer's cache, refreshed on demand.

Objects are shared between readers and never changed in place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from fleet.kube.base import (
    CLAIMS,
    NODES,
    PODS,
    SLICES,
    Change,
    Cluster,
    Name,
    Object,
    Resource,
    name_of,
    version_of,
)
from tests.lab.apiserver.engine import Engine
from tests.lab.apiserver.feeds import Feed
from tests.lab.apiserver.kinds import CLAIM_TEMPLATES
from tests.lab.apiserver.refusal import Refusal

WATCHED = (PODS, CLAIMS, SLICES, NODES, CLAIM_TEMPLATES)
Listener = Callable[[Resource, Name, Object | None, Object | None], None]
"""Told of each change: what it was and what it is, None when there is none."""


class Sight(Protocol):
    """The objects of the watched kinds as they were at the last `refresh`."""

    def refresh(self) -> bool:
        """Read what has changed, telling the listeners; whether anything has."""
        ...

    def all(self, resource: Resource) -> Mapping[Name, Object]:
        """All objects of a kind."""
        ...

    def listen(self, listener: Listener) -> None:
        """Be told of changes, beginning with all there is now."""
        ...


class Cache:
    """What both kinds of sight share."""

    def __init__(self) -> None:
        self._objects: dict[Resource, dict[Name, Object]] = {kind: {} for kind in WATCHED}
        self._listeners: list[Listener] = []

    def all(self, resource: Resource) -> Mapping[Name, Object]:
        """All objects of a kind."""
        return self._objects[resource]

    def listen(self, listener: Listener) -> None:
        """Be told of changes, beginning with all there is now."""
        self._listeners.append(listener)
        for resource, found in self._objects.items():
            for name, item in found.items():
                listener(resource, name, None, item)

    def ignore(self, listener: Listener) -> None:
        """Tell it nothing more."""
        self._listeners.remove(listener)

    def put(self, resource: Resource, name: Name, found: Object | None) -> None:
        """Take one change over."""
        before = self._objects[resource].pop(name, None)
        if found is not None:
            self._objects[resource][name] = found
        if before is None and found is None:
            return
        for listener in self._listeners:
            listener(resource, name, before, found)


class Fed(Cache):
    """Fed by the watches of an in-memory engine: costs what has changed."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self._version = ""
        self._feeds: dict[Resource, Feed] = {}
        for resource in WATCHED:
            listing = engine.list(resource)
            for item in listing.items:
                self.put(resource, name_of(item), item)
            self._feeds[resource] = engine.watch(resource, since=listing.resource_version)

    def refresh(self) -> bool:
        """Take over all changes since the last time, in the order in which they happened."""
        version = self._engine.version
        if version == self._version:
            return False
        self._version = version
        happened: list[tuple[int, Resource, Object, bool]] = []
        for resource, feed in self._feeds.items():
            try:
                seen = feed.poll(0.0)
            except Refusal:
                self._again(resource)
                continue
            for one in seen:
                found = json.loads(one.text)
                gone = one.change is Change.DELETED
                happened.append((int(version_of(found)), resource, found, gone))
        for _, resource, found, gone in sorted(happened, key=lambda one: one[0]):
            self.put(resource, name_of(found), None if gone else found)
        return True

    def _again(self, resource: Resource) -> None:
        """History was compacted: list, as an informer does."""
        listing = self._engine.list(resource)
        self._feeds[resource] = self._engine.watch(resource, since=listing.resource_version)
        _replace(self, resource, listing.items)


class Listed(Cache):
    """For any server: lists everything each time."""

    def __init__(self, cluster: Cluster, resources: Sequence[Resource] = WATCHED) -> None:
        super().__init__()
        self._cluster = cluster
        self._resources = resources

    def refresh(self) -> bool:
        """List all kinds; whether anything differs."""
        changed = False
        for resource in self._resources:
            changed |= _replace(self, resource, self._cluster.list(resource).items)
        return changed


def _replace(cache: Cache, resource: Resource, items: Sequence[Object]) -> bool:
    known = cache.all(resource)
    fresh = {name_of(item): item for item in items}
    gone = [name for name in known if name not in fresh]
    changed = [(name, item) for name, item in fresh.items() if known.get(name) != item]
    for name in gone:
        cache.put(resource, name, None)
    for name, item in changed:
        cache.put(resource, name, item)
    return bool(gone or changed)
