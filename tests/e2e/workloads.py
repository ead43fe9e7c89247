"""Pods and claims of the suite as JSON, and the little programs its containers run.

A container says what it found in its termination message: the API keeps it, so that no log has to
be fetched from a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.kube.base import CLAIMS, CLASSES, Name, Object, Resource
from tests.e2e.plugin_process import DRIVER

TEMPLATES = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True
)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", namespaced=True)
AGENT_CLASS = f"agent.{DRIVER}"
TENANT = "tenant"
"""Name of the claim in a pod, of the request in a claim and of the container."""

SAY = 'say() { echo "$@" >> /dev/termination-log; }; M=$FLEETSIM_MEMORY; N=$(wc -c < "$M")'
"""Beginning of every program. `M` is the device's memory, `N` its size in bytes."""
FILL = 'yes {secret} | head -c "$N" 1<>"$M"'
"""Write a secret all over the device's memory."""
COUNT = 'say "$(grep -c {secret} "$M")"'
"""Say how many lines of the device's memory have the secret."""
NOT_ZERO = 'say "$(tr -d \'\\0\' < "$M" | wc -c)"'
"""Say how many bytes of the device's memory are not zero."""
STAY = 'trap "exit 0" TERM; sleep 3600 & wait'
"""Run until asked to stop."""


def program(*steps: str, secret: str = "") -> list[str]:
    """The command of a container that runs these steps, with the secret filled in."""
    return ["sh", "-c", "; ".join((SAY, *steps)).replace("{secret}", secret)]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a claim asks for: one device, any, unless it says more."""

    uuid: str = ""
    """The device of this UUID."""
    count: int = 1
    tolerated: Sequence[str] = ()
    """Taints of these keys do not keep the claim away."""
    admin: bool = False
    """Look into a device that somebody else may have."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Opaque configuration for our driver."""
    device_class: str = DRIVER


def claim_spec(wish: Wish) -> Object:
    """The spec of a claim, with one request."""
    exactly: dict[str, Any] = {
        "deviceClassName": wish.device_class,
        "allocationMode": "ExactCount",
        "count": wish.count,
    }
    if wish.uuid:
        expression = f'device.attributes["{DRIVER}"].uuid == "{wish.uuid}"'
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    if wish.tolerated:
        exactly["tolerations"] = [
            {"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in wish.tolerated
        ]
    if wish.admin:
        exactly["adminAccess"] = True
    found: dict[str, Any] = {"requests": [{"name": TENANT, "exactly": exactly}]}
    if wish.parameters:
        opaque = {"driver": DRIVER, "parameters": dict(wish.parameters)}
        found["config"] = [{"requests": [TENANT], "opaque": opaque}]
    return {"devices": found}


def template(name: str, namespace: str, spec: Object) -> Object:
    """A claim template."""
    return {
        "apiVersion": TEMPLATES.api_version,
        "kind": TEMPLATES.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": spec},
    }


def claim(name: str, namespace: str, spec: Object) -> Object:
    """A claim that outlives the pods that use it."""
    return {
        "apiVersion": CLAIMS.api_version,
        "kind": CLAIMS.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def namespace(name: str) -> Object:
    """A namespace whose claims may ask for adminAccess."""
    label = {"resource.kubernetes.io/admin-access": "true"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": label}}


def agent_class() -> Object:
    """The class of the agent device, which is in none of the classes for tenants."""
    expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].agent == true'
    return {
        "apiVersion": CLASSES.api_version,
        "kind": CLASSES.kind,
        "metadata": {"name": AGENT_CLASS},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def pod(
    name: str,
    namespace: str,
    command: Sequence[str],
    *,
    image: str,
    source: Mapping[str, str],
    restart: str = "Never",
) -> Object:
    """A pod with one container and one claim.

    `source` is ``{"resourceClaimTemplateName": ...}`` or ``{"resourceClaimName": ...}``.
    """
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "hostNetwork": True,
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": 30,
            "automountServiceAccountToken": False,
            "resourceClaims": [{"name": TENANT, **source}],
            "containers": [
                {
                    "name": TENANT,
                    "image": image,
                    "imagePullPolicy": "Never",
                    "command": list(command),
                    "resources": {"claims": [{"name": TENANT}]},
                }
            ],
        },
    }


def claims_of(found: Object) -> list[Name]:
    """Names of the claims that were made for a pod, or that it names."""
    metadata, status = found["metadata"], found.get("status") or {}
    return [
        Name(one["resourceClaimName"], metadata["namespace"])
        for one in status.get("resourceClaimStatuses") or []
        if one.get("resourceClaimName")
    ]


def container(found: Object) -> Object:
    """The status of the pod's container, {} before it has one."""
    statuses = (found.get("status") or {}).get("containerStatuses") or []
    return dict(statuses[0]) if statuses else {}


def phase(found: Object) -> str:
    """The pod's phase."""
    return str((found.get("status") or {}).get("phase", ""))


def said(state: Object) -> list[str]:
    """The lines of the termination message of a container's `state` or `lastState`."""
    return str((state.get("terminated") or {}).get("message", "")).split()
