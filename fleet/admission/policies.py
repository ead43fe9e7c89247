"""The rules as ValidatingAdmissionPolicies: generated from the table, never written. Pure.

Decisions:

1. One policy lists every version of an API, and its expressions read each version's own shape; a
   version that is not listed is converted by the server to one that is (matchPolicy Equivalent).
   So no shape passes by being another one (B20).
2. Everything is ``dyn``: the server's type check knows opaque parameters, and CRDs that are not
   installed, as nothing, and would warn.
3. Only what is new or changes is judged: an object that was there before may still get its labels,
   its finalizers off, and be deleted.
4. A cluster's values are variables, first in the list, each one expression that ends with a
   comment: the name of the chart's value that replaces it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.admission import claims, classes, pods
from fleet.admission.ground import GOVERNED_LABEL, Ground, told
from fleet.admission.rule import Cel, Rule
from fleet.kube.shapes import (
    AUTOSCALERS,
    EACH,
    OWNERS,
    REPLICATED,
    RESOURCE_GROUP,
    RESOURCE_VERSIONS,
    WORKLOADS,
)

API_VERSION = "admissionregistration.k8s.io/v1"
_LABELS = {"app.kubernetes.io/name": "fleetscrub", "app.kubernetes.io/component": "admission"}
_RAY = "ray.io"
_RESOURCES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "": (
        ("v1",),
        ("pods", "pods/ephemeralcontainers", "podtemplates", "replicationcontrollers"),
    ),
    "apps": (("v1",), ("daemonsets", "deployments", "replicasets", "statefulsets")),
    "batch": (("v1",), ("cronjobs", "jobs")),
    _RAY: (("v1", "v1alpha1"), ("rayclusters", "raycronjobs", "rayjobs", "rayservices")),
}
"""By group: versions and resources whose objects make pods."""
_UNCHANGED = """request.operation == 'CREATE' || {changed}"""
_ALIVE = "!has(object.metadata.deletionTimestamp)"
_DEBUGGED = "has(request.subResource) && request.subResource == 'ephemeralcontainers'"
"""A pod that is held on its way out still runs, and what is added to it by then runs too."""


_MARKS: Mapping[str, str] = {
    "<driver>": "variables.driver",
    "<budget>": "string(variables.wipeBudget)",
    "<capabilities>": "variables.capabilities.join(', ')",
    "<host paths>": "variables.hostPaths.join(', ')",
    "<csi drivers>": "variables.csiDrivers.join(', ')",
}
"""CEL of the marks that stand in texts of the table for values of the cluster."""
_MARK = re.compile(f"({'|'.join(_MARKS)})")


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy and its binding, before they are objects."""

    name: str
    rules: tuple[Rule[Any], ...]
    resources: tuple[Mapping[str, Any], ...]
    changed: str
    """CEL: whether an update changes anything the rules look at."""
    variables: Mapping[str, str]
    namespaced: bool = True
    alive: str = _ALIVE
    """CEL: whether the object can still do anything."""


def policies() -> list[Policy]:
    """All policies, in the order of their files."""
    return [
        Policy(
            "fleetscrub-claims",
            claims.RULES,
            (
                _rule(
                    RESOURCE_GROUP, RESOURCE_VERSIONS, ("resourceclaims", "resourceclaimtemplates")
                ),
            ),
            "dyn(object).spec != dyn(oldObject).spec",
            _CLAIM_VARIABLES,
        ),
        _pod_policy("fleetscrub-pods", ("", "apps", "batch")),
        _pod_policy("fleetscrub-ray", (_RAY,)),
        Policy(
            "fleetscrub-classes",
            classes.RULES,
            (_rule(RESOURCE_GROUP, RESOURCE_VERSIONS, ("deviceclasses",)),),
            "dyn(object).spec != dyn(oldObject).spec",
            _CLASS_VARIABLES,
            namespaced=False,
        ),
    ]


def files(ground: Ground) -> Mapping[str, list[Mapping[str, Any]]]:
    """The objects of each generated file, by its name."""
    return {
        f"{policy.name.removeprefix('fleetscrub-')}.yaml": objects(policy, ground)
        for policy in policies()
    }


def objects(policy: Policy, ground: Ground) -> list[Mapping[str, Any]]:
    """A policy and the binding that puts it in force."""
    conditions = [
        {"name": "new-or-changed", "expression": _UNCHANGED.format(changed=policy.changed)},
        {"name": "not-on-its-way-out", "expression": policy.alive},
    ]
    validations = [_validation(rule, rule.cel, ground) for rule in policy.rules if rule.cel]
    variables = [*_used(_values(ground), policy, validations), *policy.variables.items()]
    found = {
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": policy.name, "labels": dict(_LABELS)},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "resourceRules": list(policy.resources),
            },
            "matchConditions": conditions,
            "variables": [{"name": name, "expression": text} for name, text in variables],
            "validations": validations,
        },
    }
    return [found, _binding(policy, ground)]


def _used(
    values: Mapping[str, str], policy: Policy, validations: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """The values that any expression of the policy asks for."""
    text = " ".join((*policy.variables.values(), *(str(found) for found in validations)))
    return ((name, value) for name, value in values.items() if f"variables.{name}" in text)


def _binding(policy: Policy, ground: Ground) -> Mapping[str, Any]:
    spec: dict[str, Any] = {"policyName": policy.name, "validationActions": ["Deny"]}
    if policy.namespaced:
        own = {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": list(ground.own_namespaces),
        }
        selector = {"matchLabels": {GOVERNED_LABEL: "true"}, "matchExpressions": [own]}
        spec["matchResources"] = {"namespaceSelector": selector}
    return {
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": policy.name, "labels": dict(_LABELS)},
        "spec": spec,
    }


def _validation(rule: Rule[Any], cel: Cel, ground: Ground) -> Mapping[str, Any]:
    text = f"{rule.says} — {rule.remedy}"
    holds = cel.holds
    if rule.spares_requesters:
        holds = f"request.userInfo.username in variables.requesters\n|| {holds}"
    found = {
        "expression": holds,
        "reason": "Invalid",
        "message": f"{rule.id}: {told(text, ground)}",
    }
    if cel.culprit:
        found["messageExpression"] = f"'{rule.id}: ' + {cel.culprit} + {_spoken(f': {text}')}"
    elif _spoken(text) != _literal(text):
        found["messageExpression"] = f"'{rule.id}: ' + {_spoken(text)}"
    return found


def _spoken(text: str) -> str:
    """A text of the table as CEL, with the cluster's values in it."""
    parts = []
    for piece in _MARK.split(text):
        if piece in _MARKS:
            parts.append(_MARKS[piece])
        elif piece:
            parts.append(_literal(piece))
    return " + ".join(parts)


def _literal(text: str) -> str:
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{quoted}'"


def _texts(values: Iterable[str]) -> str:
    return json.dumps(list(values))  # is CEL as well, and what the chart's toJson writes


def _values(ground: Ground) -> Mapping[str, str]:
    """A cluster's own values as variables; each names the chart's value it is."""
    return {
        "driver": _literal(ground.driver),
        "classes": f"{_texts(ground.classes)} // admission.classes",
        "agentClasses": _texts(ground.agent_classes),
        "spreadClasses": f"{_texts(ground.spread_classes)} // admission.spreadClasses",
        "requesters": f"{_texts(ground.requesters)} // admission.requesters",
        "otherClasses": f"{_texts(ground.other_classes)} // admission.otherClasses",
        "capabilities": f"{_texts(ground.capabilities)} // admission.capabilities",
        "extendedResources": f"{_texts(ground.extended_resources)} // admission.extendedResources",
        "hostPaths": f"{_texts(ground.host_paths)} // admission.hostPaths",
        "csiDrivers": f"{_texts(ground.csi_drivers)} // admission.csiDrivers",
        "wipeBudget": f"{ground.wipe_budget_s} // admission.wipeBudgetSeconds",
        "consumableCapacity": f"{_truth(ground.consumable_capacity)}"
        " // featureGates.DRAConsumableCapacity",
        "iommuRequired": f"{_truth(ground.iommu_required)}"
        " // deviceClasses.multiTenant.requireIommuGroup",
    }


def _truth(value: object) -> str:
    return "true" if value else "false"


def _rule(group: str, versions: Sequence[str], resources: Sequence[str]) -> Mapping[str, Any]:
    return {
        "apiGroups": [group],
        "apiVersions": list(versions),
        "operations": ["CREATE", "UPDATE"],
        "resources": list(resources),
    }


def _marks(of: str) -> str:
    """CEL: the names by which an object is marked, in a list."""
    at = f"{of}.metadata"
    names = [f"(has({at}.finalizers) ? {at}.finalizers : [])"]
    names += [
        f"(has({at}.{field}) ? {at}.{field}.map(k, k) : [])" for field in ("annotations", "labels")
    ]
    return f"(has({at}) ? {' + '.join(names)} : [])"


_CLAIM_VARIABLES: Mapping[str, str] = {
    "devices": """dyn(object).kind == 'ResourceClaimTemplate'
  ? (has(dyn(object).spec.spec) && has(dyn(object).spec.spec.devices)
    ? dyn(object).spec.spec.devices : dyn({}))
  : (has(dyn(object).spec.devices) ? dyn(object).spec.devices : dyn({}))""",
    "requests": "has(variables.devices.requests) ? variables.devices.requests : dyn([])",
    "wishes": """variables.requests.map(r,
  has(r.firstAvailable) ? r.firstAvailable : has(r.exactly) ? [r.exactly] : [r])""",
    "entries": """(has(variables.devices.config) ? variables.devices.config : dyn([]))
  .filter(e, has(e.opaque) && e.opaque.driver == variables.driver)""",
    "marks": f"""request.operation != 'CREATE' ? []
  : {_marks("dyn(object)")}
    + (dyn(object).kind == 'ResourceClaimTemplate' ? {_marks("dyn(object).spec")} : [])""",
}
_CLASS_VARIABLES: Mapping[str, str] = {
    "name": "dyn(object).metadata.name",
    "selectors": """(has(dyn(object).spec.selectors) ? dyn(object).spec.selectors : dyn([]))
  .filter(s, has(s.cel))""",
    "entries": """(has(dyn(object).spec.config) ? dyn(object).spec.config : dyn([]))
  .filter(e, has(e.opaque) && e.opaque.driver == variables.driver)""",
    "speaks": """size(variables.entries) > 0 || variables.selectors.exists(s,
  s.cel.expression.contains(variables.driver))""",
    "open": f"""!variables.selectors.exists(s,
  s.cel.expression.matches(r'''{classes.NARROW}'''))""",
    "strict": """variables.entries.exists(e, has(e.opaque.parameters.profile)
  && e.opaque.parameters.profile == 'strict')""",
    "ours": "variables.name in variables.classes || variables.speaks",
}
_OWNER = f"""has(o.controller) && o.controller && o.kind in {json.dumps(list(OWNERS))}"""
_POD_VARIABLES: Mapping[str, str] = {
    "containers": """variables.pods.map(p,
  (has(p.spec.containers) ? p.spec.containers : [])
  + (has(p.spec.initContainers) ? p.spec.initContainers : [])
  + (has(p.spec.ephemeralContainers) ? p.spec.ephemeralContainers : []))""",
    "shared": f"""dyn(object).kind == 'Pod'
  ? has(object.metadata.ownerReferences) && size(object.metadata.ownerReferences) > 0
    && !object.metadata.ownerReferences.exists(o, {_OWNER})
: dyn(object).kind in {json.dumps(list(REPLICATED))}
  ? has(dyn(object).spec.replicas) && dyn(object).spec.replicas > 1
: true""",
    "stored": "dyn(object).kind == 'Pod' && request.operation != 'CREATE'",
}


def _pod_policy(name: str, groups: Sequence[str]) -> Policy:
    kinds = {kind: found for group in groups for kind, found in WORKLOADS[group].items()}
    changed = "dyn(object).spec != dyn(oldObject).spec"
    if "PodTemplate" in kinds:
        changed = (
            "(dyn(object).kind == 'PodTemplate'\n"
            "  ? dyn(object).template != dyn(oldObject).template\n"
            f"  : {changed})"
        )
    return Policy(
        name,
        pods.RULES,
        tuple(_rule(group, *_RESOURCES[group]) for group in groups),
        changed,
        {"pods": _templates(kinds), **_POD_VARIABLES},
        alive=f"{_ALIVE}\n|| ({_DEBUGGED})" if "Pod" in kinds else _ALIVE,
    )


def _templates(kinds: Mapping[str, Sequence[Sequence[str]]]) -> str:
    """The list of an object's pods or templates of pods, whatever its kind."""
    same: dict[str, list[str]] = {}
    for kind, patterns in kinds.items():
        found = [_reached("dyn(object)", [*pattern, "spec"], 1) for pattern in patterns]
        if kind in AUTOSCALERS:
            found.append(_only_container("dyn(object)", AUTOSCALERS[kind]))
        same.setdefault("\n    + ".join(found), []).append(kind)
    rows = [f"dyn(object).kind in {_texts(found)}\n  ? {text}" for text, found in same.items()]
    return "\n: ".join([*rows, "dyn([])"])


def _only_container(root: str, steps: Sequence[str]) -> str:
    """A list of a pod with the container at the end of the steps and nothing besides."""
    pod = f"dyn({{'spec': {{'containers': [{'.'.join([root, *steps])}]}}}})"
    return f"({_guards(root, steps)} ? [{pod}] : [])"


def _reached(root: str, steps: Sequence[str], short: int = 0) -> str:
    """A list of what is so many steps before the end, empty where any step is missing."""
    kept = len(steps) - short
    if EACH in steps:
        at = steps.index(EACH)
        path = ".".join([root, *steps[:at]])
        inner = _guards("g", steps[at + 1 :])
        last = ".".join(["g", *steps[at + 1 : kept]])
        found = f"{path}.filter(g, {inner}).map(g, {last})"
        return f"({_guards(root, steps[:at])} ? {found} : [])"
    return f"({_guards(root, steps)} ? [{'.'.join([root, *steps[:kept]])}] : [])"


def _guards(root: str, steps: Sequence[str]) -> str:
    return " && ".join(
        f"has({'.'.join([root, *steps[:count]])})" for count in range(1, len(steps) + 1)
    )
