"""The settings file of the chart, read by the product's own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.core.errors import SettingsInvalid
from fleet.core.settings import Settings
from fleet.core.settings_file import load
from tests.deploy.chart import rendering
from tests.deploy.chart.rendering import EVERYTHING, VARIANTS, Values, containers, pods

pytestmark = pytest.mark.chart


def settings(values: Values, directory: Path) -> Settings:
    """As the plugin reads them."""
    made = rendering.one("ConfigMap", "fleetscrub-settings", values)["data"]
    ((name, text),) = made.items()
    path = directory / name
    path.write_text(text)
    return load(path)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "own-secrets"])
def test_the_product_reads_them(name: str, tmp_path: Path) -> None:
    """No key is invented, no value out of its range; paths and names are the pods' own."""
    found = settings(VARIANTS[name], tmp_path)
    kubernetes = found.kubernetes
    assert kubernetes.agent_namespace == rendering.NAMESPACE
    assert found.store.namespace == rendering.NAMESPACE
    assert found.store.kind == "kubernetes"
    assert found.hardware.root == "/host"
    (template,) = [
        template
        for pod, template in pods(rendering.objects(VARIANTS[name]))
        if pod == "DaemonSet/fleetscrub-worker"
    ]
    (standby,) = [one for one in containers(template) if one["name"] == "standby"]
    mounted = {mount["mountPath"] for mount in standby["volumeMounts"]}
    for path in (
        kubernetes.cdi_directory,
        kubernetes.kubelet_root,
        kubernetes.cgroup_root,
        found.hardware.run_directory,
    ):
        assert path in mounted


def test_what_is_given_arrives(tmp_path: Path) -> None:
    """Large numbers, fractions, lists and names, as written."""
    found = settings(EVERYTHING, tmp_path)
    assert found.wipe.chunk_largest_bytes == 8589934592
    assert found.wipe.coverage_floor == 0.99
    assert found.kubernetes.driver == "gpu.example.com"
    assert found.kubernetes.binding_timeout_s == 900
    assert [str(one) for one in found.hardware.reset_methods] == ["flr"]
    assert found.admission.tag_keys == "/etc/fleetscrub-tags/keys.json"
    assert found.evidence.archive == "s3://bucket/prefix"


def test_several_coordinators_are_asked_for_by_their_selectors(tmp_path: Path) -> None:
    """B4: commas, brackets and quotes of label selectors arrive as written, and what is no selector
    is refused by the product's reader before a pod starts with it.
    """
    selectors = ("pool in (a,b)", "!pool", "example.com/pool=c,zone")
    given = {"settings": {"kubernetes": {"coordinator_nodes": list(selectors)}}}
    assert settings(given, tmp_path).kubernetes.coordinator_nodes == selectors
    given = {"settings": {"kubernetes": {"coordinator_nodes": ["pool in (a"]}}}
    with pytest.raises(SettingsInvalid, match="no term of a label selector"):
        settings(given, tmp_path)


LISTED: Values = {
    "admission": {"tags": {"existingConfigMap": "tag-keys"}},
    "settings": {"admission": {"tag_roots": ["0" * 64]}},
}


def test_c5_with_a_list_of_tag_keys_a_tag_is_required(tmp_path: Path) -> None:
    """C5: a list that is given is meant; without one the nodes cannot ask for a tag."""
    assert settings(LISTED, tmp_path).admission.required
    assert not settings({}, tmp_path).admission.required
    said = {**LISTED, "settings": {"admission": {"tag_roots": ["0" * 64], "required": False}}}
    assert not settings(said, tmp_path).admission.required


def test_c5_an_installation_says_which_tags_it_does_not_verify() -> None:
    """C5: no list, no webhook or no requirement is told after the installation, and only then."""

    def told(values: Values) -> str:
        return rendering.files(values)["templates/NOTES.txt"]

    never, late, free = ("TAGS ARE NOT VERIFIED", "on the nodes alone", "TAGS ARE PREPARED")
    assert never in told({})
    assert late not in told({})
    assert late in told(LISTED)
    assert not any(one in told(EVERYTHING) for one in (never, late, free))
    lax = {**LISTED, "settings": {"admission": {"tag_roots": ["0" * 64], "required": False}}}
    assert free in told(lax)
    assert never not in told(lax)


def test_every_process_of_ours_logs_as_told() -> None:
    """E4: the format of the log is that of the values in each container that runs our code."""
    found = rendering.objects({**EVERYTHING, "logFormat": "json"})
    for name, template in pods(found):
        for container in containers(template):
            env = {one["name"]: one.get("value") for one in container["env"]}
            assert env.get("FLEET_LOG_FORMAT") == "json", f"{name}: {container['name']}"


def test_a_change_of_settings_starts_the_plugin_anew() -> None:
    """It reads them once; the digest in the template makes the roll-out."""

    def digest(values: Values) -> Any:
        plugin = rendering.one("DaemonSet", "fleetscrub-node-plugin", values)
        return plugin["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]

    assert digest({}) != digest({"settings": {"wipe": {"reset": "always"}}})
