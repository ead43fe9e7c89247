"""Missing rights, absent servers and lost answers, behind every `Cluster`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet.core import errors
from fleet.kube.base import CLAIMS, PODS, Name, PatchKind, name_of, version_of
from tests.contracts.cluster_benches import (
    STRANGER,
    Bench,
    allocated,
    claim,
    condition,
    device,
    status,
)
from tests.lab.apiserver.access import Access, Rule

HERE = Name("a", "default")


def test_a_missing_right_is_told_as_such(bench: Bench) -> None:
    """A 403, and the 422 of Kubernetes 1.36 for a missing driver right, are both ApiForbidden."""
    allocated(bench, "d0")
    stranger = bench.stranger()
    with pytest.raises(errors.ApiForbidden) as caught:
        stranger.get(CLAIMS, HERE)
    assert caught.value.status == 403
    access = bench.engine.access
    assert isinstance(access, Access)
    access.rules.append(Rule(STRANGER, ("patch",), ("resourceclaims/status",)))
    body = status("a", device("d0", conditions=[condition()]))
    with pytest.raises(errors.ApiForbidden) as caught:
        stranger.apply(CLAIMS, body, manager="m", subresource="status")
    assert caught.value.status == 422
    assert caught.value.causes[0][1] == "status.devices"
    rule = Rule(STRANGER, ("arbitrary-node:patch",), ("resourceclaims/driver",))
    access.rules.append(rule)
    stranger.apply(CLAIMS, body, manager="m", subresource="status")


@pytest.mark.parametrize("verb", ["get", "list", "create", "apply", "patch", "delete"])
def test_an_unavailable_server_is_told_as_such(bench: Bench, verb: str) -> None:
    """503 is ApiUnavailable, which is retryable, and nothing was written."""
    made = allocated(bench, "d0")
    bench.refuse(verb)
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: bench.cluster.get(CLAIMS, HERE),
        "list": lambda: bench.cluster.list(CLAIMS),
        "create": lambda: bench.cluster.create(CLAIMS, claim("b")),
        "apply": lambda: bench.cluster.apply(
            CLAIMS, status("a", device("d0")), manager="m", subresource="status"
        ),
        "patch": lambda: bench.cluster.patch(
            CLAIMS, HERE, {"metadata": {"labels": {"a": "b"}}}, kind=PatchKind.MERGE
        ),
        "delete": lambda: bench.cluster.delete(CLAIMS, HERE),
    }
    with pytest.raises(errors.ApiUnavailable):
        calls[verb]()
    assert bench.cluster.get(CLAIMS, HERE) == made


@pytest.mark.parametrize("verb", ["create", "replace", "apply", "patch", "delete"])
def test_a_lost_answer_is_unavailable_though_it_was_done(bench: Bench, verb: str) -> None:
    """An ambiguous write raises ApiUnavailable; reading back shows that it was carried out."""
    made = allocated(bench, "d0")
    relabelled = {**made, "metadata": {**made["metadata"], "labels": {"a": "b"}}}
    bench.lose_answer(verb)
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: bench.cluster.create(CLAIMS, claim("b")),
        "replace": lambda: bench.cluster.replace(CLAIMS, relabelled),
        "apply": lambda: bench.cluster.apply(
            CLAIMS, status("a", device("d0")), manager="m", subresource="status"
        ),
        "patch": lambda: bench.cluster.patch(
            CLAIMS, HERE, {"metadata": {"labels": {"a": "b"}}}, kind=PatchKind.MERGE
        ),
        "delete": lambda: bench.cluster.delete(CLAIMS, HERE),
    }
    with pytest.raises(errors.ApiUnavailable):
        calls[verb]()
    names = [name_of(item).name for item in bench.cluster.list(CLAIMS).items]
    assert names == {"create": ["a", "b"], "delete": []}.get(verb, ["a"])
    if verb in ("replace", "apply", "patch"):
        assert version_of(bench.cluster.get(CLAIMS, HERE)) != version_of(made)


def test_a_pod_on_a_node_ends_in_its_own_time(bench: Bench) -> None:
    """A pod that a kubelet runs stays, Terminating, after a delete."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"nodeName": "node-1", "terminationGracePeriodSeconds": 7},
    }
    bench.cluster.create(PODS, pod)
    bench.cluster.delete(PODS, Name("p", "default"))
    found = bench.cluster.get(PODS, Name("p", "default"))["metadata"]
    assert found["deletionGracePeriodSeconds"] == 7
