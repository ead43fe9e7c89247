"""What one object of the chart says of another is true."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.kube.base import Object
from node_plugin.__main__ import GRACE_S
from node_plugin.children import Child
from tests.deploy.chart import rendering
from tests.deploy.chart.rendering import VARIANTS, Values, containers, pods

pytestmark = pytest.mark.chart
ALL = pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
RAY_DRAINS_S = 30.0
"""How long, s, `ray start --block` waits for its work after SIGTERM."""
GIVEN = {"registry", "redis", "token", "tag-keys"}
"""Names of objects that the variants say exist already."""
SELECTING = ("DaemonSet", "Deployment", "StatefulSet")


def named(found: list[Object], kind: str) -> set[str]:
    return {one["metadata"]["name"] for one in found if one["kind"] == kind}


def matches(selector: Object, labels: dict[str, str]) -> bool:
    """A label selector, as the API reads it."""
    terms = selector.get("matchExpressions", ())
    assert all(term["operator"] == "In" for term in terms)
    return all(
        labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()
    ) and all(labels.get(term["key"]) in term["values"] for term in terms)


def selectors(found: list[Object]) -> Iterator[tuple[str, Object]]:
    """Every selector over pods, but those of workloads."""
    for one in found:
        name, spec = f"{one['kind']}/{one['metadata']['name']}", one.get("spec", {})
        if one["kind"] == "Service":
            yield name, {"matchLabels": spec["selector"]}
        elif one["kind"] in ("PodDisruptionBudget", "PodMonitor"):
            yield name, spec["selector"]
        elif one["kind"] == "NetworkPolicy":
            yield name, spec["podSelector"]
            for rule in spec["ingress"]:
                for peer in rule.get("from", ()):
                    if "podSelector" in peer:
                        yield f"{name} from", peer["podSelector"]


@ALL
def test_every_selector_finds_its_pods(values: Values) -> None:
    """A selector that matches nothing guards, scrapes or serves nothing, without a word."""
    found = rendering.objects(values)
    labels = {name: template["metadata"]["labels"] for name, template in pods(found)}
    for one in found:
        if one["kind"] in SELECTING:
            own = f"{one['kind']}/{one['metadata']['name']}"
            hit = [name for name, has in labels.items() if matches(one["spec"]["selector"], has)]
            assert hit == [own]
    for name, selector in selectors(found):
        assert any(matches(selector, has) for has in labels.values()), name


@ALL
def test_every_object_named_is_there(values: Values) -> None:
    """Accounts, settings, secrets, volumes and claim templates are rendered, or named in values."""
    found = rendering.objects(values)
    for name, template in pods(found):
        spec = template["spec"]
        assert spec["serviceAccountName"] in named(found, "ServiceAccount"), name
        for volume in spec.get("volumes", ()):
            for kind, key, field in (
                ("ConfigMap", "configMap", "name"),
                ("Secret", "secret", "secretName"),
                ("PersistentVolumeClaim", "persistentVolumeClaim", "claimName"),
            ):
                if key in volume:
                    assert volume[key][field] in named(found, kind) | GIVEN, f"{name} {volume}"
        for claim in spec.get("resourceClaims", ()):
            templates = named(found, "ResourceClaimTemplate")
            assert claim["resourceClaimTemplateName"] in templates, name
        for secret in spec.get("imagePullSecrets", ()):
            assert secret["name"] in GIVEN


@ALL
def test_every_mount_variable_and_port_is_there(values: Values) -> None:
    """Inside a pod: volumes that exist, probes of ports that exist, one volume a path."""
    for name, template in pods(rendering.objects(values)):
        volumes = {one["name"] for one in template["spec"].get("volumes", ())}
        for container in containers(template):
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(paths) == len(set(paths)), name
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes, name
            variables = [one["name"] for one in container.get("env", ())]
            assert len(variables) == len(set(variables)), f"{name}: {variables}"
            ports = {port["name"] for port in container.get("ports", ())}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                port = container.get(probe, {}).get("httpGet", {}).get("port")
                assert port is None or isinstance(port, int) or port in ports, name


@ALL
def test_every_role_bound_is_there(values: Values) -> None:
    """A binding to nothing grants nothing, and to a missing account neither."""
    found = rendering.objects(values)
    for one in found:
        if one["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        assert one["roleRef"]["name"] in named(found, one["roleRef"]["kind"])
        for subject in one["subjects"]:
            assert subject["name"] in named(found, "ServiceAccount")
            assert subject["namespace"] == rendering.NAMESPACE


def test_monitors_scrape_ports_that_are_named() -> None:
    """E4: each endpoint's port is one of the pods it selects."""
    found = rendering.objects(rendering.EVERYTHING)
    monitors = [one for one in found if one["kind"] == "PodMonitor"]
    assert len(monitors) == 3
    for monitor in monitors:
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        ports = {
            port["name"]
            for _, template in pods(found)
            if matches(monitor["spec"]["selector"], template["metadata"]["labels"])
            for container in containers(template)
            for port in container.get("ports", ())
        }
        assert endpoint["port"] in ports


def test_classes_ask_for_what_the_plugin_publishes() -> None:
    """C3, C4: the multi-tenant class wants strict, exclusive devices in an IOMMU group."""
    for version in ("v1", "v1beta2", "v1beta1"):
        made = rendering.one(
            "DeviceClass", "gpu-multi-tenant.fleetscrub.dev", {"resourceApiVersion": version}
        )
        assert made["apiVersion"] == f"resource.k8s.io/{version}"
        told = [one["cel"]["expression"] for one in made["spec"]["selectors"]]
        assert told == [
            'device.driver == "gpu.fleetscrub.dev"',
            'device.attributes["gpu.fleetscrub.dev"].agent == false',
            "device.allowMultipleAllocations != true",
            'device.attributes["gpu.fleetscrub.dev"].sanitizationProfile == "strict"',
            'device.attributes["gpu.fleetscrub.dev"].iommuGroup >= 0',
        ]


def test_another_api_version_has_another_shape() -> None:
    """B20: v1beta1 has no `exactly`; the later ones have nothing else."""
    flat = rendering.one(
        "ResourceClaimTemplate", "fleetscrub-agent", {"resourceApiVersion": "v1beta1"}
    )
    (request,) = flat["spec"]["spec"]["devices"]["requests"]
    assert request == {
        "name": "agent",
        "deviceClassName": "agent.gpu.fleetscrub.dev",
        "allocationMode": "ExactCount",
        "count": 1,
    }


def test_the_store_is_made_once_and_never_in_passing() -> None:
    """An update that made a lost store anew would make a second owner of every device; a Job that
    belonged to the release would be deleted by an update, and made again by a rollback."""
    found = rendering.one("Job", "fleetscrub-store")["metadata"]["annotations"]
    assert found == {
        "helm.sh/hook": "post-install",
        "helm.sh/hook-delete-policy": "before-hook-creation",
    }
    none = rendering.objects({"storeJob": {"enabled": False}})
    assert "Job/fleetscrub-store" not in dict(pods(none))


def test_uninstall_runs_before_anything_is_deleted() -> None:
    """E7: a hook, so that a failure keeps the release."""
    hook = rendering.one("Job", "fleetscrub-uninstall")
    assert hook["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    hooked = [
        one["metadata"]["name"]
        for one in rendering.objects()
        if "helm.sh/hook" in one["metadata"].get("annotations", {})
    ]
    assert sorted(hooked) == ["fleetscrub-store", "fleetscrub-uninstall"]


def test_the_worker_ends_before_the_plugin_does() -> None:
    """E7: the worker's claim of the agent device is taken back by the plugin: one that had gone
    first, when both are deleted, would leave the worker's pods ending for ever."""
    plugin = rendering.one("DaemonSet", "fleetscrub-node-plugin")["spec"]["template"]["spec"]
    (container,) = plugin["containers"]
    last_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert last_s > RAY_DRAINS_S
    farewell_s = 3 * Child("any", ()).farewell_s
    assert plugin["terminationGracePeriodSeconds"] > last_s + GRACE_S + farewell_s
