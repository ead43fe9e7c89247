"""The rules of admission, as the chart installs them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped] # ships no types

from fleet.kube.base import Object
from tests.deploy.chart import rendering
from tests.deploy.chart.rendering import CHART, NAMESPACE, Values

pytestmark = pytest.mark.chart
GENERATED = sorted((CHART / "policies").glob("*.yaml"))


def generated() -> dict[tuple[str, str], Object]:
    return named([one for path in GENERATED for one in yaml.safe_load_all(path.read_text())])


def named(found: list[Object]) -> dict[tuple[str, str], Object]:
    """By kind and name, without labels."""
    for one in found:
        one["metadata"].pop("labels", None)
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def installed(values: Values | None = None, **where: Any) -> dict[tuple[str, str], Object]:
    return {
        key: one for key, one in named(rendering.objects(values, **where)).items()
        if key in generated()
    }  # fmt: skip


def test_with_default_values_they_are_what_was_generated() -> None:
    """C1 to C5, D1, D2, F: the chart changes no rule on its way into the cluster."""
    assert generated()
    assert installed() == generated()


@pytest.mark.parametrize("name", ["governed", "admin-access", "pod-security"])
def test_a_namespace_stays_governed_with_the_rest_of_the_rules(name: str) -> None:
    """C1 to C5, F60, F68: the policies for labels of namespaces come and go with admission."""
    path = CHART / "namespaces" / f"{name}.yaml"
    wanted = named(list(yaml.safe_load_all(path.read_text())))
    found = named(rendering.objects())
    assert {key: found[key] for key in wanted} == wanted
    off = named(rendering.objects({"admission": {"enabled": False}}))
    assert not wanted.keys() & off.keys()


def test_values_fill_the_places_that_are_meant_for_them() -> None:
    """Classes, accounts and the wipe budget of this cluster, and nothing else."""
    given = {
        "classes": ["a.example.com"],
        "spreadClasses": ["b.example.com"],
        "requesters": ["system:serviceaccount:x:y"],
        "wipeBudgetSeconds": 240,
        "otherClasses": ["mig.example.com"],
        "capabilities": ["CHOWN"],
        "extendedResources": ["example.com/nic"],
        "hostPaths": [],
        "csiDrivers": ["csi.example.com"],
    }
    wanted = {
        "classes": '["a.example.com"] // admission.classes',
        "spreadClasses": '["b.example.com"] // admission.spreadClasses',
        "requesters": '["system:serviceaccount:x:y"] // admission.requesters',
        "wipeBudget": "240 // admission.wipeBudgetSeconds",
        "otherClasses": '["mig.example.com"] // admission.otherClasses',
        "capabilities": '["CHOWN"] // admission.capabilities',
        "extendedResources": '["example.com/nic"] // admission.extendedResources',
        "hostPaths": "[] // admission.hostPaths",
        "csiDrivers": '["csi.example.com"] // admission.csiDrivers',
    }
    found = installed({"admission": given})
    seen = set()
    for key, policy in found.items():
        earlier = generated()[key]["spec"].get("variables", [])
        for before, after in zip(earlier, policy["spec"].get("variables", []), strict=True):
            changed = wanted.get(after["name"], before["expression"])
            assert after["expression"] == changed, key
            seen |= {after["name"]}
    assert set(wanted) <= seen
    text = "\n".join(path.read_text() for path in GENERATED)
    marks = set(re.findall(r"// admission\.(\w+)", text))
    assert marks == set(given)


def test_gates_of_the_cluster_are_told_to_the_rules() -> None:
    """Without consumable capacity no device can be allocated twice: nothing is asked about it."""
    found = installed({"featureGates": {"DRAConsumableCapacity": False}})
    told = {
        variable["expression"]
        for policy in found.values()
        for variable in policy["spec"].get("variables", ())
        if variable["name"] == "consumableCapacity"
    }
    assert told == {"false // featureGates.DRAConsumableCapacity"}


def test_our_own_namespace_and_kube_system_are_never_asked_about() -> None:
    """B65: no rule of ours can keep us, or the cluster's own parts, from starting."""
    where = "elsewhere"
    bindings = [
        one
        for (kind, _), one in installed(namespace=where).items()
        if kind == "ValidatingAdmissionPolicyBinding"
    ]
    bound = [one["spec"].get("matchResources", {}).get("namespaceSelector") for one in bindings]
    told = [selector for selector in bound if selector]
    assert told
    for selector in told:
        assert selector["matchLabels"] == {"fleetscrub.dev/governed": "true"}
        (expression,) = selector["matchExpressions"]
        assert sorted(expression["values"]) == sorted([where, "kube-system"])
    assert where != NAMESPACE


def test_they_can_be_left_out() -> None:
    """admission.enabled: false installs none of them."""
    assert installed({"admission": {"enabled": False}}) == {}


SPELLING = sorted((CHART / "spelling").glob("*.yaml"))


@pytest.mark.parametrize("asked", ["auto", True, False])
def test_f61_parameters_are_spelled_where_the_cluster_can(asked: object) -> None:
    """F61: the policy that spells opaque parameters the server's way is installed for the chart's
    driver where it is asked for; by default where the cluster serves such policies."""
    text = "".join(path.read_text() for path in SPELLING)
    wanted = named(list(yaml.safe_load_all(text)))
    assert wanted
    assert "gpu.fleetscrub.dev" in text
    found = named(rendering.objects({"spelling": {"enabled": asked}}))
    if asked is not False and (asked is True or wanted.keys() & found.keys()):
        assert {key: found[key] for key in wanted} == wanted
    else:
        assert not wanted.keys() & found.keys()
    driver = {"name": "gpu.example.com"}
    other = named(rendering.objects({"spelling": {"enabled": True}, "driver": driver}))
    for key in wanted:
        assert "gpu.fleetscrub.dev" not in str(other[key])
