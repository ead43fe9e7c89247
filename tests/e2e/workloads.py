"""Pods and claims of the suite as JSON, and the little programs its containers run.

A container says what it found in its termination message: the API keeps it, so that no log has to
be fetched from a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleet.kube.base import CLAIMS, Object, Resource
from tests.e2e.plugin_process import DRIVER

TEMPLATES = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True
)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", namespaced=True)
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


def claim_spec(*, uuid: str = "", tolerated: Sequence[str] = ()) -> Object:
    """One device of ours: any, or the one of `uuid`; taints of these keys are tolerated."""
    exactly: dict[str, Any] = {
        "deviceClassName": DRIVER,
        "allocationMode": "ExactCount",
        "count": 1,
    }
    if uuid:
        expression = f'device.attributes["{DRIVER}"].uuid == "{uuid}"'
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    if tolerated:
        exactly["tolerations"] = [
            {"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in tolerated
        ]
    return {"devices": {"requests": [{"name": TENANT, "exactly": exactly}]}}


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


def device_class() -> Object:
    """The class of all devices of the driver."""
    expression = f'device.driver == "{DRIVER}" && device.allowMultipleAllocations != true'
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
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
