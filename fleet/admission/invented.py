"""Names that do not exist in the API (requirements, section F), and what was meant. Pure.

Only `fleet lint` can tell: the API server refuses a kind or version it does not serve, and drops or
refuses a field it does not know, before any admission is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleet.admission.ground import Ground
from fleet.admission.rule import Flaw, Rule
from fleet.kube.shapes import (
    RESOURCE_GROUP,
    RESOURCE_VERSIONS,
    Object,
    Path,
    claims,
    group_and_version,
    listed,
    mapping,
    text,
)

KINDS: Mapping[str, str] = {
    "DeviceClaim": "kind: ResourceClaim in resource.k8s.io/v1",
    "DeviceClaimTemplate": "kind: ResourceClaimTemplate in resource.k8s.io/v1",
    "NodeResourceSlice": "kind: ResourceSlice with spec.nodeName; the driver publishes it",
    "PodSchedulingContext": "nothing: with structured parameters the scheduler allocates",
    "ResourceClaimParameters": "the driver's opaque configuration in spec.devices.config",
    "ResourceClass": "kind: DeviceClass in resource.k8s.io/v1",
    "ResourceClassParameters": "the driver's opaque configuration in spec.config of a DeviceClass",
}
"""Kinds that rules of this field speak of and no API has."""
FIELDS: Mapping[str, str] = {
    "allowMultipleAllocations": "nothing: it is a field of a device in its ResourceSlice; a class"
    " selects by it with device.allowMultipleAllocations != true",
    "deallocationPolicy": "deallocation in the opaque parameters, and a ResourceClaimTemplate for"
    " each pod: nothing is retained or deleted by a field of the claim",
    "deallocationRequested": "nothing: it is gone since structured parameters; a claim ends with"
    " its pod",
    "parametersRef": "the driver's opaque configuration in devices.config",
    "reclaimPolicy": "deallocation in the opaque parameters, and a ResourceClaimTemplate for each"
    " pod",
    "resourceClassName": "deviceClassName in each request",
    "sanitizationPolicy": "deallocation in the opaque parameters in devices.config",
}
"""Fields that do not exist, by their last name."""
_WISH = ("adminAccess", "allocationMode", "capacity", "count", "deviceClassName", "selectors",
         "tolerations")  # fmt: skip
_DEVICES = ("config", "constraints", "requests")
_NESTED = ("name", "exactly", "firstAvailable")
_FLAT = ("name", "firstAvailable", *_WISH)
_ALTERNATIVE = ("name", *(field for field in _WISH if field != "adminAccess"))


_NO_FIELD = "there is no such field"


def _kinds(document: Object, _ground: Ground) -> Iterator[Flaw]:
    kind = text(document, "kind")
    group, _ = group_and_version(document)
    if kind in KINDS and (group == RESOURCE_GROUP or "." not in group):
        yield Flaw(("kind",), f"there is no kind {kind}", f"write {KINDS[kind]}")


def _versions(document: Object, _ground: Ground) -> Iterator[Flaw]:
    group, version = group_and_version(document)
    if group != RESOURCE_GROUP or version in RESOURCE_VERSIONS:
        return
    kind = text(document, "kind")
    if kind in KINDS or (kind == "DeviceTaintRule" and version == "v1alpha3"):
        return
    yield Flaw(("apiVersion",), f"{kind or 'nothing'} is not served as {group}/{version}")


def _fields(document: Object, _ground: Ground) -> Iterator[Flaw]:
    _, version = group_and_version(document)
    flat = version == "v1beta1"
    for claim in claims(document):
        above = claim.path[:-1]
        spec: Any = document
        for step in above:
            spec = spec[step]
        yield from _unknown(spec, ("devices",), above)
        yield from _unknown(claim.devices, _DEVICES, claim.path)
        for path, request in claim.requests:
            yield from _unknown(request, _FLAT if flat else _NESTED, path)
            yield from _unknown(mapping(request, "exactly"), _WISH, (*path, "exactly"))
            for where, alternative in listed(request, "firstAvailable", path):
                yield from _unknown(alternative, _ALTERNATIVE, where)
    if claims_kind(document) and "deallocationRequested" in mapping(document, "status"):
        where = ("status", "deallocationRequested")
        yield Flaw(where, _NO_FIELD, f"write {FIELDS['deallocationRequested']}")


def claims_kind(document: Object) -> bool:
    """Whether it is a claim or a template, of whatever version."""
    kinds = ("ResourceClaim", "ResourceClaimTemplate")
    return group_and_version(document)[0] == RESOURCE_GROUP and text(document, "kind") in kinds


def _unknown(of: Object, known: tuple[str, ...], path: Path) -> Iterator[Flaw]:
    for name in of:
        if name in known or not isinstance(name, str):
            continue
        if name in FIELDS:
            meant = FIELDS[name]
        elif name in _WISH and "exactly" in known:
            meant = f"{name} below exactly (flat requests are v1beta1)"
        elif name == "exactly":
            meant = "its fields into the request itself, or apiVersion: resource.k8s.io/v1"
        else:
            meant = "only " + ", ".join(sorted(known))
        yield Flaw((*path, name), _NO_FIELD, f"write {meant}")


_REFUSED = "the API server refuses what it does not serve before admission is asked"
_DROPPED = "the API server drops or refuses a field it does not know before admission is asked"

RULES: tuple[Rule[Object], ...] = (
    Rule(
        id="F-kind",
        says="a kind that no API has",
        remedy="what is meant by it, which each finding says",
        judge=_kinds,
        why_lint_only=_REFUSED,
    ),
    Rule(
        id="F-version",
        says="a version of resource.k8s.io that is not served",
        remedy="write apiVersion: resource.k8s.io/v1",
        judge=_versions,
        why_lint_only=_REFUSED,
    ),
    Rule(
        id="F-field",
        says="a field of a claim that does not exist, or not there",
        remedy="what is meant by it, which each finding says",
        judge=_fields,
        why_lint_only=_DROPPED,
    ),
)
