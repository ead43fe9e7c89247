"""Where pods, claims and classes are inside objects, for every kind and API version. Pure.

Manifests are written by strangers: whatever is not of the type that Kubernetes demands is passed
over here, since the API server refuses it by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeGuard

Path = tuple[str | int, ...]
Object = Mapping[str, Any]

RESOURCE_GROUP = "resource.k8s.io"
RESOURCE_VERSIONS = ("v1", "v1beta2", "v1beta1")
EACH = "*"
"""In the place of a list's index."""
CONTAINERS = ("containers", "initContainers", "ephemeralContainers")

_TEMPLATE = ("spec", "template")
_RAY = (
    ("headGroupSpec", "template"),
    ("workerGroupSpecs", EACH, "template"),
)


def _ray_job(*at: str) -> tuple[tuple[str, ...], ...]:
    """Where a RayJob's spec, itself at a path, has its templates."""
    return (
        *((*at, "rayClusterSpec", *part) for part in _RAY),
        (*at, "submitterPodTemplate"),
    )


WORKLOADS: Mapping[str, Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "": {
        "Pod": ((),),
        "PodTemplate": (("template",),),
        "ReplicationController": (_TEMPLATE,),
    },
    "apps": dict.fromkeys(("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"), (_TEMPLATE,)),
    "batch": {
        "CronJob": (("spec", "jobTemplate", *_TEMPLATE),),
        "Job": (_TEMPLATE,),
    },
    "ray.io": {
        "RayCluster": tuple(("spec", *part) for part in _RAY),
        "RayJob": _ray_job("spec"),
        "RayCronJob": _ray_job("spec", "jobTemplate"),
        "RayService": tuple(("spec", "rayClusterConfig", *part) for part in _RAY),
    },
}
"""By group and kind: where the templates of its pods are, each with ``metadata`` and ``spec``."""
AUTOSCALERS: Mapping[str, tuple[str, ...]] = {
    "RayCluster": ("spec", "autoscalerOptions"),
    "RayJob": ("spec", "rayClusterSpec", "autoscalerOptions"),
    "RayCronJob": ("spec", "jobTemplate", "rayClusterSpec", "autoscalerOptions"),
    "RayService": ("spec", "rayClusterConfig", "autoscalerOptions"),
}
"""Of kinds of Ray: what its operator makes a further container of the head's pod from."""
REPLICATED = ("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet")
"""Kinds that say how many pods there are at a time."""
OWNERS = ("ReplicaSet", "ReplicationController", "StatefulSet")
"""Kinds of them that own pods: they were judged themselves."""
OWN_GROUPS = frozenset(
    {
        *("", "apps", "autoscaling", "batch", "policy"),
        *("admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io"),
        *("authentication.k8s.io", "authorization.k8s.io", "certificates.k8s.io"),
        *("coordination.k8s.io", "discovery.k8s.io", "events.k8s.io"),
        *("flowcontrol.apiserver.k8s.io", "internal.apiserver.k8s.io", "networking.k8s.io"),
        *("node.k8s.io", "rbac.authorization.k8s.io", RESOURCE_GROUP, "scheduling.k8s.io"),
        *("storage.k8s.io", "storagemigration.k8s.io"),
    }
)
"""The groups of Kubernetes itself: all of their kinds that make pods are in the table."""
SHARING = frozenset({("scheduling.k8s.io", "PodGroup")})
"""Groups and kinds whose claims are given to several pods at once."""
PODLESS: Mapping[str, frozenset[str]] = {
    "monitoring.coreos.com": frozenset({"PodMonitor", "Probe", "PrometheusRule", "ServiceMonitor"}),
    "cert-manager.io": frozenset({"Certificate", "ClusterIssuer", "Issuer"}),
    "gateway.networking.k8s.io": frozenset({"GRPCRoute", "HTTPRoute", "ReferenceGrant"}),
}
"""Of other groups: kinds that are known to make no pods of what somebody wrote into them."""
CLAIMS: Mapping[str, tuple[str, ...]] = {
    "ResourceClaim": ("spec", "devices"),
    "ResourceClaimTemplate": ("spec", "spec", "devices"),
}


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod, or the template of the pods that an object makes."""

    template: Object
    """With ``metadata``, where there is any, and ``spec``."""
    path: Path
    """Of its spec."""
    container_path: Path = ()
    """Of its only container, where it stands elsewhere than in the spec; (): it does not."""

    @property
    def spec(self) -> Object:
        """The spec of the pod."""
        return mapping(self.template, "spec")

    @property
    def containers(self) -> list[tuple[Path, Object]]:
        """Containers of every sort, each with its path."""
        if self.container_path:
            return [(self.container_path, found) for _, found in self.listed("containers")]
        return [found for sort in CONTAINERS for found in self.listed(sort)]

    def listed(self, field: str) -> list[tuple[Path, Object]]:
        """The mappings of a list of the spec, each with its path."""
        return listed(self.spec, field, self.path)


@dataclass(frozen=True, slots=True)
class Workload:
    """An object that is a pod or makes pods."""

    document: Object
    pods: tuple[PodSpec, ...]

    @property
    def is_shared(self) -> bool:
        """Whether there may be several pods of it at a time, or nobody can tell how many.

        Of a pod that something owns, its owner was judged, where that is of a kind we know.
        """
        kind = text(self.document, "kind")
        metadata, spec = mapping(self.document, "metadata"), mapping(self.document, "spec")
        if kind == "Pod":
            owners = [owner for _, owner in listed(metadata, "ownerReferences", ())]
            return bool(owners) and not any(
                owner.get("controller") is True and owner.get("kind") in OWNERS for owner in owners
            )
        group, _ = group_and_version(self.document)
        if kind in REPLICATED and group in ("", "apps"):
            count = spec.get("replicas", 1)
            return isinstance(count, int) and count > 1
        return True

    @property
    def is_stored(self) -> bool:
        """Whether it is a pod that a server handed out: by then it has its node."""
        uid = mapping(self.document, "metadata").get("uid")
        return text(self.document, "kind") == "Pod" and bool(uid)

    @property
    def variables(self) -> Mapping[str, Any]:
        """What rules in CEL see of it, under the names that the policies have for the same."""
        return {
            "pods": [pod.template for pod in self.pods],
            "containers": [[one for _, one in pod.containers] for pod in self.pods],
            "shared": self.is_shared,
            "stored": self.is_stored,
        }


@dataclass(frozen=True)
class Wish:
    """One way in which a request can be satisfied."""

    fields: Object
    path: Path
    request: str
    alternative: str
    """Name of the sub-request; "" where the request has but one form."""
    speaks: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)
    """By driver, whether its selectors were found to speak of it: several rules ask, and reading
    them takes time with their length."""

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

    @cached_property
    def selectors(self) -> list[str]:
        """The CEL text of its own selectors: they count as those of its class do."""
        return [expression for _, expression in expressions(self.fields, self.path)]


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


@dataclass(frozen=True)
class ClaimSpec:
    """What a claim, or the claims of a template, ask for."""

    devices: Object
    path: Path
    metadata: tuple[tuple[Path, Object], ...] = ()
    """Its own, and what a template has for the claims that are made from it."""
    is_stored: bool = False
    """Whether a server handed it out: by then it may carry marks of ours."""

    @property
    def requests(self) -> list[tuple[Path, Object]]:
        """Requests, each with its path."""
        return listed(self.devices, "requests", self.path)

    @cached_property
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
        return expressions(self.spec, self.path)

    def entries(self, driver: str) -> list[Entry]:
        """Configuration meant for this driver."""
        return list(_entries(self.spec, driver, self.path))

    def names(self, driver: str) -> bool:
        """Whether it speaks of this driver, in a selector or in configuration."""
        return bool(self.entries(driver)) or any(
            driver in expression for _, expression in self.selectors
        )


def expressions(of: Object, path: Path) -> list[tuple[Path, str]]:
    """The CEL text of the selectors of a class or request, each with its path."""
    found = []
    for place, selector in listed(of, "selectors", path):
        cel = selector.get("cel")
        if isinstance(cel, Mapping) and isinstance(cel.get("expression"), str):
            found.append(((*place, "cel", "expression"), cel["expression"]))
    return found


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


def workload(document: Object) -> Workload | None:
    """An object that is a pod or makes pods; None: it does neither, as far as can be told.

    Of a kind that is not in the table, whatever looks like a pod's spec is one.
    """
    group, _ = group_and_version(document)
    kind = text(document, "kind")
    if kind in WORKLOADS.get(group, {}):
        found = tuple(_pods_of(document, group, kind))
    elif group in OWN_GROUPS or kind in PODLESS.get(group, ()):
        found = ()
    else:
        found = tuple(_anywhere(document, ()))
    return Workload(document, found) if found else None


def is_sharing(document: Object) -> bool:
    """Whether its pods get one claim together, whatever their own manifests say (F21)."""
    group, _ = group_and_version(document)
    if (group, text(document, "kind")) not in SHARING:
        return False
    return bool(listed(mapping(document, "spec"), "resourceClaims", ()))


def is_understood(document: Object) -> bool:
    """Whether it can be told that an object makes no pods but those that were found in it."""
    group, _ = group_and_version(document)
    kind = text(document, "kind")
    if is_sharing(document):
        return False
    known = group in OWN_GROUPS or (group in WORKLOADS and kind in WORKLOADS[group])
    return known or kind in PODLESS.get(group, ()) or workload(document) is not None


def _pods_of(document: Object, group: str, kind: str) -> Iterator[PodSpec]:
    for pattern in WORKLOADS[group][kind]:
        for path, found in _reached(document, pattern, ()):
            if isinstance(found.get("spec"), Mapping):
                yield PodSpec(found, (*path, "spec"))
    if group == "ray.io":
        for path, options in _reached(document, AUTOSCALERS[kind], ()):
            yield PodSpec({"spec": {"containers": [options]}}, path, container_path=path)


def _anywhere(of: Any, path: Path, around: Object | None = None) -> Iterator[PodSpec]:
    """Whatever looks like a pod's spec, at any depth: it has containers of any sort.

    It is looked into all the same: what stands outside may be none, or not the only one.
    """
    if _is_list(of):
        for index, one in enumerate(of):
            yield from _anywhere(one, (*path, index))
    elif isinstance(of, Mapping):
        if any(listed(of, sort, ()) for sort in CONTAINERS):
            yield PodSpec(around if around and path[-1] == "spec" else {"spec": of}, path)
        for key, one in of.items():
            if path or key != "status":
                yield from _anywhere(one, (*path, key), of)


def claims(document: Object) -> Iterator[ClaimSpec]:
    """What a claim or a template of claims asks for."""
    group, _ = group_and_version(document)
    pattern = CLAIMS.get(text(document, "kind")) if group == RESOURCE_GROUP else None
    if pattern:
        metadata = mapping(document, "metadata")
        places: list[tuple[Path, Object]] = [(("metadata",), metadata)]
        if len(pattern) == 3:
            inner = mapping(mapping(document, "spec"), "metadata")
            places.append((("spec", "metadata"), inner))
        for path, found in _reached(document, pattern, ()):
            yield ClaimSpec(found, path, tuple(places), bool(metadata.get("uid")))


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
