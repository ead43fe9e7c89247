"""The device classes and the example say what the plugin publishes and accepts."""

from __future__ import annotations

import re

import pytest
import yaml  # type: ignore[import-untyped] # ships no types

from fleet.core.messages import DeviceView
from fleet.core.profiles import RULES, Profile
from fleet.core.settings import KubernetesSettings, WipePolicy
from fleet.kube.base import CLAIMS, CLASSES, PODS, Object
from fleet.plugin.configuration import Entry, Origin, demand
from fleet.plugin.slices.device_attributes import Terms, agent_device, render
from tests.deploy.manifests import FILES, ROOT, of_kind
from tests.lab.apiserver.cluster import MemoryCluster

DRIVER = KubernetesSettings().driver
TERMS = Terms(DRIVER, "node-1", Profile.STRICT)
VIEW = DeviceView(
    uuid="u", name="gpu-0", accelerator="u", units=("u/0",), memory_bytes=1, state="CLEAN"
)


def expressions(found: Object) -> str:
    return " && ".join(selector["cel"]["expression"] for selector in found["spec"]["selectors"])


def classes() -> dict[str, Object]:
    return {found["metadata"]["name"]: found for found in of_kind("DeviceClass")}


def parameters(found: Object) -> list[Object]:
    return [entry["opaque"]["parameters"] for entry in found.get("config", ())]


def test_every_file_is_read_by_somebody() -> None:
    """All manifests parse, and each has objects that say what they are."""
    assert [path.name for path in FILES] == [
        "accounts.yaml",
        "claim-bind.yaml",
        "classes.yaml",
        "coordinator.yaml",
        "example-pod.yaml",
        "rbac.yaml",
    ]
    for path in FILES:
        for found in yaml.safe_load_all(path.read_text()):
            assert found["apiVersion"]
            assert found["metadata"]["name"]


@pytest.mark.parametrize("name", [DRIVER, f"gpu-multi-tenant.{DRIVER.partition('.')[2]}"])
def test_a_class_selects_by_what_is_published(name: str) -> None:
    """C3: a selector that named a missing attribute would abort scheduling, not fail to match."""
    told = expressions(classes()[name])
    named = set(re.findall(r'device\.attributes\["([^"]+)"\]\.(\w+)', told))
    published = render(VIEW, "gpu-0", taints=(), terms=TERMS)["attributes"]
    assert named
    assert {domain for domain, _ in named} == {DRIVER}
    assert {attribute for _, attribute in named} <= published.keys()
    assert {attribute for _, attribute in named} <= agent_device(TERMS, simulated=False)[
        "attributes"
    ].keys()
    assert f'device.driver == "{DRIVER}"' in told
    assert "device.allowMultipleAllocations != true" in told
    assert f'device.attributes["{DRIVER}"].agent == false' in told


def test_the_multi_tenant_class_demands_strict() -> None:
    """DESIGN 5: devices of strict nodes only, and a wipe under the claim's own token."""
    (tenants,) = [found for name, found in classes().items() if "multi-tenant" in name]
    assert f'.sanitizationProfile == "{Profile.STRICT}"' in expressions(tenants)
    assert RULES[Profile.STRICT].binding_conditions
    (wish,) = parameters(tenants["spec"])
    entry = Entry("class", Origin.CLASS, (), wish)
    assert demand([entry], ["gpu"], policy=WipePolicy()).fresh


def test_the_example_is_accepted() -> None:
    """The example's claim, pod and configuration are what API and plugin take."""
    (template,), (pod,) = of_kind("ResourceClaimTemplate"), of_kind("Pod")
    spec = template["spec"]["spec"]
    cluster = MemoryCluster()
    for found in classes().values():
        cluster.create(CLASSES, found)
    cluster.create(PODS, pod)
    claim = {
        "apiVersion": CLAIMS.api_version,
        "kind": CLAIMS.kind,
        "metadata": {"name": "made", "namespace": "default"},
        "spec": spec,
    }
    cluster.create(CLAIMS, claim)
    (request,) = spec["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] in classes()
    (wish,) = parameters(spec["devices"])
    entry = Entry("claim", Origin.CLAIM, (request["name"],), wish)
    demand([entry], [request["name"]], policy=WipePolicy())
    (named,) = pod["spec"]["resourceClaims"]
    assert named["resourceClaimTemplateName"] == template["metadata"]["name"]
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["claims"] == [{"name": named["name"], "request": request["name"]}]


def test_the_example_keeps_to_the_rules_for_pods() -> None:
    """A5, D1: no privilege, no host path, and a grace period with room for a wipe."""
    (pod,) = of_kind("Pod")
    assert pod["spec"]["terminationGracePeriodSeconds"] >= KubernetesSettings().budget_s
    text = (ROOT / "kubernetes" / "example-pod.yaml").read_text()
    assert not re.search("privileged|hostPath|hostPID|hostNetwork|capabilities", text)
