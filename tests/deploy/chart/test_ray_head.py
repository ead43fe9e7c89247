"""Ray's head: as a Deployment, and as KubeRay takes it."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped] # ships no types

from actors.cluster import POD_IP
from fleet.control.binding.liveness import Heartbeat
from fleet.control.binding.view import BindingView
from fleet.core.clock import ManualClock
from fleet.core.messages import Right
from fleet.kube.base import Object
from tests.deploy.chart import commands, rendering
from tests.deploy.chart.rendering import EVERYTHING, VARIANTS, Values, containers, pods

pytestmark = pytest.mark.chart
HEAD = re.compile(r"^(Deployment/.*-ray-head|RayCluster/.*)$")
REDIS = VARIANTS["kuberay-redis"]
OF_THE_OPERATOR = {"RAY_REDIS_ADDRESS", "REDIS_PASSWORD", "REDIS_USERNAME"}
"""Variables that KubeRay's validation refuses in a head that it is to give them itself."""


def cluster(values: Values) -> Object:
    spec: Object = rendering.one("RayCluster", "fleetscrub", values)["spec"]
    return spec


@pytest.mark.parametrize("name", ["kuberay", "kuberay-redis"])
def test_an_update_reaches_a_head_of_kuberay(name: str) -> None:
    """B82: the operator leaves a head that runs as it is, unless it is told to make it anew."""
    assert cluster(VARIANTS[name])["upgradeStrategy"] == {"type": "Recreate"}
    head = rendering.one("Deployment", "fleetscrub-ray-head")
    assert head["spec"]["strategy"] == {"type": "Recreate"}


def test_kuberay_takes_a_head_over_redis() -> None:
    """B82: what its validation refuses is not there, and its own options say the same."""
    spec = cluster(REDIS)
    (container,) = spec["headGroupSpec"]["template"]["spec"]["containers"]
    assert not OF_THE_OPERATOR & {one["name"] for one in container["env"]}
    assert "RAY_external_storage_namespace" not in {one["name"] for one in container["env"]}
    assert spec["gcsFaultToleranceOptions"] == {
        "redisAddress": "redis:6379",
        "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "redis", "key": "password"}}},
        "externalStorageNamespace": "fleetscrub",
    }
    assert "gcsFaultToleranceOptions" not in cluster(VARIANTS["kuberay"])


@pytest.mark.parametrize("values", [REDIS, EVERYTHING], ids=["kuberay", "deployment"])
def test_a_password_of_redis_reaches_ray(values: Values) -> None:
    """B82: `ray start` reads it from its command line alone; the variable is the Secret's."""
    (container,) = [
        container
        for _, template in pods(rendering.objects(values))
        for container in containers(template)
        if container["name"] == "ray-head"
    ]
    assert "--redis-password=$(REDIS_PASSWORD)" in container["args"]
    (secret,) = [one for one in container["env"] if one["name"] == "REDIS_PASSWORD"]
    assert secret["valueFrom"]["secretKeyRef"] == {"name": "redis", "key": "password"}


def template(values: Values) -> Object:
    """The head's pod, however it is made."""
    (found,) = [one for name, one in pods(rendering.objects(values)) if HEAD.search(name)]
    return found


@pytest.mark.parametrize("name", [one for one in VARIANTS if one != "without-ray"])
def test_f72_operators_find_all_of_it_in_the_head(name: str) -> None:
    """F72: in the head's container commands find Ray, API server, settings and state by variables
    alone: the values are right, and the files are mounted there."""
    (container,) = template(VARIANTS[name])["spec"]["containers"]
    told = {one["name"]: one.get("value") for one in container["env"]}
    assert told["FLEET_ADDRESS"] == "$(POD_IP):6379"
    places = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in template(VARIANTS[name])["spec"]["volumes"]}
    for variable, kept in (
        ("FLEET_KUBECONFIG", "kubeconfig"),
        ("FLEET_POLICY", "settings.json"),
    ):
        directory, _, file = str(told[variable]).rpartition("/")
        found = volumes[places[directory]]["configMap"]["name"]
        assert file == kept
        assert file in rendering.one("ConfigMap", found, VARIANTS[name])["data"]
    assert told["FLEET_STATE"] in places


@pytest.mark.parametrize("name", [one for one in VARIANTS if one != "without-ray"])
def test_f72_the_place_has_no_account_of_its_own(name: str) -> None:
    """F72: whoever reaches Ray runs code in the head, so commands there get nothing that the
    coordinator does not have: its account, and a kubeconfig that only names its token."""
    found = template(VARIANTS[name])["spec"]
    assert found["serviceAccountName"] == "fleet-coordinator"
    assert {one["name"] for one in found["containers"]} == {"ray-head"}
    maps = [one for one in rendering.objects(VARIANTS[name]) if one["kind"] == "ConfigMap"]
    (kept,) = [one["data"]["kubeconfig"] for one in maps if "kubeconfig" in one["data"]]
    (user,) = yaml.safe_load(kept)["users"]
    assert user["user"] == {"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"}


@pytest.mark.parametrize("name", [one for one in VARIANTS if one != "without-ray"])
def test_f74_the_volume_is_looked_at_before_ray_starts(name: str) -> None:
    """F74, F77: the head's volume is checked first, where Ray and coordinator will use it, and
    an earlier head has its own time to end and more; why it failed is in the pod's status."""
    spec = template(VARIANTS[name])["spec"]
    (first,), (head,) = spec["initContainers"], spec["containers"]
    asked = commands.parsed(commands.line(first))
    told = {one["name"]: one.get("value") for one in head["env"]}
    assert str(asked["state"]) == told["FLEET_STATE"]
    assert asked["store"] == (Path(at) if (at := told.get("RAY_gcs_storage_path")) else None)
    if asked["store"]:
        assert asked["wait_s"] > spec["terminationGracePeriodSeconds"]
    kept = [one for one in head["volumeMounts"] if one["name"] == "coordinator"]
    assert [one for one in first["volumeMounts"] if one["name"] == "coordinator"] == kept
    assert first["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize("name", VARIANTS)
def test_a_head_keeps_no_node_from_being_drained(name: str) -> None:
    """E7: there is one head, so a budget would protect nothing and block every drain."""
    guarded = {
        one["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
        for one in rendering.objects(VARIANTS[name])
        if one["kind"] == "PodDisruptionBudget"
    }
    assert guarded <= {"admission"}


def test_f77_a_driver_of_ray_is_told_which_raylet_is_its_own() -> None:
    """F77: a pod that sees the host's processes sees every raylet of the machine, and Ray takes the
    head's first, whose socket another pod has: whoever attaches gets the address of its own."""
    drivers = {"bridge", "uninstall", "ray-head"}
    found = {
        one["name"]: {name["name"]: name for name in one["env"]}
        for _, template in pods(rendering.objects())
        for one in containers(template)
        if one["name"] in drivers
    }
    assert found.keys() == drivers
    for variables in found.values():
        assert variables[POD_IP]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_f71_the_probe_of_the_head_asks_who_does_the_work(tmp_path: Path) -> None:
    """F71: the head's pod is Ready while each coordinator in it steps, and says why it is not."""
    template = rendering.one("Deployment", "fleetscrub-ray-head")["spec"]["template"]
    (container,) = [one for one in containers(template) if one["name"] == "ray-head"]
    command = container["readinessProbe"]["exec"]["command"]
    assert command[-1] == "/var/lib/fleetscrub/coordinator"
    directory = tmp_path / "coordinator"
    right = Right(verb="list", resource="resourceclaims", group="resource.k8s.io", account="a")

    def asked() -> tuple[int, str]:
        told = subprocess.run([*command[:-1], str(directory)], capture_output=True, check=False)
        return told.returncode, told.stdout.decode().strip()

    def beat(nodes: str = "", *, at: float | None = None, missing: tuple[Right, ...] = ()) -> None:
        now = time.time() if at is None else at
        view = BindingView(nodes=nodes, stepped_at=now, missing=missing)
        heart = Heartbeat(
            lambda: view, state=tmp_path, cluster=None, namespace="", clock=ManualClock(now)
        )
        heart.beat()

    none = "no coordinator has reported in this pod: see its log and those of the bridges"
    assert asked() == (1, none)
    directory.mkdir()
    assert asked() == (1, none)
    beat()
    assert asked() == (0, "")
    beat("pool=a", missing=(right,))
    code, told = asked()
    assert code == 1
    assert told.startswith("the coordinator of the nodes pool=a lacks a right: list resourceclaims")
    beat("pool=a")
    assert asked() == (0, "")
    beat(at=time.time() - 100)
    code, told = asked()
    assert code == 1
    assert told.startswith("the coordinator has not reported for 10")


@pytest.mark.parametrize("name", ["fleetscrub-ray-head", "fleetscrub-worker"])
def test_f71_what_actors_log_goes_to_the_log_of_the_container(name: str) -> None:
    """F71: after Kubernetes has read it, the command names the shell's own standard error and runs
    Ray in the shell's place."""
    kind = "Deployment" if name.endswith("head") else "DaemonSet"
    template = rendering.one(kind, name)["spec"]["template"]
    (container,) = [one for one in containers(template) if one["name"].startswith("ray-")]
    *shell, script, own = container["command"]
    assert (shell, own) == (["sh", "-c"], "ray")
    assert script.replace("$$", "$") == 'FLEET_LOG_ALSO=/proc/$$/fd/2 exec ray start "$@"'
