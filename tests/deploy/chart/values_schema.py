"""What may be written into the chart's values: closed everywhere, so that a typo is refused.

    python -m tests.deploy.chart.values_schema      # writes values.schema.json

The part about the product's settings is made from `fleet.core.settings`, without what the chart
decides.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from fleet.core.settings import Settings
from tests.deploy.manifests import ROOT

Schema = dict[str, Any]
PATH = ROOT / "helm" / "fleetscrub" / "values.schema.json"
DECIDED = {
    "KubernetesSettings": (
        "driver",
        "cdi_directory",
        "kubelet_root",
        "cgroup_root",
        "agent_namespace",
    ),
    "HardwareSettings": ("root", "run_directory"),
    "StoreSettings": ("namespace", "hosts"),
    "AdmissionSettings": ("tag_keys",),
}
"""Settings that follow from other values: to write them as well could only contradict these."""
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
NAME: Schema = {"type": "string", "maxLength": 63, "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"}
PATHNAME: Schema = {"type": "string", "pattern": "^/[A-Za-z0-9._/-]*[A-Za-z0-9._-]$"}
ADDRESS: Schema = {"type": "string", "pattern": "^(https?://\\S+)?$"}
_LABEL = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
PORT: Schema = {"type": "integer", "minimum": 1024, "maximum": 65535}
COUNT: Schema = {"type": "integer", "minimum": 0}
SECONDS: Schema = {"type": "integer", "minimum": 1}
QUANTITY: Schema = {
    "anyOf": [{"type": "string", "pattern": "^[0-9.]+[a-zA-Z]*$"}, {"type": "number", "minimum": 0}]
}
DURATION: Schema = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"}


def closed(properties: Schema) -> Schema:
    """An object with these keys, each optional, and no other."""
    return {"type": "object", "additionalProperties": False, "properties": properties}


def choice(*values: object) -> Schema:
    """One of these."""
    return {"enum": list(values)}


def listed(items: Schema) -> Schema:
    """A list of these."""
    return {"type": "array", "items": items}


_AMOUNTS: Schema = {"type": "object", "additionalProperties": QUANTITY}
RESOURCES = closed({"requests": _AMOUNTS, "limits": _AMOUNTS})
SAME_RESOURCES: Schema = {"$ref": "#/definitions/resources"}
CONTAINER = closed({"resources": SAME_RESOURCES})
TOLERATION = closed(
    {
        "key": TEXT,
        "operator": choice("Exists", "Equal"),
        "value": TEXT,
        "effect": choice("NoSchedule", "PreferNoSchedule", "NoExecute"),
        "tolerationSeconds": COUNT,
    }
)
_TERM = closed(
    {
        "key": TEXT,
        "operator": choice("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"),
        "values": listed(TEXT),
    }
)
_LABELS = closed({"matchLabels": TEXTS, "matchExpressions": listed(_TERM)})
_NODES = closed({"matchExpressions": listed(_TERM), "matchFields": listed(_TERM)})
_PODS = closed(
    {
        "labelSelector": _LABELS,
        "namespaceSelector": _LABELS,
        "namespaces": listed(TEXT),
        "topologyKey": TEXT,
    }
)
_REQUIRED, _PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
_WEIGHT: Schema = {"type": "integer", "minimum": 1, "maximum": 100}
_AMONG_PODS = closed(
    {
        _REQUIRED: listed(_PODS),
        _PREFERRED: listed(closed({"weight": _WEIGHT, "podAffinityTerm": _PODS})),
    }
)
AFFINITY = closed(
    {
        "nodeAffinity": closed(
            {
                _REQUIRED: closed({"nodeSelectorTerms": listed(_NODES)}),
                _PREFERRED: listed(closed({"weight": _WEIGHT, "preference": _NODES})),
            }
        ),
        "podAffinity": _AMONG_PODS,
        "podAntiAffinity": _AMONG_PODS,
    }
)
SHARED: Schema = {"affinity": AFFINITY, "tolerations": listed(TOLERATION), "resources": RESOURCES}
"""Parts that stand in several places, written once."""
PLACED: Schema = {
    "tolerations": {"$ref": "#/definitions/tolerations"},
    "nodeSelector": TEXTS,
    "affinity": {"$ref": "#/definitions/affinity"},
    "podAnnotations": TEXTS,
    "podLabels": TEXTS,
}
SELINUX = closed({"user": TEXT, "role": TEXT, "type": TEXT, "level": TEXT})
PEER = closed(
    {
        "podSelector": _LABELS,
        "namespaceSelector": _LABELS,
        "ipBlock": closed({"cidr": TEXT, "except": listed(TEXT)}),
    }
)
ROLLING: Schema = {"anyOf": [COUNT, {"type": "string", "pattern": "^[0-9]+%$"}]}


def _kubelet_plugin() -> Schema:
    paths = ("kubeletRegistrar", "kubeletPlugins", "cdi", "state", "run")
    return closed(
        {
            **PLACED,
            **{f"{name}DirectoryPath": PATHNAME for name in paths},
            "priorityClassName": TEXT,
            "updateStrategy": closed(
                {
                    "type": choice("RollingUpdate", "OnDelete"),
                    "rollingUpdate": closed({"maxSurge": ROLLING, "maxUnavailable": ROLLING}),
                }
            ),
            "driverDirectoryPaths": listed(PATHNAME),
            "verbose": FLAG,
            "httpPort": PORT,
            "lastSeconds": COUNT,
            "terminationGracePeriodSeconds": SECONDS,
            "seLinuxOptions": SELINUX,
            "containers": closed({"nodePlugin": CONTAINER}),
        }
    )


def _worker() -> Schema:
    return closed(
        {
            **PLACED,
            "priorityClassName": TEXT,
            "terminationGracePeriodSeconds": SECONDS,
            "appArmorProfile": choice("Unconfined", "RuntimeDefault"),
            "seLinuxOptions": SELINUX,
            "containers": closed(
                {"rayWorker": CONTAINER, "bridge": CONTAINER, "standby": CONTAINER}
            ),
        }
    )


def _controller() -> Schema:
    return closed(
        {
            **PLACED,
            "priorityClassName": TEXT,
            "terminationGracePeriodSeconds": SECONDS,
            "containers": closed({"rayHead": CONTAINER}),
            "persistence": closed(
                {
                    "enabled": FLAG,
                    "existingClaim": NAME,
                    "storageClassName": TEXT,
                    "accessModes": listed(choice("ReadWriteOnce", "ReadWriteOncePod")),
                    "size": QUANTITY,
                }
            ),
        }
    )


def _ray() -> Schema:
    ports = (
        "gcs dashboard metrics objectManager nodeManager dashboardAgent dashboardAgentGrpc"
        " runtimeEnvAgent workerMin workerMax"
    )
    redis = closed({"address": TEXT, "existingSecret": NAME, "passwordKey": TEXT})
    return closed(
        {
            "enabled": FLAG,
            "kuberay": closed({"enabled": choice("auto", True, False)}),
            "auth": closed({"existingSecret": NAME}),
            "gcsFaultTolerance": closed(
                {"backend": choice("rocksdb", "redis", "none"), "redis": redis}
            ),
            "ports": closed(dict.fromkeys(ports.split(), PORT)),
            "objectStoreMemoryBytes": {"type": "integer", "minimum": 78643200},
        }
    )


def _campaign() -> Schema:
    return closed(
        {
            **PLACED,
            "enabled": FLAG,
            "schedule": {"type": "string", "pattern": r"^(@\w+|(\S+\s+){4}\S+)$"},
            "timeZone": TEXT,
            "suspend": FLAG,
            "select": TEXT,
            "maxParallel": COUNT,
            "operator": {"type": "string", "minLength": 1},
            "startingDeadlineSeconds": {"type": "integer", "minimum": 10},
            "activeDeadlineSeconds": SECONDS,
            "successfulJobsHistoryLimit": COUNT,
            "failedJobsHistoryLimit": COUNT,
            "ttlSecondsAfterFinished": COUNT,
            "resources": SAME_RESOURCES,
        }
    )


def _webhook() -> Schema:
    issuer = closed({"name": NAME, "kind": choice("Issuer", "ClusterIssuer"), "group": TEXT})
    modes = choice("generated", "cert-manager", "secret")
    names: Schema = {"mode": modes, "existingSecret": NAME, "issuerRef": issuer}
    return closed(
        {
            **PLACED,
            "enabled": FLAG,
            "replicas": SECONDS,
            "port": PORT,
            "tls": closed({**names, "caBundle": TEXT}),
            "clients": closed({"existingConfigMap": NAME, "key": TEXT, "names": listed(TEXT)}),
            "priorityClassName": TEXT,
            "resources": SAME_RESOURCES,
        }
    )


def settings() -> Schema:
    """The product's own settings, without what the chart decides; references resolved."""
    whole = copy.deepcopy(Settings.model_json_schema())
    sections = whole.pop("$defs")
    for name, decided in DECIDED.items():
        for key in decided:
            if name in sections:
                sections[name]["properties"].pop(key, None)
    sections["StoreKind"]["enum"].remove("sqlite")  # of one host
    found: Schema = _resolved(whole, sections)
    return found


def _resolved(schema: Any, sections: Schema) -> Any:
    if isinstance(schema, list):
        return [_resolved(one, sections) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _resolved(sections[schema["$ref"].removeprefix("#/$defs/")], sections)
    dropped = ("title", "default")
    return {
        key: {name: _resolved(one, sections) for name, one in value.items()}
        if key == "properties"
        else _resolved(value, sections)
        for key, value in schema.items()
        if key not in dropped
    }


def values() -> Schema:
    """The whole schema."""
    gates = ("DRAConsumableCapacity",)
    root = closed(
        {
            "nameOverride": NAME,
            "fullnameOverride": NAME,
            "allowDefaultNamespace": FLAG,
            "image": closed(
                {
                    "repository": {"type": "string", "minLength": 1},
                    "tag": TEXT,
                    "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
                    "pullPolicy": choice("Always", "IfNotPresent", "Never"),
                }
            ),
            "imagePullSecrets": listed(closed({"name": NAME})),
            "resourceApiVersion": choice("v1", "v1beta2", "v1beta1"),
            "driver": closed(
                {
                    "name": {
                        "type": "string",
                        "maxLength": 27,
                        "pattern": rf"^{_LABEL}(\.{_LABEL})+$",
                    }
                }
            ),
            "featureGates": closed(dict.fromkeys(gates, FLAG)),
            "settings": settings(),
            "logFormat": choice("text", "json"),
            "simulate": closed({"enabled": FLAG, "devices": SECONDS, "memory": QUANTITY}),
            "serviceAccounts": closed({"annotations": TEXTS}),
            "kubeletPlugin": _kubelet_plugin(),
            "worker": _worker(),
            "controller": _controller(),
            "ray": _ray(),
            "campaign": _campaign(),
            **_extras(),
        }
    )
    return {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": SHARED, **root}


def _extras() -> Schema:
    return {
        "deviceClasses": closed(
            {"enabled": FLAG, "multiTenant": closed({"requireIommuGroup": FLAG})}
        ),
        "storeJob": closed({"enabled": FLAG, "ttlSecondsAfterFinished": COUNT}),
        "uninstall": closed({"enabled": FLAG, "activeDeadlineSeconds": SECONDS}),
        "networkPolicy": closed(
            {"enabled": FLAG, "metricsFrom": listed(PEER), "apiServerFrom": listed(PEER)}
        ),
        "podMonitor": closed({"enabled": FLAG, "interval": DURATION, "labels": TEXTS}),
        "prometheusRule": closed({"enabled": FLAG, "labels": TEXTS, "runbookBaseUrl": ADDRESS}),
        "dashboards": closed({"enabled": FLAG, "labels": TEXTS, "annotations": TEXTS}),
        "rbac": closed({"create": FLAG, "unexposedDelete": FLAG, "claimBind": FLAG}),
        "accountPolicies": closed(
            {"enabled": FLAG, "publishers": listed(TEXT), "allocators": listed(TEXT)}
        ),
        "spelling": closed({"enabled": choice("auto", True, False)}),
        "admission": closed(
            {
                "enabled": FLAG,
                "classes": listed(TEXT),
                "spreadClasses": listed(TEXT),
                "otherClasses": listed(TEXT),
                "capabilities": listed(TEXT),
                "extendedResources": listed(TEXT),
                "hostPaths": listed(TEXT),
                "csiDrivers": listed(TEXT),
                "requesters": listed(TEXT),
                "wipeBudgetSeconds": SECONDS,
                "tags": closed({"existingConfigMap": NAME, "key": TEXT}),
                "webhook": _webhook(),
            }
        ),
        "global": {"type": "object"},
    }


def text() -> str:
    """The file's content."""
    return json.dumps(values(), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())
