"""Rules of the twin beyond the contract (tests/contracts/test_cluster*)."""

from __future__ import annotations

import pytest

from fleet.core.errors import ApiConflict, ApiForbidden, ApiUnavailable, InputInvalid
from fleet.kube.base import CLAIMS, NODES, Change, Cluster, Name, Object, PatchKind
from tests.lab.apiserver.cluster import MemoryCluster

NODE: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
HERE = Name("n")


def test_the_twin_is_a_cluster() -> None:
    """mypy holds it to the protocol here."""
    cluster: Cluster = MemoryCluster()
    assert cluster.list(NODES).items == ()


def test_calls_are_recorded_in_order() -> None:
    """Tests can count writes: a step that found nothing to do wrote nothing."""
    cluster = MemoryCluster()
    cluster.create(NODES, NODE)
    cluster.get(NODES, HERE)
    cluster.patch(NODES, HERE, {"spec": {"x": 1}}, kind=PatchKind.MERGE, subresource="status")
    assert [(call.verb, call.name) for call in cluster.calls] == [
        ("create", HERE),
        ("get", HERE),
        ("patch", HERE),
    ]
    assert [call.verb for call in cluster.writes()] == ["create", "patch"]
    assert cluster.writes()[1].subresource == "status"


def test_a_refused_body_is_not_even_a_call() -> None:
    """What the port itself refuses never reaches the server."""
    cluster = MemoryCluster()
    with pytest.raises(InputInvalid):
        cluster.replace(NODES, NODE)
    with pytest.raises(InputInvalid):
        cluster.apply(NODES, NODE, manager="")
    assert cluster.calls == ()


def test_somebody_else_may_be_faster() -> None:
    """B16: a write between reading and writing makes a conflict."""
    cluster = MemoryCluster()
    other = MemoryCluster(cluster.engine)
    made = cluster.create(NODES, NODE)
    label = {"metadata": {"labels": {"a": "b"}}}
    cluster.faults.before_next(
        "replace", lambda: other.patch(NODES, HERE, label, kind=PatchKind.MERGE)
    )
    with pytest.raises(ApiConflict):
        cluster.replace(NODES, {**made, "spec": {"unschedulable": True}})
    assert cluster.get(NODES, HERE)["metadata"]["labels"] == {"a": "b"}


def test_faults_of_one_twin_do_not_touch_another() -> None:
    """Two clients of one server lose their connections separately."""
    cluster = MemoryCluster()
    other = MemoryCluster(cluster.engine)
    cluster.faults.offline = True
    other.create(NODES, NODE)
    with pytest.raises(ApiUnavailable):
        cluster.get(NODES, HERE)


def test_a_watch_goes_on_when_the_server_returns() -> None:
    """After an absence everything is told again."""
    cluster = MemoryCluster()
    cluster.create(NODES, NODE)
    events = cluster.watch(NODES, timeout_s=20)
    assert [next(events).change for _ in range(2)] == [Change.ADDED, Change.SYNCED]
    cluster.faults.fail_next("watch", ApiUnavailable("injected"))
    cluster.break_watches()
    assert [next(events).change for _ in range(2)] == [Change.ADDED, Change.SYNCED]


def test_a_watch_without_rights_ends_in_its_error() -> None:
    """The error is told at once, as the client does."""
    cluster = MemoryCluster()
    cluster.faults.fail_next("watch", ApiForbidden("injected", status=403, causes=[]), times=99)
    with pytest.raises(ApiForbidden):
        list(cluster.watch(NODES, timeout_s=600.0))


def test_bodies_and_answers_are_nobody_elses() -> None:
    """Changing a body after the call, or an answer, changes nothing stored."""
    cluster = MemoryCluster()
    body = {**NODE, "metadata": {"name": "n", "labels": {"a": "b"}}}
    made = cluster.create(NODES, body)
    body["metadata"]["labels"]["a"] = "c"
    made["metadata"]["labels"]["a"] = "d"
    assert cluster.get(NODES, HERE)["metadata"]["labels"] == {"a": "b"}
    assert cluster.list(CLAIMS).items == ()
