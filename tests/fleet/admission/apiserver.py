"""The policies evaluated as the API server would: what a request is judged by, and the verdict.

Matching (resource rules, namespace selector, conditions), variables in their order, validations,
messages. What the library lacks of the server's CEL is ``dyn``, which only concerns its type check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import cel

from fleet.admission.rules import settled

Object = Mapping[str, Any]
GOVERNED: Object = {
    "metadata": {
        "name": "tenant-a",
        "labels": {"fleetscrub.dev/governed": "true", "kubernetes.io/metadata.name": "tenant-a"},
    }
}
TENANT = "user-1"
PLURALS = {
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "DeviceClass": "deviceclasses",
    "RayCluster": "rayclusters",
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "dyn": lambda value: value,
    "join": lambda found, by: by.join(found),
}


@dataclass(frozen=True)
class Request:
    """What the API server is asked to store."""

    object: Object
    old: Object | None = None
    username: str = TENANT
    namespace: Object = field(default_factory=lambda: GOVERNED)
    subresource: str = ""

    @property
    def resource(self) -> str:
        """Plural name, with the subresource."""
        plural = PLURALS.get(self.object["kind"], self.object["kind"].lower() + "s")
        return f"{plural}/{self.subresource}" if self.subresource else plural

    @property
    def context(self) -> dict[str, Any]:
        """What expressions see."""
        return {
            "object": settled(self.object),
            "oldObject": None if self.old is None else settled(self.old),
            "request": {
                "operation": "CREATE" if self.old is None else "UPDATE",
                **({"subResource": self.subresource} if self.subresource else {}),
                "userInfo": {"username": self.username, "groups": ["system:authenticated"]},
            },
            "namespaceObject": self.namespace,
            "params": None,
        }


@dataclass(frozen=True)
class Denial:
    """One validation that did not hold."""

    rule: str
    message: str


@cache
def _compiled(expression: str) -> cel.Program:
    return cel.compile(expression)


def evaluate(expression: str, context: Object) -> Any:
    """The value of an expression."""
    return _compiled(expression).execute(cel.Context(dict(context), dict(_FUNCTIONS)))


def denials(objects: list[Object], request: Request) -> list[Denial]:
    """What a policy with its binding has against a request; [] too where it does not match."""
    policy, binding = objects
    spec = policy["spec"]
    if not _is_matched(spec["matchConstraints"], binding["spec"], request):
        return []
    context = request.context
    if not all(evaluate(one["expression"], context) for one in spec.get("matchConditions", ())):
        return []
    variables: dict[str, Any] = {}
    for one in spec["variables"]:
        variables[one["name"]] = evaluate(one["expression"], {**context, "variables": variables})
    return list(_failed(spec["validations"], {**context, "variables": variables}))


def _failed(validations: list[Object], context: Object) -> Iterator[Denial]:
    for one in validations:
        if evaluate(one["expression"], context) is True:
            continue
        text = one["message"]
        if "messageExpression" in one:
            text = evaluate(one["messageExpression"], context)
        yield Denial(one["message"].partition(":")[0], text)


def _is_matched(constraints: Object, binding: Object, request: Request) -> bool:
    group, _, version = request.object["apiVersion"].rpartition("/")
    asked = any(
        group in rule["apiGroups"]
        and version in rule["apiVersions"]
        and request.resource in rule["resources"]
        and request.context["request"]["operation"] in rule["operations"]
        for rule in constraints["resourceRules"]
    )
    selector = binding.get("matchResources", {}).get("namespaceSelector", {})
    labels = request.namespace["metadata"]["labels"]
    return (
        asked
        and all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
        and not any(
            labels.get(one["key"]) in one["values"] for one in selector.get("matchExpressions", ())
        )
    )
