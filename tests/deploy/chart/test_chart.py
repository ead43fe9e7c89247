"""The chart: it renders in every way it can be asked for, and refuses what is a mistake."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped] # ships no types

from tests.deploy.chart import rendering, strict, values_schema
from tests.deploy.chart.rendering import CHART, EVERYTHING, VARIANTS, Values
from tests.deploy.manifests import ROOT

pytestmark = pytest.mark.chart
ALL = pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)


def refused(values: Values, **where: Any) -> str:
    """Why Helm does not render this."""
    with pytest.raises(rendering.engine().HelmError) as told:
        rendering.files(values, **where)
    return str(told.value)


@ALL
def test_every_object_has_only_fields_that_the_api_knows(values: Values) -> None:
    """A field that the API server does not know would be dropped in silence."""
    found = rendering.objects(values)
    assert [problem for each in found for problem in strict.problems(each)] == []
    names = Counter(
        (
            each["apiVersion"],
            each["kind"],
            each["metadata"].get("namespace"),
            each["metadata"]["name"],
        )
        for each in found
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_a_wrong_field_is_found_at_every_depth() -> None:
    """The check itself: unknown field, wrong type, missing field, also inside foreign kinds."""
    plugin = rendering.one("DaemonSet", "fleetscrub-node-plugin")
    pod = plugin["spec"]["template"]["spec"]
    pod["containers"][0]["readinesProbe"] = {}
    pod["hostPID"] = "yes"
    del pod["containers"][0]["name"]
    told = strict.problems(plugin)
    assert [problem.partition(": ")[0].rpartition(".")[2] for problem in told] == [
        "readinesProbe",
        "name",
        "hostPID",
    ]
    cluster = rendering.one("RayCluster", "fleetscrub", VARIANTS["kuberay"])
    cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["imagePulPolicy"] = "x"
    cluster["spec"]["workerGroups"] = []
    assert len(strict.problems(cluster)) == 2


@pytest.mark.parametrize("name", ["defaults", "everything"])
def test_helm_lint_is_clean(name: str) -> None:
    """No warning, let alone an error; an icon is a matter of taste."""
    values = VARIANTS[name]
    told = rendering.engine().lint(str(CHART), values, strict=True, namespace=rendering.NAMESPACE)
    assert told["errors"] == []
    assert [one for one in told["messages"] if one["severity"] > 1] == []


def test_the_schema_is_fresh() -> None:
    """What settings there are is written down once, in `fleet.core.settings`."""
    stale = "run: python -m tests.deploy.chart.values_schema"
    assert values_schema.PATH.read_text() == values_schema.text(), stale


def _branches(schema: Any, path: str) -> list[tuple[str, Any]]:
    found = [(path, schema)] if schema.get("type") == "object" else []
    for key, inner in schema.get("properties", {}).items():
        found += _branches(inner, f"{path}.{key}")
    if isinstance(schema.get("items"), dict):
        found += _branches(schema["items"], f"{path}[]")
    return found


def test_the_schema_is_closed_everywhere() -> None:
    """A typo is refused wherever it stands; only maps of texts and amounts are open."""
    whole = values_schema.values()
    parts = [*_branches(whole, ""), *_branches({"properties": whole["definitions"]}, "#")]
    open_ones = {
        path
        for path, schema in parts
        if schema.get("additionalProperties") is not False
        and not schema.get("additionalProperties", {}).get("type", "").startswith("string")
        and "anyOf" not in schema.get("additionalProperties", {})
    }
    assert open_ones == {".global"}
    assert len(parts) > 80


def _leaves(values: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(values, dict) or not values:
        return [path]
    return [leaf for key, inner in values.items() for leaf in _leaves(inner, (*path, key))]


def _typo(path: tuple[str, ...]) -> Values:
    *above, last = path
    found: Any = {f"{last}x": 1}
    for key in reversed(above):
        found = {key: found}
    assert isinstance(found, dict)
    return found


def test_a_typo_in_any_value_is_refused() -> None:
    """Each value of values.yaml with one letter too many is no value."""
    chart = rendering.engine().Chart.load(str(CHART))
    open_maps = {"labels", "annotations"}
    taken = []
    for path in _leaves(yaml.safe_load((CHART / "values.yaml").read_text())):
        if open_maps & set(path[:-1]) or path[-2:-1] in (("requests",), ("limits",)):
            continue
        try:
            chart.validate_schema(_typo(path))
        except rendering.engine().HelmValuesError:
            continue
        taken.append(path)
    assert taken == []


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"resourceApiVersion": "v1alpha3"}, "resourceApiVersion"),
        ({"driver": {"name": "a-driver-name.that.is.too.long"}}, "driver"),
        ({"settings": {"kubernetes": {"driver": "x.y"}}}, "driver"),
        ({"settings": {"store": {"kind": "sqlite"}}}, "kind"),
        ({"settings": {"wipe": {"coverage_floor": 2}}}, "coverage_floor"),
        ({"kubeletPlugin": {"driverDirectoryPaths": ["/dev"]}}, "more than the driver's libraries"),
        ({"kubeletPlugin": {"driverDirectoryPaths": ["/proc/driver"]}}, "more than the driver's"),
        ({"kubeletPlugin": {"kubeletPluginsDirectoryPath": "/x/plugins"}}, "--root-dir"),
        ({"ray": {"enabled": False}}, "there is no coordinator"),
        ({"ray": {"gcsFaultTolerance": {"backend": "redis"}}}, "redis.address"),
        ({"controller": {"persistence": {"enabled": False}}}, "persistence.enabled=true"),
        ({"campaign": {"schedule": "every night"}}, "schedule"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"driver": {"name": "gpu-.example.com"}}, "driver"),
        ({"driver": {"name": "gpu.-example.com"}}, "driver"),
        ({"kubeletPlugin": {"lastSeconds": 150}}, "less than kubeletPlugin.terminationGracePeriod"),
        (
            {"admission": {"tags": {"existingConfigMap": "tag-keys"}}},
            "settings.admission.tag_roots",
        ),
        ({"settings": {"admission": {"required": True}}}, "admission.tags.existingConfigMap"),
        ({"prometheusRule": {"runbookBaseUrl": "wiki"}}, "runbookBaseUrl"),
    ],
)
def test_a_mistake_is_refused_with_its_name(values: Values, word: str) -> None:
    """What cannot work is not rendered, and the message says what to write."""
    assert word in refused(values)


def test_the_default_namespace_is_refused() -> None:
    """Whoever may make pods beside us could claim the agent device."""
    assert "allowDefaultNamespace" in refused({}, namespace="default")
    assert rendering.objects({"allowDefaultNamespace": True}, namespace="default")


@ALL
def test_everything_of_ours_says_so_and_stays_in_its_namespace(values: Values) -> None:
    """E7: what the chart makes can be found by its label."""
    for each in rendering.objects(values):
        metadata = each["metadata"]
        if "policies" in metadata.get("annotations", {}).get("generated", ""):
            continue
        assert metadata.get("namespace") in (None, rendering.NAMESPACE), metadata["name"]
        if each["kind"] not in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
            assert metadata["labels"]["app.kubernetes.io/part-of"] == "fleetscrub", metadata["name"]


def test_another_driver_name_goes_everywhere() -> None:
    """No object of a release under another name speaks of the default one."""
    text = "\n".join(rendering.files(EVERYTHING).values())
    assert "gpu.example.com" in text
    assert not re.search(r"gpu\.fleetscrub\.dev", text)


def test_the_two_daemon_sets_are_updated_as_they_must_be() -> None:
    """The plugin overlaps its successor; a worker is never ended by an update: it may be wiping."""
    plugin = rendering.one("DaemonSet", "fleetscrub-node-plugin")["spec"]
    worker = rendering.one("DaemonSet", "fleetscrub-worker")["spec"]
    assert plugin["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    assert worker["updateStrategy"] == {"type": "OnDelete"}
    for spec in (plugin, worker):
        assert spec["template"]["spec"]["priorityClassName"] == "system-node-critical"
    names = [one["name"] for one in worker["template"]["spec"]["containers"]]
    assert names == ["ray-worker", "bridge", "standby"]


def test_versions_agree() -> None:
    """Chart, package, Ray and the Kubernetes that is asked for."""
    import tomllib
    from importlib import metadata

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]
    cluster = rendering.one("RayCluster", "fleetscrub", VARIANTS["kuberay"])
    assert cluster["spec"]["rayVersion"] == metadata.version("ray")


def test_every_value_of_the_chart_is_described() -> None:
    """docs/install.md names every group of values."""
    told = (ROOT.parent / "docs" / "install.md").read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert [name for name in values if f"`{name}" not in told] == []
