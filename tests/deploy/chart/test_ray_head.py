"""Ray's head: as a Deployment, and as KubeRay takes it."""

from __future__ import annotations

import pytest

from fleet.kube.base import Object
from tests.deploy.chart import rendering
from tests.deploy.chart.rendering import EVERYTHING, VARIANTS, Values, containers, pods

pytestmark = pytest.mark.chart
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
    (container,) = containers(spec["headGroupSpec"]["template"])
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


@pytest.mark.parametrize("name", VARIANTS)
def test_a_head_keeps_no_node_from_being_drained(name: str) -> None:
    """E7: there is one head, so a budget would protect nothing and block every drain."""
    guarded = {
        one["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
        for one in rendering.objects(VARIANTS[name])
        if one["kind"] == "PodDisruptionBudget"
    }
    assert guarded <= {"admission"}
