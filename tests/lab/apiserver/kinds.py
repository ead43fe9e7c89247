"""The kinds the server serves, each with its shape, rules and habits. Pure.

`table` builds them for a set of features, so that one process can hold servers of several versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fleet.kube.base import (
    CLAIMS,
    CLASSES,
    CONFIGMAPS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SLICES,
    Resource,
)
from tests.lab.apiserver import schema
from tests.lab.apiserver.claims import ClaimRules, TemplateRules
from tests.lab.apiserver.configmaps import ConfigMapRules
from tests.lab.apiserver.gates import Features
from tests.lab.apiserver.leases import LeaseRules
from tests.lab.apiserver.rules import PlainRules, Rules
from tests.lab.apiserver.slices import SliceRules

CLAIM_TEMPLATES = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True
)
_FIRST_STATUS = {"phase": "Pending", "qosClass": "BestEffort"}
_NAMES = ("metadata.name", "metadata.namespace")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind as the server treats it."""

    resource: Resource
    shape: schema.Struct
    rules: Rules
    has_status: bool = False
    generation: bool = True
    """Whether metadata.generation counts changes of the spec."""
    create_on_update: bool = False
    """Whether a PUT of a missing object creates it."""
    unconditional_update: bool = True
    """Whether a PUT without resourceVersion is taken."""
    graceful: bool = False
    """Whether a delete waits for somebody (kubelet) to confirm it."""
    selectable: tuple[str, ...] = _NAMES


def table(
    features: Features, extra_fields: Mapping[Resource, tuple[str, ...]] | None = None
) -> dict[Resource, Kind]:
    """All kinds served. `extra_fields`: dotted paths a newer server would know, per kind."""
    plain = PlainRules(has_status=True)
    kinds = [
        Kind(CLAIMS, schema.CLAIM, ClaimRules(features), has_status=True, generation=False),
        Kind(CLAIM_TEMPLATES, schema.CLAIM_TEMPLATE, TemplateRules(), generation=False),
        Kind(
            SLICES,
            schema.SLICE,
            SliceRules(features),
            selectable=("metadata.name", "spec.nodeName", "spec.driver"),
        ),
        Kind(CLASSES, schema.OPEN, PlainRules(has_status=False)),
        Kind(
            PODS,
            schema.OPEN,
            PlainRules(has_status=True, first_status=_FIRST_STATUS),
            has_status=True,
            graceful=True,
            selectable=(*_NAMES, "spec.nodeName", "status.phase", "spec.restartPolicy",
                        "spec.schedulerName", "spec.serviceAccountName"),
        ),
        Kind(NAMESPACES, schema.OPEN, plain, has_status=True, generation=False),
        Kind(NODES, schema.NODE, plain, has_status=True, generation=False,
             selectable=("metadata.name", "spec.unschedulable")),
        Kind(
            EVENTS,
            schema.OPEN,
            PlainRules(has_status=False),
            generation=False,
            create_on_update=True,
            selectable=(*_NAMES, "involvedObject.kind", "involvedObject.name",
                        "involvedObject.namespace", "involvedObject.uid", "reason", "type"),
        ),
        Kind(CONFIGMAPS, schema.CONFIG_MAP, ConfigMapRules(), generation=False),
        Kind(
            LEASES,
            schema.LEASE,
            LeaseRules(),
            generation=False,
            create_on_update=True,
            unconditional_update=False,
        ),
    ]  # fmt: skip
    return {kind.resource: _extended(kind, extra_fields or {}) for kind in kinds}


def _extended(kind: Kind, extra: Mapping[Resource, tuple[str, ...]]) -> Kind:
    shape: schema.Shape = kind.shape
    for path in extra.get(kind.resource, ()):
        shape = schema.extended(shape, tuple(path.split(".")))
    return replace(kind, shape=shape) if isinstance(shape, schema.Struct) else kind
