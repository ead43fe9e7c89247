"""The chart against a real API server: every object is admitted, nothing is made."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from fleet.kube.base import Object
from tests.deploy.chart import rendering
from tests.deploy.chart.rendering import VARIANTS, Values
from tests.e2e.place import Place

pytestmark = [pytest.mark.e2e, pytest.mark.chart]
client, config, dynamic = (
    import_module(f"kubernetes.{name}") for name in ("client", "config", "dynamic")
)  # ships no complete types
FOREIGN = ("ray.io/", "monitoring.coreos.com/", "cert-manager.io/")
"""Groups that a bare cluster does not serve; tests/deploy/chart/custom.py has their schemas."""


@pytest.fixture(scope="module")
def server(place: Place) -> Iterator[Any]:
    """A client that asks for strict field validation and changes nothing."""
    with config.new_client_from_config(str(place.kubeconfig)) as found:
        yield dynamic.DynamicClient(found)


@pytest.fixture
def namespace(server: Any) -> Iterator[str]:
    """A namespace that allows what our pods ask for."""
    name = f"chart-{secrets.token_hex(3)}"
    core = client.CoreV1Api(server.client)
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    core.create_namespace(
        client.V1Namespace(metadata=client.V1ObjectMeta(name=name, labels=labels))
    )
    yield name
    core.delete_namespace(name)


def refusal(server: Any, found: Object) -> str:
    """Why the API server would not take this object; "" when it would."""
    kind = server.resources.get(api_version=found["apiVersion"], kind=found["kind"])
    where = found["metadata"].get("namespace")
    try:
        kind.server_side_apply(
            body=found,
            namespace=where,
            field_manager="fleetscrub-chart-test",
            force_conflicts=True,
            dry_run="All",
            field_validation="Strict",
        )
    except dynamic.exceptions.DynamicApiError as error:
        return f"{found['kind']}/{found['metadata']['name']}: {error.summary()}"
    return ""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_the_api_server_takes_every_object(server: Any, namespace: str, values: Values) -> None:
    """A real server, its validation, its admission and its CEL compiler: no object is refused."""
    found = rendering.objects(values, namespace=namespace)
    asked = [one for one in found if not one["apiVersion"].startswith(FOREIGN)]
    assert len(asked) > 30
    assert [told for one in asked if (told := refusal(server, one))] == []
