"""A model of kube-controller-manager, as far as claims are concerned.

Claims from templates, reservations of pods that have gone, deallocation, the builtin finalizer,
garbage collection by owner, eviction by device taints, and the end of a namespace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.kube.base import (
    CLAIMS,
    PODS,
    SLICES,
    Cluster,
    Name,
    Object,
    PatchKind,
    Resource,
    name_of,
    uid_of,
)
from fleet.plugin.slices.pool_view import devices_of, generation, pool_name
from tests.lab.apiserver.kinds import CLAIM_TEMPLATES
from tests.twin import objects
from tests.twin.sight import Sight

NEVER = float("inf")
RETRY_S = 0.3


@dataclass
class Controller:
    """Drive it by `step`; a new object is a restarted controller."""

    cluster: Cluster
    sight: Sight
    clock: Clock
    namespaces: set[str] = field(default_factory=set)
    """Namespaces being deleted."""
    evicted: int = 0
    _pods: set[Name] = field(default_factory=set)
    _claims: set[Name] = field(default_factory=set)
    _users: dict[Name, set[Name]] = field(default_factory=dict)
    """Claims by the pods that name them or are reserved for."""
    _tainted: set[tuple[str, str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sight.listen(self._changed)

    def _changed(
        self, resource: Resource, name: Name, _before: Object | None, after: Object | None
    ) -> None:
        if resource == PODS:
            self._pods.add(name)
            self._claims |= self._users.get(name, set())
        elif resource == CLAIMS:
            self._claims.add(name)
            for entry in objects.reserved(after or {}):
                if objects.is_pod(entry):
                    user = Name(str(entry["name"]), name.namespace)
                    self._users.setdefault(user, set()).add(name)
            for owner in (after or {}).get("metadata", {}).get("ownerReferences") or ():
                self._users.setdefault(Name(owner["name"], name.namespace), set()).add(name)
        elif resource == SLICES:
            self._retaint()

    def step(self) -> float:
        """Do what has come up; returns when the next is due."""
        self.sight.refresh()
        failed = False
        for name in sorted(self._pods, key=str):
            failed |= not self._tried(self._pod, name, self._pods)
        self.sight.refresh()
        for name in sorted(self._claims, key=str):
            failed |= not self._tried(self._claim, name, self._claims)
        for namespace in sorted(self.namespaces):
            self._end(namespace)
        self._evict()
        return self.clock.now() + RETRY_S if failed else NEVER

    def _tried(self, act: Callable[[Name], None], name: Name, queue: set[Name]) -> bool:
        queue.discard(name)
        try:
            act(name)
        except (errors.ApiConflict, errors.ApiNotFound):
            queue.add(name)
            self.sight.refresh()
            return False
        except errors.FleetError:
            queue.add(name)
            return False
        return True

    # --- pods ---

    def _pod(self, name: Name) -> None:
        pod = self.sight.all(PODS).get(name)
        if pod is None or objects.deleting(pod) or objects.ended(pod):
            return
        if objects.node_name(pod):
            self._adopt(pod)
        missing = {key: None for key, found in objects.claim_names(pod).items() if found is None}
        if missing:
            self._make_claims(pod, list(missing))

    def _adopt(self, pod: Object) -> None:
        """A pod that has a node gets the reservation it lacks, where there is an allocation."""
        entry = {"resource": "pods", "name": name_of(pod).name, "uid": uid_of(pod)}
        for name in objects.claim_names(pod).values():
            claim = self.sight.all(CLAIMS).get(name) if name is not None else None
            if claim is None or objects.allocation(claim) is None or objects.deleting(claim):
                continue
            entries = objects.reserved(claim)
            if not any(one.get("uid") == entry["uid"] for one in entries):
                body = objects.with_status(claim, reservedFor=[*entries, entry])
                self.cluster.replace(CLAIMS, body, subresource="status")

    def _make_claims(self, pod: Object, missing: list[str]) -> None:
        namespace = name_of(pod).namespace
        made = list(pod.get("status", {}).get("resourceClaimStatuses") or ())
        for entry in pod["spec"]["resourceClaims"]:
            if entry["name"] not in missing:
                continue
            key = Name(entry["resourceClaimTemplateName"], namespace)
            source = self.sight.all(CLAIM_TEMPLATES).get(key)
            if source is None:  # not seen yet, or not there: then the pod is tried again
                source = self.cluster.get(CLAIM_TEMPLATES, key)
            found = self._made_before(pod, entry["name"]) or self._make(pod, entry["name"], source)
            made.append({"name": entry["name"], "resourceClaimName": name_of(found).name})
        body = {"metadata": {"uid": uid_of(pod)}, "status": {"resourceClaimStatuses": made}}
        self.cluster.patch(PODS, name_of(pod), body, kind=PatchKind.MERGE, subresource="status")

    def _made_before(self, pod: Object, entry: str) -> Object | None:
        for claim in self.sight.all(CLAIMS).values():
            metadata = claim["metadata"]
            if (metadata.get("annotations") or {}).get(objects.POD_CLAIM) == entry and any(
                owner.get("uid") == uid_of(pod) for owner in metadata.get("ownerReferences") or ()
            ):
                return claim
        return None

    def _make(self, pod: Object, entry: str, source: Object) -> Object:
        body = objects.claim(
            Name("", name_of(pod).namespace), dict(source["spec"]["spec"]), owner=pod
        )
        del body["metadata"]["name"]
        body["metadata"]["generateName"] = f"{name_of(pod).name}-{entry}-"
        body["metadata"]["annotations"] = {objects.POD_CLAIM: entry}
        return self.cluster.create(CLAIMS, body)

    # --- claims ---

    def _claim(self, name: Name) -> None:
        claim = self.sight.all(CLAIMS).get(name)
        if claim is None:
            return
        if not objects.deleting(claim) and self._orphaned(claim):
            self.cluster.delete(CLAIMS, name, uid=uid_of(claim))
            self._queue_again(name)
            return
        was = objects.allocation(claim)
        claim = self._released(claim)
        if objects.reserved(claim):
            return
        if objects.deleting(claim) and objects.allocation(claim) is not None:
            body = objects.with_status(claim, allocation=None, devices=None)
            claim = self.cluster.replace(CLAIMS, body, subresource="status")
        builtin = objects.BUILTIN in (claim["metadata"].get("finalizers") or ())
        freed = was is not None and objects.allocation(claim) is None
        if builtin and (objects.deleting(claim) or freed):
            self.cluster.replace(CLAIMS, objects.with_finalizers(claim, drop=objects.BUILTIN))

    def _queue_again(self, name: Name) -> None:
        self.sight.refresh()
        if name in self.sight.all(CLAIMS):
            self._claim(name)

    def _released(self, claim: Object) -> Object:
        """Without reservations of pods that are gone; deallocated if that leaves none."""
        entries = objects.reserved(claim)
        kept = [
            entry for entry in entries if not objects.is_pod(entry) or self._lives(claim, entry)
        ]
        if len(kept) == len(entries):
            return claim
        body = objects.with_status(claim, reservedFor=kept or None)
        if not kept and objects.BUILTIN in (claim["metadata"].get("finalizers") or ()):
            body = objects.with_status(body, allocation=None, devices=None)
        return self.cluster.replace(CLAIMS, body, subresource="status")

    def _lives(self, claim: Object, entry: Object) -> bool:
        """Whether a pod may still use the claim, by a live look when the cache has lost it."""
        name = Name(str(entry["name"]), name_of(claim).namespace)
        pod = self.sight.all(PODS).get(name)
        if pod is None or uid_of(pod) != entry["uid"]:
            try:
                pod = self.cluster.get(PODS, name)
            except errors.ApiNotFound:
                return False
        if uid_of(pod) != entry["uid"] or objects.ended(pod):
            return False
        return not (objects.deleting(pod) and not objects.node_name(pod))

    def _orphaned(self, claim: Object) -> bool:
        """Whether the pod that owns the claim is gone, or done with it."""
        owners = claim["metadata"].get("ownerReferences") or ()
        if not owners:
            return False
        for owner in owners:
            pod = self.sight.all(PODS).get(Name(owner["name"], name_of(claim).namespace))
            if pod is not None and uid_of(pod) == owner["uid"]:
                return objects.ended(pod) and not objects.reserved(claim)
        return True

    # --- eviction and namespaces ---

    def _retaint(self) -> None:
        """NoExecute taints of the newest slices: pods bound on such a device go."""
        newest: dict[str, int] = {}
        for found in self.sight.all(SLICES).values():
            newest[pool_name(found)] = max(newest.get(pool_name(found), 0), generation(found))
        tainted = {
            (found["spec"]["driver"], pool_name(found), device["name"])
            for found in self.sight.all(SLICES).values()
            if generation(found) == newest[pool_name(found)]
            for device in devices_of(found)
            if any(taint["effect"] == "NoExecute" for taint in device.get("taints") or ())
        }
        self._tainted = tainted

    def _evict(self) -> None:
        """Delete bound pods on devices with NoExecute taints."""
        if not self._tainted:
            return
        for claim in list(self.sight.all(CLAIMS).values()):
            places = {(r["driver"], r["pool"], r["device"]) for r in objects.results(claim)}
            if not places & self._tainted:
                continue
            for entry in filter(objects.is_pod, objects.reserved(claim)):
                name = Name(str(entry["name"]), name_of(claim).namespace)
                pod = self.sight.all(PODS).get(name)
                bound = pod is not None and objects.node_name(pod) and not objects.deleting(pod)
                if pod is not None and bound and uid_of(pod) == entry["uid"]:
                    self.evicted += 1
                    self.cluster.delete(PODS, name, uid=uid_of(pod))

    def _end(self, namespace: str) -> None:
        for resource in (PODS, CLAIMS, CLAIM_TEMPLATES):
            for name, found in list(self.sight.all(resource).items()):
                if name.namespace == namespace and not objects.deleting(found):
                    try:
                        self.cluster.delete(resource, name, uid=uid_of(found))
                    except errors.FleetError:
                        continue
