"""Scheduler, claim controller and pod creator in one: what a cluster does around a node.

Every step is the real one in small (reference 3 and 4, experiments 1, 8, 9): a device is taken from
the complete pool of the highest generation if no taint keeps it from being scheduled and no claim
has it; allocation and reservation are one status update; a claim is deallocated in the update that
drops its last reservation. Nothing here knows of kubelet: pods are bound by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fleet.core import errors
from fleet.kube.base import (
    CLAIMS,
    PODS,
    SLICES,
    Cluster,
    Name,
    Object,
    PatchKind,
    Selection,
    name_of,
    uid_of,
)

FINALIZER = "resource.kubernetes.io/delete-protection"
REQUEST = "gpu"
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Seen:
    """One device of the node's slices, with the pool it is in."""

    driver: str
    pool: str
    name: str
    entry: Object

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.driver, self.pool, self.name)

    @property
    def taints(self) -> tuple[str, ...]:
        """Keys of taints that keep it from being allocated."""
        return tuple(
            str(taint["key"])
            for taint in self.entry.get("taints") or ()
            if taint.get("effect") in ("NoSchedule", "NoExecute")
        )

    @property
    def has_memory(self) -> bool:
        """What the class of these pods selects; a device without memory is for other classes."""
        return "memory" in (self.entry.get("capacity") or {})


class ControlPlane:
    """Acts on a cluster for one node. Not for several threads at once."""

    def __init__(self, cluster: Cluster, *, node: str, now: Callable[[], float]) -> None:
        """`now` in seconds since the epoch."""
        self.cluster = cluster
        self.node = node
        self._now = now

    # --- the scheduler -------------------------------------------------------

    def devices(self) -> tuple[Seen, ...]:
        """Devices on offer, in the order in which the scheduler would take them."""
        listed = self.cluster.list(SLICES, Selection(fields=f"spec.nodeName={self.node}")).items
        pools: dict[tuple[str, str], list[Object]] = {}
        for found in sorted(listed, key=lambda one: name_of(one).name):
            spec = found["spec"]
            pools.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
        return tuple(
            Seen(driver, pool, device["name"], device)
            for (driver, pool), specs in sorted(pools.items())
            for spec in _complete(specs)
            for device in spec.get("devices") or ()
        )

    def free(self) -> tuple[Seen, ...]:
        """Devices with memory that a claim may be given now."""
        taken = {key for claim in self._claims() for key in _allocated(claim)}
        return tuple(
            seen
            for seen in self.devices()
            if seen.has_memory and not seen.taints and seen.key not in taken
        )

    def create_claim(self, name: Name, *, parameters: Mapping[str, Any] | None = None) -> Object:
        """A claim for one device, with `parameters` for our driver if given."""
        devices: Object = {
            "requests": [
                {
                    "name": REQUEST,
                    "exactly": {
                        "deviceClassName": "gpu",
                        "allocationMode": "ExactCount",
                        "count": 1,
                    },
                }
            ]
        }
        if parameters is not None:
            devices["config"] = [{"opaque": dict(parameters)}]
        return self.cluster.create(
            CLAIMS,
            {
                "apiVersion": CLAIMS.api_version,
                "kind": CLAIMS.kind,
                "metadata": {"name": name.name, "namespace": name.namespace},
                "spec": {"devices": devices},
            },
        )

    def create_pod(self, name: Name, *, claim: str) -> Object:
        """A pod of one container that uses the claim; bound to no node yet."""
        return self.cluster.create(
            PODS,
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name.name, "namespace": name.namespace},
                "spec": {
                    "resourceClaims": [{"name": REQUEST, "resourceClaimName": claim}],
                    "containers": [{"name": "main", "image": "tenant"}],
                },
            },
        )

    def allocate(self, claim: Name, pod: Object, device: Seen) -> Object:
        """Give the claim this device, reserved for the pod; nobody checks whether it is free.

        Like the real API server: two claims on one device are accepted.
        """

        def finalized(found: Object) -> Object:
            finalizers = [*found["metadata"].get("finalizers", ())]
            if FINALIZER not in finalizers:
                finalizers.append(FINALIZER)
            return {**found, "metadata": {**found["metadata"], "finalizers": finalizers}}

        def allocated(found: Object) -> Object:
            status = {
                **(found.get("status") or {}),
                "allocation": self._allocation(found, device),
                "reservedFor": [
                    {"resource": "pods", "name": name_of(pod).name, "uid": uid_of(pod)}
                ],
            }
            return {**found, "status": status}

        self._update(claim, finalized)
        return self._update(claim, allocated, subresource="status")

    def ready(self, claim: Name) -> bool:
        """Whether all binding conditions of the claim's devices hold: the pod may be bound."""
        found = self.cluster.get(CLAIMS, claim)
        status = found.get("status") or {}
        reported = {
            (entry["driver"], entry["pool"], entry["device"]): {
                one["type"]
                for one in (entry.get("conditions") or ())
                if one.get("status") == "True"
            }
            for entry in status.get("devices") or ()
        }
        return all(
            set(result.get("bindingConditions") or ())
            <= reported.get((result["driver"], result["pool"], result["device"]), set())
            for result in _results(found)
        )

    def bind(self, pod: Name) -> Object:
        """Bind the pod to the node."""
        return self.cluster.patch(
            PODS, pod, {"spec": {"nodeName": self.node}}, kind=PatchKind.MERGE
        )

    def delete_slices(self, driver: str) -> None:
        """What kubelet deletes of the node's slices: those of one driver, or all for ""."""
        fields = f"spec.nodeName={self.node}" + (f",spec.driver={driver}" if driver else "")
        for found in self.cluster.list(SLICES, Selection(fields=fields)).items:
            self.cluster.delete(SLICES, name_of(found))

    # --- the end -------------------------------------------------------------

    def mark_deleted(self, pod: Name) -> None:
        """A user deletes the pod; the object stays until kubelet has ended it."""
        self.cluster.delete(PODS, pod)

    def erase(self, pod: Name, *, phase: str = "Succeeded") -> None:
        """The pod's object goes: kubelet has ended it, or it was deleted by force (Failed)."""
        self.cluster.patch(
            PODS, pod, {"status": {"phase": phase}}, kind=PatchKind.MERGE, subresource="status"
        )
        self.cluster.delete(PODS, pod)

    def settle(self) -> None:
        """One pass of the claim controller over all claims, and of the garbage collector."""
        pods = {uid_of(pod): pod for pod in self.cluster.list(PODS).items}
        for claim in self._claims():
            name = name_of(claim)
            try:
                self._unreserved(claim, pods)
                self._released(self.cluster.get(CLAIMS, name))
            except (errors.ApiNotFound, errors.ApiConflict):
                continue  # somebody was faster; the next pass looks again

    def delete_claim(self, name: Name) -> None:
        """The owner of the claim is gone."""
        self.cluster.delete(CLAIMS, name)

    def _unreserved(self, claim: Object, pods: Mapping[str, Object]) -> None:
        """Drop reservations of pods that are gone."""
        status = claim.get("status") or {}
        before = status.get("reservedFor") or []
        kept = [
            entry for entry in before if entry.get("resource") != "pods" or entry["uid"] in pods
        ]
        if len(kept) == len(before):
            return
        changed = {**status, "reservedFor": kept}
        if not kept and FINALIZER in claim["metadata"].get("finalizers", ()):
            changed = _deallocated(changed)
        self.cluster.replace(CLAIMS, {**claim, "status": changed}, subresource="status")

    def _released(self, claim: Object) -> None:
        """What is left to do for a claim nobody has reserved."""
        status, metadata = claim.get("status") or {}, claim["metadata"]
        finalizers = metadata.get("finalizers", [])
        if status.get("reservedFor") or FINALIZER not in finalizers:
            return
        if status.get("allocation") is not None:
            if "deletionTimestamp" not in metadata:
                return  # allocated and never reserved: it may be for a pod to come
            claim = self.cluster.replace(
                CLAIMS, {**claim, "status": _deallocated(status)}, subresource="status"
            )
        kept = [one for one in finalizers if one != FINALIZER]
        self.cluster.replace(
            CLAIMS, {**claim, "metadata": {**claim["metadata"], "finalizers": kept}}
        )

    def _claims(self) -> tuple[Object, ...]:
        return self.cluster.list(CLAIMS).items

    def _allocation(self, claim: Object, device: Seen) -> Object:
        conditions: Object = {
            name: device.entry[name]
            for name in ("bindingConditions", "bindingFailureConditions")
            if name in device.entry
        }
        result: Object = {
            "request": REQUEST,
            "driver": device.driver,
            "pool": device.pool,
            "device": device.name,
            **conditions,
        }
        config: list[Object] = [
            {"source": "FromClaim", "requests": [], **entry}
            for entry in claim["spec"]["devices"].get("config", ())
        ]
        fields = [{"key": "metadata.name", "operator": "In", "values": [self.node]}]
        devices: Object = {"results": [result]}
        if config:
            devices["config"] = config
        return {
            "devices": devices,
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
            "allocationTimestamp": datetime.fromtimestamp(self._now(), UTC).strftime(
                "%Y-%m-%dT%H:%M:%SZ"
            ),
        }

    def _update(
        self, name: Name, change: Callable[[Object], Object], *, subresource: str = ""
    ) -> Object:
        """Read, change and write until nobody comes between."""
        for _ in range(_ATTEMPTS):
            found = self.cluster.get(CLAIMS, name)
            try:
                return self.cluster.replace(CLAIMS, change(found), subresource=subresource)
            except errors.ApiConflict:
                continue
        raise errors.ApiConflict(f"claim {name} changed {_ATTEMPTS} times in a row")


def _complete(specs: Iterable[Object]) -> Iterator[Object]:
    """The slices of the highest generation, if all of them are there."""
    listed = list(specs)
    newest = max(spec["pool"]["generation"] for spec in listed)
    current = [spec for spec in listed if spec["pool"]["generation"] == newest]
    if len(current) == current[0]["pool"]["resourceSliceCount"]:
        yield from current


def _results(claim: Object) -> tuple[Object, ...]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return tuple((allocation.get("devices") or {}).get("results") or ())


def _allocated(claim: Object) -> Iterator[tuple[str, str, str]]:
    for result in _results(claim):
        if not result.get("adminAccess"):
            yield (result["driver"], result["pool"], result["device"])


def _deallocated(status: Object) -> Object:
    return {key: value for key, value in status.items() if key not in ("allocation", "devices")}
