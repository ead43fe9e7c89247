"""Where pods, claims and classes are inside objects, for every kind and API version. Pure.

Manifests are written by strangers: whatever is not of the type that Kubernetes demands is passed
over here, since the API server refuses it by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

Path = tuple[str | int, ...]
Object = Mapping[str, Any]

RESOURCE_GROUP = "resource.k8s.io"
RESOURCE_VERSIONS = ("v1", "v1beta2", "v1beta1")
EACH = "*"
"""In the place of a list's index."""
CONTAINERS = ("containers", "initContainers", "ephemeralContainers")

_TEMPLATE = ("spec", "template", "spec")
_RAY = (
    ("headGroupSpec", "template", "spec"),
    ("workerGroupSpecs", EACH, "template", "spec"),
)
WORKLOADS: Mapping[str, Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "": {
        "Pod": (("spec",),),
        "PodTemplate": (("template", "spec"),),
        "ReplicationController": (_TEMPLATE,),
    },
    "apps": dict.fromkeys(("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"), (_TEMPLATE,)),
    "batch": {
        "CronJob": (("spec", "jobTemplate", *_TEMPLATE),),
        "Job": (_TEMPLATE,),
    },
    "ray.io": {
        "RayCluster": tuple(("spec", *part) for part in _RAY),
        "RayJob": (
            *(("spec", "rayClusterSpec", *part) for part in _RAY),
            ("spec", "submitterPodTemplate", "spec"),
        ),
        "RayService": tuple(("spec", "rayClusterConfig", *part) for part in _RAY),
    },
}
"""By group and kind: where the specs of its pods are."""
CLAIMS: Mapping[str, tuple[str, ...]] = {
    "ResourceClaim": ("spec", "devices"),
    "ResourceClaimTemplate": ("spec", "spec", "devices"),
}


@dataclass(frozen=True, slots=True)
class PodSpec:
    """The spec of a pod or of the pods that an object makes."""

    spec: Object
    path: Path
    replicated: bool
    """Made by a controller, or by an object that makes pods again and again."""

    @property
    def claims(self) -> list[tuple[Path, Object]]:
        """Claims of the pod, each with its path."""
        return listed(self.spec, "resourceClaims", self.path)

    @property
    def containers(self) -> list[tuple[Path, Object]]:
        """Containers of every sort, each with its path."""
        return [found for sort in CONTAINERS for found in listed(self.spec, sort, self.path)]


@dataclass(frozen=True, slots=True)
class Wish:
    """One way in which a request can be satisfied."""

    fields: Object
    path: Path
    request: str
    alternative: str
    """Name of the sub-request; "" where the request has but one form."""

    @property
    def device_class(self) -> str:
        """The class it wants a device of, "" where none is said."""
        return text(self.fields, "deviceClassName")

    @property
    def names(self) -> tuple[str, ...]:
        """Names under which configuration and constraints speak of it."""
        return (
            (self.request, f"{self.request}/{self.alternative}")
            if self.alternative
            else (self.request,)
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of configuration for our driver."""

    parameters: Any
    path: Path
    """Where its parameters are."""
    requests: tuple[str, ...]

    def covers(self, wish: Wish) -> bool:
        """Whether it is meant for this wish: for all, or by one of its names."""
        return not self.requests or any(name in self.requests for name in wish.names)


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """What a claim, or the claims of a template, ask for."""

    devices: Object
    path: Path

    @property
    def requests(self) -> list[tuple[Path, Object]]:
        """Requests, each with its path."""
        return listed(self.devices, "requests", self.path)

    @property
    def wishes(self) -> list[Wish]:
        """Every form of every request, whatever the API version writes it in."""
        return [wish for path, request in self.requests for wish in wishes_of(request, path)]

    def entries(self, driver: str) -> list[Entry]:
        """Configuration meant for this driver."""
        return list(_entries(self.devices, driver, self.path))


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """A device class."""

    name: str
    spec: Object
    path: Path

    @property
    def selectors(self) -> list[tuple[Path, str]]:
        """The CEL text of its selectors, each with its path."""
        found = []
        for path, selector in listed(self.spec, "selectors", self.path):
            cel = selector.get("cel")
            if isinstance(cel, Mapping) and isinstance(cel.get("expression"), str):
                found.append(((*path, "cel", "expression"), cel["expression"]))
        return found

    def entries(self, driver: str) -> list[Entry]:
        """Configuration meant for this driver."""
        return list(_entries(self.spec, driver, self.path))

    def names(self, driver: str) -> bool:
        """Whether it speaks of this driver, in a selector or in configuration."""
        return bool(self.entries(driver)) or any(
            driver in expression for _, expression in self.selectors
        )


def _entries(of: Object, driver: str, path: Path) -> Iterator[Entry]:
    for place, entry in listed(of, "config", path):
        opaque = mapping(entry, "opaque")
        if opaque.get("driver") == driver:
            where = (*place, "opaque", "parameters")
            yield Entry(opaque.get("parameters"), where, texts(entry, "requests"))


def wishes_of(request: Object, path: Path) -> Iterator[Wish]:
    """The forms of one request: its alternatives, `exactly`, or flat as v1beta1 writes it."""
    name = text(request, "name")
    if "firstAvailable" in request:
        for where, alternative in listed(request, "firstAvailable", path):
            yield Wish(alternative, where, name, text(alternative, "name"))
    elif "exactly" in request:
        if isinstance(request["exactly"], Mapping):
            yield Wish(request["exactly"], (*path, "exactly"), name, "")
    else:
        yield Wish(request, path, name, "")


def group_and_version(document: Object) -> tuple[str, str]:
    """Of the object's API; the core group is ""."""
    group, slash, version = text(document, "apiVersion").rpartition("/")
    return (group, version) if slash else ("", version)


def pods(document: Object) -> Iterator[PodSpec]:
    """The specs of the pods that an object is or makes."""
    group, _ = group_and_version(document)
    kind = text(document, "kind")
    replicated = kind != "Pod" or _controlled(document)
    for pattern in WORKLOADS.get(group, {}).get(kind, ()):
        for path, found in _reached(document, pattern, ()):
            yield PodSpec(found, path, replicated)


def claims(document: Object) -> Iterator[ClaimSpec]:
    """What a claim or a template of claims asks for."""
    group, _ = group_and_version(document)
    pattern = CLAIMS.get(text(document, "kind")) if group == RESOURCE_GROUP else None
    if pattern:
        for path, found in _reached(document, pattern, ()):
            yield ClaimSpec(found, path)


def classes(document: Object) -> Iterator[ClassSpec]:
    """A device class; one without a spec selects everything."""
    group, _ = group_and_version(document)
    if group == RESOURCE_GROUP and text(document, "kind") == "DeviceClass":
        spec = document.get("spec")
        name = text(mapping(document, "metadata"), "name")
        yield ClassSpec(name, spec if isinstance(spec, Mapping) else {}, ("spec",))


def mapping(of: Object, key: str) -> Object:
    """The mapping under a key, empty where there is none."""
    found = of.get(key)
    return found if isinstance(found, Mapping) else {}


def text(of: Object, key: str) -> str:
    """The text under a key, "" where there is none."""
    found = of.get(key)
    return found if isinstance(found, str) else ""


def texts(of: Object, key: str) -> tuple[str, ...]:
    """The texts of the list under a key."""
    found = of.get(key)
    return tuple(one for one in found if isinstance(one, str)) if _is_list(found) else ()


def listed(of: Object, key: str, path: Path) -> list[tuple[Path, Object]]:
    """The mappings of the list under a key, each with its path."""
    found = of.get(key)
    if not _is_list(found):
        return []
    return [
        ((*path, key, index), one) for index, one in enumerate(found) if isinstance(one, Mapping)
    ]


def written(path: Path) -> str:
    """A path as Kubernetes writes it."""
    parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(parts).removeprefix(".")


def _is_list(found: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(found, Sequence) and not isinstance(found, str | bytes)


def _controlled(document: Object) -> bool:
    owners = listed(mapping(document, "metadata"), "ownerReferences", ())
    return any(owner.get("controller") is True for _, owner in owners)


def _reached(of: Any, pattern: tuple[str, ...], path: Path) -> Iterator[tuple[Path, Object]]:
    if not pattern:
        if isinstance(of, Mapping):
            yield path, of
        return
    step, rest = pattern[0], pattern[1:]
    if step == EACH:
        for index, one in enumerate(of if _is_list(of) else ()):
            yield from _reached(one, rest, (*path, index))
    elif isinstance(of, Mapping) and step in of:
        yield from _reached(of[step], rest, (*path, step))
