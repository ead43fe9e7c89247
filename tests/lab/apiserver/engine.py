"""The API server itself: the verbs, their guards and their order of checks. Safe for threads.

One lock holds every request together, as etcd's compare-and-swap does for a real server: of racers
with one resourceVersion exactly one wins. Refused requests change nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet.core.clock import Clock, SystemClock
from fleet.kube.base import Listing, Name, Object, Resource, Selection
from tests.lab.apiserver import bodies, decoder, patches, refusal
from tests.lab.apiserver.access import Access, Caller, Wish
from tests.lab.apiserver.apply import APPLY, UPDATE, Owner, applied, updated
from tests.lab.apiserver.feeds import Feed, matching
from tests.lab.apiserver.gates import Features
from tests.lab.apiserver.kinds import Kind, table
from tests.lab.apiserver.ownership import flatten
from tests.lab.apiserver.removal import Preconditions, after_delete, orphans
from tests.lab.apiserver.rules import required
from tests.lab.apiserver.shelf import Proposal, Shelf
from tests.lab.apiserver.stored import Stored

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY_YAML = "application/apply-patch+yaml"
PATCH_TYPES = (JSON, MERGE, STRATEGIC, APPLY_YAML)


@dataclass(frozen=True, slots=True)
class Target:
    """One object, or one of its subresources."""

    resource: Resource
    name: Name
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """Who asks, and what a write says about ownership. `manager` "" means the caller's own."""

    caller: Caller = field(default_factory=Caller)
    manager: str = ""
    force: bool | None = None


BY_ADMIN = Options()
EVERYTHING = Selection()
UNCONDITIONAL = Preconditions()


class Engine:
    """An API server without a network. All methods raise `Refusal`."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        features: Features | None = None,
        access: Access | None = None,
        extra_fields: Mapping[Resource, tuple[str, ...]] | None = None,
        seed: str = "",
    ) -> None:
        """`access` None lets everybody do everything; `extra_fields` are dotted paths of fields
        that a newer server would know; `seed` makes UIDs of several engines differ."""
        self.features = features or Features()
        self.access = access
        self.changed = threading.Condition(threading.RLock())
        self.kinds = table(self.features, extra_fields)
        self._shelf = Shelf(self.kinds.values(), clock or SystemClock(), seed, self.features)

    # --- reading -----------------------------------------------------------

    def get(self, target: Target, options: Options = BY_ADMIN) -> Object:
        """One object; 404."""
        kind = self._kind(target.resource)
        self._allow(options.caller, "get", target)
        with self.changed:
            return self._present(kind, target).copy()

    def list(
        self, resource: Resource, selection: Selection = EVERYTHING, options: Options = BY_ADMIN
    ) -> Listing:
        """The objects selected, by namespace and name; 400 for a bad selector."""
        kind = self._kind(resource)
        self._allow(options.caller, "list", Target(resource, Name("", selection.namespace)))
        match = matching(kind, selection)
        with self.changed:
            found = [entry.copy() for entry in self._shelf.all(resource) if match(entry.object)]
            return Listing(tuple(found), str(self._shelf.version))

    def watch(
        self,
        resource: Resource,
        selection: Selection = EVERYTHING,
        *,
        since: str = "",
        options: Options = BY_ADMIN,
    ) -> Feed:
        """Changes after version `since` ("": from now). 410 comes from the feed, as on a wire."""
        kind = self._kind(resource)
        self._allow(options.caller, "watch", Target(resource, Name("", selection.namespace)))
        if since and not since.isdigit():
            raise refusal.malformed(
                f'resourceVersion: Invalid value: "{since}": strconv.ParseUint: invalid syntax'
            )
        with self.changed:
            version = int(since) if since else self._shelf.version
        return Feed(self.changed, self._shelf, kind, matching(kind, selection), version)

    # --- writing -----------------------------------------------------------

    def create(
        self, resource: Resource, body: Object, *, namespace: str = "", options: Options = BY_ADMIN
    ) -> Object:
        """POST; 409 AlreadyExists, 422."""
        kind = self._kind(resource)
        name = bodies.name_for(body, kind, namespace)
        self._allow(options.caller, "create", Target(resource, Name("", name.namespace)))
        bodies.check_head(body, kind.resource)
        decoded = decoder.decode(body, kind.shape)
        if decoded.get("metadata", {}).get("resourceVersion"):
            raise refusal.malformed("resourceVersion should not be set on objects to be created")
        with self.changed:
            found = self._created(kind, name, decoded, _owner(options, UPDATE, ""))
            return found.copy()

    def replace(self, target: Target, body: Object, options: Options = BY_ADMIN) -> Object:
        """PUT; 404, 409, 422. Some kinds are created when missing."""
        kind = self._kind(target.resource)
        self._allow(options.caller, "update", target)
        bodies.check_head(body, kind.resource)
        bodies.check_place(body, target.name)
        decoded = decoder.decode(body, kind.shape)
        metadata = decoded.setdefault("metadata", {})
        with self.changed:
            live = self._shelf.find(target.resource, target.name)
            uid, version = metadata.get("uid"), metadata.get("resourceVersion")
            if live is None:
                if not kind.create_on_update or target.subresource:
                    raise refusal.not_found(target.resource, target.name.name)
                if uid or version:
                    why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: "
                    raise refusal.modified(target.resource, target.name.name, why)
                owner = _owner(options, UPDATE, "")
                return self._created(kind, target.name, decoded, owner).copy()
            if uid and uid != live.uid:
                why = (
                    f"Precondition failed: UID in precondition: {uid}, UID in object meta:"
                    f" {live.uid}"
                )
                raise refusal.modified(target.resource, target.name.name, why)
            if not version and not kind.unconditional_update:
                cause = required("metadata.resourceVersion", "must be specified for an update")
                raise refusal.invalid(target.resource, target.name.name, [cause])
            return self._written(kind, target, live, decoded, "update", options).copy()

    def patch(
        self, target: Target, content_type: str, body: Any, options: Options = BY_ADMIN
    ) -> Object:
        """PATCH of any kind; 404, 409, 415, 422, and 500 for malformed applies."""
        kind = self._kind(target.resource)
        self._allow(options.caller, "patch", target)
        if content_type not in PATCH_TYPES:
            raise refusal.unsupported(PATCH_TYPES)
        if content_type == APPLY_YAML:
            return self._apply(kind, target, body, options)
        if options.force is not None:
            cause = refusal.Cause(
                refusal.FORBIDDEN,
                "force",
                "Forbidden: may not be specified for non-apply patch",
            )
            raise refusal.options_invalid("PatchOptions", cause)
        with self.changed:
            live = self._present(kind, target)
            whole = live.copy()
            if content_type == MERGE:
                if not isinstance(body, Mapping):
                    raise refusal.bad_request("error decoding patch: a merge patch is an object")
                patched = patches.merge_patch(whole, body)
            elif content_type == STRATEGIC:
                patched = patches.strategic_patch(whole, body, kind.shape)
            else:
                patched = patches.json_patch(whole, body)
            bodies.check_patched(patched, kind.resource)
            decoded = decoder.patched(patched, kind.shape)
            bodies.check_place(decoded, target.name)
            return self._written(kind, target, live, decoded, "patch", options).copy()

    def _apply(self, kind: Kind, target: Target, body: Any, options: Options) -> Object:
        if not options.manager:
            cause = required("fieldManager", "is required for apply patch")
            raise refusal.options_invalid("PatchOptions", cause)
        if not isinstance(body, Mapping):
            raise refusal.bad_request("error decoding YAML: an apply takes one object")
        if not body.get("apiVersion") or not body.get("kind"):
            raise refusal.bad_request(
                f"invalid object type: {body.get('apiVersion', '')}, Kind={body.get('kind', '')}"
            )
        bodies.check_head(body, kind.resource)
        bodies.check_place(body, target.name)
        label = f"{target.name}; {target.resource.api_version}, Kind={target.resource.kind}"
        owner = Owner(options.manager, APPLY, target.subresource)
        given = body.get("metadata") or {}
        with self.changed:
            live = self._shelf.find(target.resource, target.name)
            if live is None and target.subresource:
                raise refusal.not_found(target.resource, target.name.name)
            decoder.check_typed(dict(body), kind.shape, label=label)
            config = bodies.written_part(dict(body), kind, target.subresource)
            if live is None:
                if given.get("uid"):
                    why = (
                        f"uid mismatch: the provided object specified uid {given['uid']}, and no"
                        " existing object was found"
                    )
                    raise refusal.modified(target.resource, target.name.name, why)
                whole = decoder.converted(config, kind.shape, target.resource)
                return self._created(kind, target.name, whole, owner).copy()
            work = applied(
                live.object,
                live.owners,
                config,
                shape=kind.shape,
                owner=owner,
                force=bool(options.force),
            )
            merged = decoder.converted(work.object, kind.shape, target.resource)
            merged["metadata"] = {
                **merged["metadata"],
                "uid": given.get("uid", live.uid),
                "resourceVersion": given.get("resourceVersion", live.version),
            }
            proposal = Proposal(kind, live, merged, work.owners, target.subresource)
            return self._commit(proposal, target, "patch", options.caller).copy()

    # --- removing ----------------------------------------------------------

    def delete(
        self,
        target: Target,
        conditions: Preconditions = UNCONDITIONAL,
        options: Options = BY_ADMIN,
    ) -> Object:
        """DELETE; the last state of the object. With finalizers, and for a pod that a kubelet has
        to stop, it stays with a deletionTimestamp. 404, 409."""
        kind = self._kind(target.resource)
        self._allow(options.caller, "delete", target)
        with self.changed:
            live = self._present(kind, target)
            conditions.check(live, target.resource)
            return self._deleted(kind, live, conditions.grace_s)

    def delete_collection(
        self, resource: Resource, selection: Selection = EVERYTHING, options: Options = BY_ADMIN
    ) -> int:
        """DELETE of all objects selected, as kubelet does with a node's slices; how many."""
        kind = self._kind(resource)
        self._allow(
            options.caller, "deletecollection", Target(resource, Name("", selection.namespace))
        )
        match = matching(kind, selection)
        with self.changed:
            chosen = [entry for entry in self._shelf.all(resource) if match(entry.object)]
            for entry in chosen:
                self._deleted(kind, entry, None)
            return len(chosen)

    def collect_garbage(self) -> int:
        """Delete objects none of whose owners exists any more (the garbage collector's work, when
        a test wants it done); how many."""
        count = 0
        with self.changed:
            while chosen := orphans(
                [(kind, entry) for kind in self.kinds.values()
                 for entry in self._shelf.all(kind.resource)]
            ):  # fmt: skip
                for kind, entry in chosen:
                    self._deleted(kind, entry, None)
                count += len(chosen)
        return count

    def has(self, target: Target) -> bool:
        """Whether there is such an object now."""
        with self.changed:
            return self._shelf.find(target.resource, target.name) is not None

    # --- for tests and set-up ------------------------------------------------

    def seed(self, resource: Resource, body: Object) -> Object:
        """Store an object as it is, status included, by no rules: what others wrote before."""
        kind = self._kind(resource)
        with self.changed:
            found = self._shelf.seeded(kind, body)
            self.changed.notify_all()
            return found.copy()

    def keep_spaces(self, target: Target) -> None:
        """The opaque parameters of a claim were sent as JSON with spaces, which the server keeps
        and shows to nobody: only who speaks protobuf can write it without changing them."""
        with self.changed:
            live = self._present(self._kind(target.resource), target)
            self._shelf.spaced.add(live.uid)

    def forget_history(self) -> None:
        """Compact: watches that start before now, or lag behind, get a 410."""
        with self.changed:
            self._shelf.forget()
            self.changed.notify_all()

    @property
    def version(self) -> str:
        """The newest resourceVersion."""
        with self.changed:
            return str(self._shelf.version)

    # --- shared --------------------------------------------------------------

    def _kind(self, resource: Resource) -> Kind:
        kind = self.kinds.get(resource)
        if kind is None:
            raise refusal.Refusal(
                404, "NotFound", "the server could not find the requested resource"
            )
        return kind

    def _present(self, kind: Kind, target: Target) -> Stored:
        found = self._shelf.find(kind.resource, target.name)
        if found is None:
            raise refusal.not_found(kind.resource, target.name.name)
        return found

    def _allow(self, caller: Caller, verb: str, target: Target) -> None:
        resource, name = target.resource, target.name
        part = f"/{target.subresource}" if target.subresource else ""
        wish = Wish(verb, f"{resource.plural}{part}", name.name, name.namespace)
        if self.access is not None and not self.access.allows(caller, wish):
            attempt = refusal.Attempt(caller.user, verb, resource, target.subresource, name)
            raise refusal.forbidden(attempt)

    def _created(self, kind: Kind, name: Name, body: Object, owner: Owner) -> Stored:
        found = self._shelf.created(kind, name, body, owner)
        self.changed.notify_all()
        return found

    def _written(
        self, kind: Kind, target: Target, live: Stored, body: Object, verb: str, options: Options
    ) -> Stored:
        owner = _owner(options, UPDATE, target.subresource)
        reduced = bodies.written_part(body, kind, target.subresource)
        before = bodies.written_part(live.object, kind, target.subresource)
        old = flatten(before, kind.shape, containers=True)
        new = flatten(reduced, kind.shape, containers=True)
        owners = updated(old, new, live.owners, owner)
        proposal = Proposal(kind, live, body, owners, target.subresource)
        return self._commit(proposal, target, verb, options.caller)

    def _commit(self, proposal: Proposal, target: Target, verb: str, caller: Caller) -> Stored:
        given = proposal.body["metadata"].get("resourceVersion")
        if given and not given.isdecimal():
            raise refusal.malformed(f'strconv.ParseUint: parsing "{given}": invalid syntax')
        if given and given != proposal.live.version:
            raise refusal.modified(target.resource, target.name.name)
        found = self._shelf.updated(proposal, verb, caller, self.access)
        self.changed.notify_all()
        return found

    def _deleted(self, kind: Kind, live: Stored, grace_s: int | None) -> Object:
        staying = after_delete(kind, live, grace_s, self._shelf.now)
        if staying is None:
            found = self._shelf.removed(kind, live)
        elif staying == live.object:
            found = live
        else:
            found = self._shelf.stored(kind, live, staying, live.owners)
        self.changed.notify_all()
        return found.copy()


def _owner(options: Options, operation: str, subresource: str) -> Owner:
    return Owner(options.manager or options.caller.manager, operation, subresource)
