"""The chart, rendered by Helm's own engine without a cluster, with the values the tests share."""

from __future__ import annotations

import copy
import functools
import importlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml  # type: ignore[import-untyped] # ships no types

from fleet.kube.base import Object
from tests.deploy.manifests import ROOT

CHART = ROOT / "helm" / "fleetscrub"
NAMESPACE = "fleetscrub"
RELEASE = "fleetscrub"
Values = dict[str, Any]

_PLACED: Values = {
    "nodeSelector": {"example.com/accelerators": "yes"},
    "tolerations": [{"key": "example.com/t", "operator": "Equal", "value": "v"}],
    "podAnnotations": {"example.com/a": "b"},
    "podLabels": {"example.com/l": "m"},
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}
                ]
            }
        }
    },
}
EVERYTHING: Values = {
    "imagePullSecrets": [{"name": "registry"}],
    "image": {"digest": "sha256:" + "0" * 64},
    "driver": {"name": "gpu.example.com"},
    "serviceAccounts": {"annotations": {"example.com/role": "r"}},
    "kubeletPlugin": {**_PLACED, "verbose": True, "seLinuxOptions": {"type": "spc_t"}},
    "worker": {**_PLACED, "seLinuxOptions": {"type": "spc_t"}},
    "controller": {**_PLACED, "persistence": {"storageClassName": "fast", "size": "5Gi"}},
    "campaign": {
        **_PLACED,
        "select": "pool=a,node~rack-1-*",
        "maxParallel": 4,
        "timeZone": "Etc/UTC",
    },
    "ray": {
        "gcsFaultTolerance": {
            "backend": "redis",
            "redis": {"address": "redis:6379", "existingSecret": "redis"},
        }
    },
    "settings": {
        "profile": "strict",
        "wipe": {"chunk_largest_bytes": 8589934592, "coverage_floor": 0.99},
        "kubernetes": {"binding_timeout_s": 900, "unexposed": "delete"},
        "hardware": {"reset_methods": ["flr"]},
        "evidence": {"archive": "s3://bucket/prefix"},
        "admission": {"required": True, "tag_roots": ["0" * 64]},
    },
    "networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True, "annotations": {"folder": "fleetscrub"}},
    "rbac": {"unexposedDelete": True},
    "spelling": {"enabled": True},
    "admission": {"tags": {"existingConfigMap": "tag-keys"}, "webhook": {"enabled": True}},
}
"""Every switch on, every optional value given."""
VARIANTS: Mapping[str, Values] = {
    "defaults": {},
    "everything": EVERYTHING,
    "v1beta2": {"resourceApiVersion": "v1beta2"},
    "v1beta1": {"resourceApiVersion": "v1beta1"},
    "kuberay": {"ray": {"kuberay": {"enabled": True}}, "podMonitor": {"enabled": True}},
    "kuberay-redis": {
        "ray": {
            "kuberay": {"enabled": True},
            "gcsFaultTolerance": {
                "backend": "redis",
                "redis": {"address": "redis:6379", "existingSecret": "redis"},
            },
        },
    },
    "simulated": {"simulate": {"enabled": True}},
    "without-ray": {"ray": {"enabled": False}, "settings": {"profile": "fast"}},
    "own-secrets": {
        "ray": {"auth": {"existingSecret": "token"}, "gcsFaultTolerance": {"backend": "none"}},
        "controller": {"persistence": {"enabled": False}},
        "featureGates": {"DRAConsumableCapacity": False},
        "networkPolicy": {"enabled": False},
        "nameOverride": "scrub",
    },
}


def engine() -> Any:
    """Helm; imported late, since only `make lint-deploy` installs it."""
    return importlib.import_module("helm_python")


@functools.cache
def _chart() -> Any:
    return engine().Chart.load(str(CHART))


@functools.cache
def _rendered(values: str, name: str, namespace: str, *, install: bool) -> str:
    files: dict[str, str] = _chart().render(
        json.loads(values),
        name=name,
        namespace=namespace,
        is_install=install,
        is_upgrade=not install,
    )
    return json.dumps(files)


def files(
    values: Values | None = None, *, namespace: str = NAMESPACE, install: bool = True
) -> dict[str, str]:
    """What each template became, by its path in the chart. Raises what Helm raises."""
    found: dict[str, str] = json.loads(
        _rendered(json.dumps(values or {}), RELEASE, namespace, install=install)
    )
    return {path.removeprefix("fleetscrub/"): text for path, text in found.items()}


def objects(values: Values | None = None, **where: Any) -> list[Object]:
    """All objects of a rendering, the caller's own copy."""
    found: list[Object] = json.loads(_read(json.dumps([values or {}, where], sort_keys=True)))
    return found


@functools.cache
def _read(asked: str) -> str:
    values, where = json.loads(asked)
    return json.dumps(
        [
            found
            for path, text in files(values, **where).items()
            if path.endswith(".yaml")
            for found in yaml.load_all(text, Loader=yaml.CSafeLoader)
            if found is not None
        ]
    )


def one(kind: str, name: str, values: Values | None = None) -> Object:
    """The object of this kind and name."""
    (found,) = [
        each for each in objects(values) if (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]
    return found


def pods(found: list[Object]) -> Iterator[tuple[str, Object]]:
    """(kind/name, pod template) of every workload."""
    for each in found:
        kind, spec = each["kind"], each.get("spec", {})
        if kind == "RayCluster":
            template = _completed(spec)
        elif kind == "CronJob":
            template = spec["jobTemplate"]["spec"]["template"]
        elif kind in ("Deployment", "DaemonSet", "Job", "StatefulSet"):
            template = spec["template"]
        else:
            continue
        yield f"{kind}/{each['metadata']['name']}", template


def _completed(cluster: Object) -> Object:
    """The head's template with what KubeRay adds: the password of Redis as a variable."""
    template: Object = copy.deepcopy(cluster["headGroupSpec"]["template"])
    password = cluster.get("gcsFaultToleranceOptions", {}).get("redisPassword")
    if password is not None:
        container = template["spec"]["containers"][0]
        container["env"].append({"name": "REDIS_PASSWORD", **password})
    return template


def containers(template: Object) -> list[Object]:
    """Its containers, those that come first included."""
    return [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]
