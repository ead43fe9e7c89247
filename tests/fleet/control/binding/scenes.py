"""What claims, classes, slices and nodes look like where we allocate by ourselves."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.control.binding.offers import Scene
from fleet.core.messages import DeviceView, NodeView, ReasonView
from fleet.core.profiles import Profile
from fleet.kube.base import Object
from fleet.plugin.slices.device_attributes import Terms, render

DRIVER = "gpu.fleetscrub.dev"
NOW = 1_700_000_000.0
SPACE = "tenant"


def device(name: str, *, node: str = "n1", **more: object) -> DeviceView:
    """A CLEAN device, freshly checked; `more` replaces fields."""
    uuid = f"GPU-{node}-{name}"
    fields: dict[str, object] = {
        "uuid": uuid,
        "name": name,
        "accelerator": uuid,
        "units": (f"{uuid}/all",),
        "memory_bytes": 2**30,
        "state": "CLEAN",
        "checked_at": NOW,
        "attributes": {"product": "X1", "numa": "0", "driver": "550.1.0"},
    }
    return DeviceView.model_validate(fields | more)


def reason(code: str = "ecc") -> ReasonView:
    """A reason against a device."""
    return ReasonView(code=code, source="health", liftable=True)


def view(*devices: DeviceView, node: str = "n1", **more: object) -> NodeView:
    """A node that answers now."""
    fields: dict[str, object] = {
        "node": node,
        "incarnation": "i",
        "boot_id": "b",
        "at": NOW,
        "simulated": True,
        "backend": "simulated",
        "devices": devices,
    }
    return NodeView.model_validate(fields | more)


def entry(found: DeviceView, *, profile: Profile = Profile.STRICT, **more: object) -> Object:
    """The device as its node publishes it."""
    terms = Terms(driver=DRIVER, node="n1", profile=profile)
    return render(found, found.name, taints=(), terms=terms) | more


def slice_of(
    *entries: Object, node: str = "n1", driver: str = DRIVER, count: int = 1, generation: int = 1
) -> Object:
    """A slice of a node's pool."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}-{generation}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": count},
            "devices": list(entries),
        },
    }


def device_class(name: str = "gpu", *expressions: str, config: Sequence[Object] = ()) -> Object:
    """A class; without expressions it takes every device of ours that is no agent."""
    told = expressions or (f'device.driver == "{DRIVER}" && !device.attributes["{DRIVER}"].agent',)
    spec: Object = {"selectors": [{"cel": {"expression": one}} for one in told]}
    if config:
        spec["config"] = list(config)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": spec,
    }


def request(name: str = "gpu", *expressions: str, **more: object) -> Object:
    """A request of `exactly`; `more` are its fields."""
    asked: Object = {"deviceClassName": "gpu", **more}
    if expressions:
        asked["selectors"] = [{"cel": {"expression": one}} for one in expressions]
    return {"name": name, "exactly": asked}


def claim(*requests: Object, name: str = "c", **devices: object) -> Object:
    """A claim without an allocation; `devices` are further fields of spec.devices."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {"devices": {"requests": list(requests or (request(),)), **devices}},
    }


def result(device_name: str, *, pool: str = "n1", request_name: str = "gpu") -> Object:
    """One result of an allocation."""
    return {"request": request_name, "driver": DRIVER, "pool": pool, "device": device_name}


def allocated(*results: Object, name: str = "other") -> Object:
    """A claim that somebody was given devices for."""
    found = claim(name=name)
    found["metadata"]["uid"] = f"uid-{name}"
    return {**found, "status": {"allocation": {"devices": {"results": list(results)}}}}


def scene(*views: NodeView, **more: object) -> Scene:
    """Nodes whose slices show each of their devices; `more` replaces fields of the scene."""
    nodes = {found.node: found for found in views}
    slices = [slice_of(*map(entry, found.devices), node=found.node) for found in views]
    fields: dict[str, object] = {
        "driver": DRIVER,
        "classes": {"gpu": device_class()},
        "slices": slices,
        "claims": [],
        "nodes": nodes,
        "now": NOW,
        "fresh_s": 60.0,
    }
    return Scene(**(fields | more))  # type: ignore[arg-type]
