"""The webhook's configuration as the chart renders it, and what may be in it at all (B65)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fleet.admission.ground import GOVERNED_LABEL
from fleet.kube.base import Object

NAME = "fleetscrub-admission"
RULE: Object = {
    "apiGroups": ["resource.k8s.io"],
    "apiVersions": ["v1", "v1beta2", "v1beta1"],
    "operations": ["CREATE", "UPDATE"],
    "resources": ["resourceclaims", "resourceclaimtemplates"],
    "scope": "Namespaced",
}


def configuration(client: Object, *, domain: str = "fleetscrub.dev") -> Object:
    """The configuration, asking by `client` (clientConfig)."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [
            {
                "name": f"claims.{domain}",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "matchPolicy": "Equivalent",
                "timeoutSeconds": 5,
                "rules": [RULE],
                "namespaceSelector": {
                    "matchExpressions": [
                        {"key": GOVERNED_LABEL, "operator": "In", "values": ["true"]},
                        {
                            "key": "kubernetes.io/metadata.name",
                            "operator": "NotIn",
                            "values": ["kube-system", "fleetscrub"],
                        },
                    ]
                },
                "matchConditions": [
                    {
                        "name": "new-or-changed",
                        "expression": "request.operation == 'CREATE'"
                        " || dyn(object).spec != dyn(oldObject).spec",
                    }
                ],
                "clientConfig": client,
            }
        ],
    }


def dangers(found: Object) -> Iterator[str]:
    """Why this configuration could take a cluster down with it; nothing: it cannot."""
    for webhook in found["webhooks"]:
        for rule in webhook["rules"]:
            for field, allowed in (
                ("apiGroups", {"resource.k8s.io"}),
                ("operations", {"CREATE", "UPDATE"}),
                ("resources", {"resourceclaims", "resourceclaimtemplates"}),
            ):
                if extra := set(rule[field]) - allowed:
                    yield f"{field} {sorted(extra)}"
        if webhook.get("timeoutSeconds", 10) > 5:
            yield "it may keep a request waiting for more than 5 s"
        if webhook.get("failurePolicy") != "Fail":
            yield "it lets everything through while it is away"
        yield from _selected(webhook)


def _selected(webhook: dict[str, Any]) -> Iterator[str]:
    terms = webhook.get("namespaceSelector", {}).get("matchExpressions", [])
    barred = {
        value
        for term in terms
        if (term["key"], term["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
        for value in term["values"]
    }
    if "kube-system" not in barred or len(barred) < 2:
        yield "kube-system and its own namespace wait for it"
    if not any(term["key"] == GOVERNED_LABEL for term in terms):
        yield "namespaces that nobody governs wait for it"
    if not any("oldObject" in one["expression"] for one in webhook.get("matchConditions", [])):
        yield "finalizers and labels wait for it"
