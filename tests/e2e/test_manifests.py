"""What is shipped under deploy/kubernetes, put to a real server: rights and the example."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped] # ships no types
from kubernetes import client as library
from kubernetes import config as library_config

from fleet.core import errors
from fleet.kube import claim as claims
from fleet.kube import client
from fleet.kube.base import EVENTS, PODS, Name, Object, Resource, name_of
from fleet.kube.marks import Marks
from tests.deploy import manifests
from tests.e2e.ground import Ground
from tests.e2e.plugin_process import DRIVER, PluginProcess
from tests.e2e.polling import eventually
from tests.e2e.workloads import ACCOUNTS, STAY, TEMPLATES, program

pytestmark = pytest.mark.e2e


@pytest.fixture
def account(ground: Ground, tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig of the plugin's service account, with the rights as shipped."""
    shipped = manifests.objects("rbac.yaml")
    for one in shipped:
        ground.cluster.apply(manifests.resource_of(one), one, manager="fleet-e2e")
    (found,) = [name_of(one) for one in shipped if one["kind"] == "ServiceAccount"]
    yield kubeconfig(ground.place.kubeconfig, token(ground, found), tmp_path / "kubeconfig")
    for one in reversed(shipped):
        ground.cluster.delete(manifests.resource_of(one), name_of(one))


def token(ground: Ground, account: Name) -> str:
    """A token of a service account, once it exists."""
    api = library_config.new_client_from_config(  # type: ignore[no-untyped-call]
        config_file=str(ground.place.kubeconfig)
    )
    with api:
        asked = library.AuthenticationV1TokenRequest(
            spec=library.V1TokenRequestSpec(audiences=[], expiration_seconds=3600)
        )
        answer = library.CoreV1Api(api).create_namespaced_service_account_token(
            account.name, account.namespace, asked
        )
        assert answer.status is not None
        return str(answer.status.token)


def kubeconfig(admin: Path, secret: str, path: Path) -> Path:
    """The administrator's kubeconfig with this token in place of his credentials."""
    whole = yaml.safe_load(admin.read_text())
    for user in whole["users"]:
        user["user"] = {"token": secret}
    path.write_text(json.dumps(whole))
    path.chmod(0o600)
    return path


@pytest.mark.timeout(300)
def test_the_plugin_needs_no_more_rights_than_are_shipped(ground: Ground, account: Path) -> None:
    """A5: with the shipped role alone the plugin publishes, holds, prepares and tears down; it
    could not make itself pods, nor read what is none of its business."""
    assert ground.plugin.stop() == 0
    limited = client.connect(str(account), qps=100.0, timeout_s=10.0)
    for resource in (EVENTS, ACCOUNTS):
        with pytest.raises(errors.ApiForbidden):
            limited.list(resource)
    other = PluginProcess(
        replace(ground.place, kubeconfig=account), ground.plugin.state, ground.plugin.node
    )
    ground.instances.append(other)
    other.start()
    eventually("it serves", other.serves, timeout_s=60, tell=other.told)
    pod = ground.run(program(STAY), ground.claim_template())
    ground.in_phase(pod, "Running")
    claim = claims.read(ground.claim_of(pod), Marks(DRIVER))
    assert (claim.held, claim.finalizer) == (True, True)
    # "health-not-read" may stand there until the first reading.
    eventually(
        "nothing is tainted", lambda: not any(map(ground.taints, ground.published())), timeout_s=30
    )
    ground.delete(pod)
    eventually("nothing is left", lambda: not ground.left(), timeout_s=30, tell=other.told)
    assert "forbidden" not in other.log.read_text().lower()
    assert other.stop() == 0


def test_the_shipped_example_runs(ground: Ground) -> None:
    """C2, C4, D1: the example pod gets a device with the sanitization its claim asks for."""
    for one in manifests.objects("example-pod.yaml"):
        ground.cluster.create(*placed(ground, one))
    name = Name("one-gpu", ground.namespace)
    ground.in_phase(name, "Running")
    assert len(ground.plugin.specs()) == 1
    ground.delete(name)


def placed(ground: Ground, shipped: Object) -> tuple[Resource, Object]:
    """A shipped object in the test's namespace, with an image that is there."""
    found = deepcopy(shipped)
    found["metadata"]["namespace"] = ground.namespace
    if found["kind"] != PODS.kind:
        return TEMPLATES, found
    found["spec"]["hostNetwork"] = True  # a network of its own is not what is tried here
    found["spec"]["automountServiceAccountToken"] = False
    for container in found["spec"]["containers"]:
        container |= {"image": ground.place.image, "imagePullPolicy": "Never"}
    return PODS, found
