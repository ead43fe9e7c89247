"""Closed schemas of the kinds that are not Kubernetes' own, as far as the chart uses them.

KubeRay, the Prometheus operator and cert-manager. What stands in a pod template is judged by the
Kubernetes client's description as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.deploy.chart import strict

Shape = Any
"""A type, a list of one shape, a dict of shapes by key ("*": any key), or the name of a model."""
GROUPS = frozenset({"ray.io/v1", "monitoring.coreos.com/v1", "cert-manager.io/v1"})
METADATA = "V1ObjectMeta"
_RELABEL = {"sourceLabels": [str], "regex": str, "targetLabel": str}
_ENDPOINT = {"port": str, "path": str, "interval": str, "metricRelabelings": [_RELABEL]}
_RULE = {
    "alert": str,
    "record": str,
    "expr": str,
    "for": str,
    "keep_firing_for": str,
    "labels": {"*": str},
    "annotations": {"*": str},
}
_ISSUER = {"name": str, "kind": str, "group": str}
SHAPES: dict[str, Shape] = {
    "RayCluster": {
        "rayVersion": str,
        "enableInTreeAutoscaling": bool,
        "upgradeStrategy": {"type": str},
        "gcsFaultToleranceOptions": {
            "redisAddress": str,
            "redisPassword": {"value": str, "valueFrom": "V1EnvVarSource"},
            "externalStorageNamespace": str,
        },
        "headGroupSpec": {
            "serviceType": str,
            "rayStartParams": {"*": str},
            "template": "V1PodTemplateSpec",
        },
    },
    "PodMonitor": {"selector": "V1LabelSelector", "podMetricsEndpoints": [_ENDPOINT]},
    "PrometheusRule": {
        "groups": [{"name": str, "interval": str, "limit": int, "rules": [_RULE]}],
    },
    "Certificate": {
        "secretName": str,
        "dnsNames": [str],
        "duration": str,
        "renewBefore": str,
        "issuerRef": _ISSUER,
        "commonName": str,
        "isCA": bool,
        "usages": [str],
        "privateKey": {"algorithm": str, "size": int, "rotationPolicy": str},
    },
    "Issuer": {"selfSigned": {}, "ca": {"secretName": str}},
}


def problems(found: dict[str, Any]) -> list[str]:
    """As `strict.problems`, for these kinds."""
    kind = found["kind"]
    if kind not in SHAPES:
        return [f"{kind}: {found['apiVersion']} has no such kind here"]
    whole = {"apiVersion": str, "kind": str, "metadata": METADATA, "spec": SHAPES[kind]}
    return list(_checked(found, whole, kind))


def _checked(value: Any, shape: Shape, path: str) -> Iterator[str]:
    if isinstance(shape, str):
        yield from strict._checked(value, shape, path)
    elif isinstance(shape, type):
        if not isinstance(value, shape):
            yield f"{path}: {value!r} is no {shape.__name__}"
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{path}: {value!r} is no list"
            return
        for number, each in enumerate(value):
            yield from _checked(each, shape[0], f"{path}[{number}]")
    elif not isinstance(value, dict):
        yield f"{path}: {value!r} is no map"
    else:
        for key, each in value.items():
            inner = shape.get(key, shape.get("*"))
            if inner is None:
                yield f"{path}.{key}: no such field"
            else:
                yield from _checked(each, inner, f"{path}.{key}")
