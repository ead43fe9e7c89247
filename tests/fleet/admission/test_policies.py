"""The rules as ValidatingAdmissionPolicies."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from fleet.admission.ground import GOVERNED_LABEL, Ground
from fleet.admission.policies import files, objects, policies
from fleet.kube.shapes import RESOURCE_VERSIONS, WORKLOADS, Object
from tests.fleet.admission import apiserver, corpus
from tests.fleet.admission.apiserver import Denial, Request

GROUND = Ground()
FILES = files(GROUND)
CASES = {case.name: case.document.value for case in corpus.cases()}
BAD_POD = CASES["pods-Pod-privileged"]
PLAIN_POD = CASES["good-Pod-pod"]


def denials(file: str, request: Request, ground: Ground = GROUND) -> list[Denial]:
    """What the policy of a file has against a request."""
    return apiserver.denials(list(files(ground)[file]), request)


def labelled(name: str, **labels: str) -> Object:
    """A namespace."""
    return {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name, **labels}}}


def test_every_policy_fails_closed_and_denies() -> None:
    """B20: an expression that cannot be evaluated denies; every policy has its binding."""
    for policy, binding in FILES.values():
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert policy["spec"]["matchConstraints"]["matchPolicy"] == "Equivalent"
        assert binding["spec"]["policyName"] == policy["metadata"]["name"]
        assert binding["spec"]["validationActions"] == ["Deny"]


def test_every_version_and_kind_is_matched() -> None:
    """B20: claims, templates and classes in all versions; each workload kind of the table."""
    for name in ("claims.yaml", "classes.yaml"):
        (rule,) = FILES[name][0]["spec"]["matchConstraints"]["resourceRules"]
        assert tuple(rule["apiVersions"]) == RESOURCE_VERSIONS
    matched = {
        (rule["apiGroups"][0], resource)
        for name in ("pods.yaml", "ray.yaml")
        for rule in FILES[name][0]["spec"]["matchConstraints"]["resourceRules"]
        for resource in rule["resources"]
    }
    kinds = {
        (group, Request({"kind": kind}).resource)
        for group in WORKLOADS
        for kind in WORKLOADS[group]
    }
    assert matched == kinds | {("", "pods/ephemeralcontainers")}


@pytest.mark.parametrize(
    ("namespace", "is_denied"),
    [
        (labelled("tenant-a", **{GOVERNED_LABEL: "true"}), True),
        (labelled("tenant-a", **{GOVERNED_LABEL: "false"}), False),
        (labelled("tenant-a"), False),
        (labelled("fleetscrub", **{GOVERNED_LABEL: "true"}), False),
        (labelled("kube-system", **{GOVERNED_LABEL: "true"}), False),
    ],
)
def test_policies_hold_in_governed_namespaces(namespace: Object, is_denied: bool) -> None:
    """A5: where the label says so, and never in our own namespace or the cluster's."""
    found = denials("pods.yaml", Request(BAD_POD, namespace=namespace))
    assert bool(found) == is_denied


def test_an_update_is_judged_by_what_it_changes() -> None:
    """B20: a harmless object changed into a forbidden one is denied; one from before the policies
    still gets its labels, and its finalizers off."""
    assert denials("pods.yaml", Request(BAD_POD, old=PLAIN_POD))
    assert not denials("pods.yaml", Request(BAD_POD, old={**BAD_POD, "metadata": {"name": "x"}}))
    going = {**BAD_POD, "metadata": {**BAD_POD["metadata"], "deletionTimestamp": "2026-01-01"}}
    assert not denials("pods.yaml", Request(going, old=PLAIN_POD))
    template = CASES["workloads-PodTemplate-shared-podtemplate"]
    good = CASES["good-PodTemplate-podtemplate"]
    assert denials("pods.yaml", Request(template, old=good))
    assert not denials("pods.yaml", Request(template, old=template))


def test_a_container_for_debugging_is_judged() -> None:
    """A5: it comes by a subresource of the pod."""
    debugged = CASES["pods-Pod-ephemeral"]
    request = Request(debugged, old=PLAIN_POD, subresource="ephemeralcontainers")
    assert [found.rule for found in denials("pods.yaml", request)] == ["A5-privileged"]


def test_a_container_for_debugging_a_pod_on_its_way_out_is_judged() -> None:
    """A5: a finalizer or a long grace period keeps the pod running after it was deleted."""
    debugged = CASES["pods-Pod-ephemeral"]
    going = {**debugged, "metadata": {**debugged["metadata"], "deletionTimestamp": "2026-01-01"}}
    request = Request(going, old=PLAIN_POD, subresource="ephemeralcontainers")
    assert [found.rule for found in denials("pods.yaml", request)] == ["A5-privileged"]


def test_a_denial_names_the_culprit_and_what_to_write() -> None:
    """B20: container, volume or request; the rule; the remedy with the cluster's own values."""
    ground = replace(Ground.of_driver("gpu.acme.example"), wipe_budget_s=90)
    (found,) = denials(
        "pods.yaml",
        Request(
            CASES["pods-Pod-host-path-1"],
        ),
        GROUND,
    )
    assert found.message.startswith("A5-host-path: volume host: mounts a path of the host")
    (found,) = denials("pods.yaml", Request(PLAIN_POD), ground)
    assert found.message.endswith("set terminationGracePeriodSeconds to 90 or more")
    (found,) = denials("claims.yaml", Request(CASES["versions-ResourceClaimTemplate-tolerates-v1"]))
    assert "request gpu: tolerates" in found.message
    assert "that is not gpu.fleetscrub.dev's" in found.message


def test_the_clusters_values_are_where_the_chart_finds_them() -> None:
    """C2 D1: each value a cluster may change is one expression that ends with the value's name."""
    marks = {
        match[1]
        for objects_ in FILES.values()
        for variable in objects_[0]["spec"]["variables"]
        if (match := re.search(r" // (\S+)$", variable["expression"]))
    }
    assert marks == {
        "admission.capabilities",
        "admission.classes",
        "admission.csiDrivers",
        "admission.extendedResources",
        "admission.hostPaths",
        "admission.otherClasses",
        "admission.requesters",
        "admission.spreadClasses",
        "admission.wipeBudgetSeconds",
        "deviceClasses.multiTenant.requireIommuGroup",
        "featureGates.DRAConsumableCapacity",
    }


def test_another_ground_is_judged_by_its_own_values() -> None:
    """C4 C3: classes that may be spread, and clusters that cannot share a device."""
    far = Request(CASES["claims-ResourceClaimTemplate-two-far"])
    spread = replace(GROUND, spread_classes=GROUND.classes)
    assert denials("claims.yaml", far)
    assert not denials("claims.yaml", far, spread)
    shared = Request(CASES["classes-DeviceClass-gpu.fleetscrub.dev-shared"])
    assert denials("classes.yaml", shared)
    assert not denials("classes.yaml", shared, replace(GROUND, consumable_capacity=False))


def test_messages_and_expressions_keep_to_the_servers_limits() -> None:
    """B20: no message of more than one line or 5 KiB; dyn() around every object, for the check of
    types."""
    for policy in policies():
        spec: Any = objects(policy, GROUND)[0]["spec"]
        for found in spec["validations"]:
            assert "\n" not in found["message"]
            assert len(found.get("messageExpression", "").encode()) < 5 * 1024
        for variable in spec["variables"]:
            text = variable["expression"].replace("dyn(object)", "")
            assert not re.search(r"\bobject\.(?!metadata)", text), variable["name"]
