"""The objects of all kinds, their versions and their history. Used under the engine's lock.

One counter gives every write its resourceVersion, across all kinds, as etcd does.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fleet.core.clock import Clock
from fleet.kube.base import CLAIMS, Name, Object, Resource, name_of
from tests.lab.apiserver import refusal, times
from tests.lab.apiserver.access import Access, Caller, status_causes
from tests.lab.apiserver.apply import Holding, Owner, Owners, settled
from tests.lab.apiserver.bodies import written_part
from tests.lab.apiserver.claims import spaced_causes
from tests.lab.apiserver.gates import GRANULAR_STATUS, Features
from tests.lab.apiserver.history import Entry, History
from tests.lab.apiserver.kinds import Kind
from tests.lab.apiserver.ownership import flatten
from tests.lab.apiserver.rules import Write, metadata_causes, required
from tests.lab.apiserver.stored import Stored, stored

FIRST_VERSION = 100
NAME_BASE_MAX = 58
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SERVER_FIELDS = ("uid", "creationTimestamp", "generation", "deletionTimestamp",
                  "deletionGracePeriodSeconds")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Proposal:
    """A write worked out, not judged yet: the whole new body and the ownership with it."""

    kind: Kind
    live: Stored
    body: Object
    owners: Owners
    subresource: str


class Shelf:
    """All objects. Callers hold the engine's lock."""

    def __init__(self, kinds: Iterable[Kind], clock: Clock, seed: str, features: Features) -> None:
        """`seed` makes the UIDs of several servers differ."""
        self._clock = clock
        self._seed = seed
        self._features = features
        self._count = 0
        self.spaced: set[str] = set()
        """UIDs of claims whose opaque parameters were sent as JSON with spaces."""
        self.version = FIRST_VERSION
        resources = [kind.resource for kind in kinds]
        self._objects: dict[Resource, dict[Name, Stored]] = {item: {} for item in resources}
        self._history: dict[Resource, History] = {item: History() for item in resources}
        self.forget()

    @property
    def now(self) -> float:
        """Seconds since the epoch."""
        return self._clock.now()

    def find(self, resource: Resource, name: Name) -> Stored | None:
        """One object, or None."""
        return self._objects[resource].get(name)

    def all(self, resource: Resource) -> Iterator[Stored]:
        """All objects of a kind, by namespace and name."""
        table = self._objects[resource]
        for name in sorted(table, key=lambda item: (item.namespace, item.name)):
            yield table[name]

    def since(self, resource: Resource, version: int) -> list[Entry]:
        """Changes of a kind after `version`. Raises `Refusal` 410."""
        return self._history[resource].since(version)

    def forget(self) -> None:
        """Forget all history up to now."""
        for history in self._history.values():
            history.forget(self.version)

    def created(self, kind: Kind, name: Name, body: Object, owner: Owner) -> Stored:
        """Judge and store a new object. Raises `Refusal` 409, 422."""
        metadata = {k: v for k, v in body.get("metadata", {}).items() if k not in _SERVER_FIELDS}
        metadata.pop("managedFields", None)
        metadata.pop("resourceVersion", None)
        if not name.name and metadata.get("generateName"):
            name = Name(
                self._generated(kind.resource, metadata["generateName"], name), name.namespace
            )
        if not name.name:
            cause = required("metadata.name", "name or generateName is required")
            raise refusal.invalid(kind.resource, "", [cause])
        present = self.find(kind.resource, name)
        if present is not None:
            deleting = "deletionTimestamp" in present.object["metadata"]
            raise refusal.exists(kind.resource, name.name, deleting=deleting)
        now = times.stamp(self.now)
        metadata |= {"name": name.name, "uid": self._uid(), "creationTimestamp": now}
        if name.namespace:
            metadata["namespace"] = name.namespace
        if kind.generation:
            metadata["generation"] = 1
        new = {**body, "metadata": metadata}
        new = kind.rules.prepare(Write(new, None, "", now))
        write = Write(new, None, "", now)
        causes = [*metadata_causes(write), *kind.rules.judge(write)]
        if causes:
            raise refusal.invalid(kind.resource, name.name, causes)
        paths = frozenset(flatten(written_part(new, kind, ""), kind.shape))
        return self.stored(kind, None, new, {owner: Holding(paths, now)})

    def updated(
        self, proposal: Proposal, verb: str, caller: Caller, access: Access | None
    ) -> Stored:
        """Judge and store a change. A change of nothing stores nothing. Raises `Refusal` 422."""
        kind, live = proposal.kind, proposal.live
        now = times.stamp(self.now)
        old = live.object
        given = {k: v for k, v in proposal.body["metadata"].items() if k != "managedFields"}
        uid = given.get("uid", live.uid)
        kept = {key: old["metadata"][key] for key in _SERVER_FIELDS if key in old["metadata"]}
        metadata = {k: v for k, v in given.items() if k not in _SERVER_FIELDS} | kept
        if "deletionTimestamp" in given and not proposal.subresource:
            metadata["deletionTimestamp"] = given["deletionTimestamp"]
        metadata |= {"name": old["metadata"]["name"], "resourceVersion": live.version}
        body = {**proposal.body, "metadata": metadata}
        if uid != live.uid:
            body["metadata"] = {**metadata, "uid": uid}
            causes = metadata_causes(Write(body, old, proposal.subresource, now))
            raise refusal.invalid(kind.resource, metadata["name"], causes)
        new = kind.rules.prepare(Write(body, old, proposal.subresource, now))
        write = Write(new, old, proposal.subresource, now)
        causes = [*metadata_causes(write), *kind.rules.judge(write)]
        if live.uid in self.spaced and not caller.exact:
            causes += spaced_causes(write)
        if not causes and access is not None and self._granular(kind, proposal.subresource):
            causes += status_causes(access, caller, verb, new=new, old=old)
        if causes:
            raise refusal.invalid(kind.resource, metadata["name"], causes)
        made = {**old, **written_part(proposal.body, kind, proposal.subresource)}
        owners = settled(
            proposal.owners,
            flatten(old, kind.shape, containers=True),
            flatten(made, kind.shape, containers=True),
            now,
        )
        if new == old and _content(new) == _content(old) and owners == live.owners:
            return live
        if kind.generation and new.get("spec") != old.get("spec"):
            generation = int(old["metadata"].get("generation", 0)) + 1
            new = {**new, "metadata": {**new["metadata"], "generation": generation}}
        if _ended(new["metadata"]):
            return self.removed(kind, live, new)
        return self.stored(kind, live, new, owners)

    def _granular(self, kind: Kind, subresource: str) -> bool:
        return (
            kind.resource == CLAIMS
            and subresource == "status"
            and GRANULAR_STATUS in self._features.gates
        )

    def seeded(self, kind: Kind, body: Object) -> Stored:
        """Store as it is; only what every object has is filled in."""
        name = name_of(body)
        live = self.find(kind.resource, name)
        metadata = {
            "uid": live.uid if live else self._uid(),
            "creationTimestamp": times.stamp(self.now),
            **{k: v for k, v in body.get("metadata", {}).items() if k != "managedFields"},
        }
        return self.stored(kind, live, {**body, "metadata": metadata}, live.owners if live else {})

    def stored(self, kind: Kind, live: Stored | None, new: Object, owners: Owners) -> Stored:
        """Store under the next version."""
        self.version += 1
        metadata = {**new["metadata"], "resourceVersion": str(self.version)}
        found = stored({**new, "metadata": metadata}, owners, kind.resource)
        self._objects[kind.resource][name_of(found.object)] = found
        self._remember(kind, found, live, deleted=False)
        return found

    def removed(self, kind: Kind, live: Stored, last: Object | None = None) -> Stored:
        """Remove; the last state carries the version of the removal, as watches see it."""
        self.version += 1
        body = last or live.object
        metadata = {**body["metadata"], "resourceVersion": str(self.version)}
        found = stored({**body, "metadata": metadata}, live.owners, kind.resource)
        del self._objects[kind.resource][name_of(live.object)]
        self._remember(kind, found, live, deleted=True)
        return found

    def _remember(self, kind: Kind, found: Stored, live: Stored | None, *, deleted: bool) -> None:
        before = live.text if live else ""
        self._history[kind.resource].append(Entry(self.version, deleted, found.text, before))

    def _uid(self) -> str:
        self._count += 1
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self._seed}/{self._count}"))

    def _generated(self, resource: Resource, base: str, name: Name) -> str:
        while True:
            self._count += 1
            digest = hashlib.sha256(f"{self._seed}/{base}/{self._count}".encode()).digest()
            suffix = "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:5])
            found = f"{base[:NAME_BASE_MAX]}{suffix}"
            if self.find(resource, Name(found, name.namespace)) is None:
                return found


def _content(found: Object) -> str:
    return json.dumps(found, sort_keys=True)


def _ended(metadata: Object) -> bool:
    """Whether nothing keeps an object that is being deleted."""
    kept = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
    return bool(metadata.get("deletionTimestamp")) and not kept
