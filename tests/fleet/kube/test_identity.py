"""A state directory knows its cluster, and refuses every other one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core import errors
from fleet.kube import identity
from fleet.kube.base import NAMESPACES, NODES, Name, Resource
from tests.lab.apiserver.access import Access, Caller, Rule
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine


def make(cluster: MemoryCluster, resource: Resource, name: str) -> str:
    """An object of no content; its UID."""
    body = {"apiVersion": "v1", "kind": resource.kind, "metadata": {"name": name}}
    return str(cluster.create(resource, body)["metadata"]["uid"])


def cluster_with(seed: str = "", *, namespace: bool = True) -> MemoryCluster:
    """A cluster of one node."""
    cluster = MemoryCluster(Engine(seed=seed))
    if namespace:
        make(cluster, NAMESPACES, "kube-system")
    make(cluster, NODES, "n1")
    return cluster


def test_the_first_meeting_is_written_down_and_another_cluster_refused(tmp_path: Path) -> None:
    """Promise 7: at another cluster every claim of ours would look gone."""
    ours, theirs = cluster_with(), cluster_with("theirs")
    assert not identity.verify(tmp_path, ours, ["n1"])  # a verb writes nothing down
    assert identity.recorded(tmp_path) == {}
    assert identity.meet(tmp_path, ours, ["n1"])
    assert identity.verify(tmp_path, ours, ["n1"])
    for look in (identity.verify, identity.meet):
        with pytest.raises(errors.ClusterForeign, match="another cluster") as caught:
            look(tmp_path, theirs, ["n1"])
        assert "--kubeconfig" in caught.value.remedy
        assert caught.value.exit_code == 2
    assert identity.verify(tmp_path, ours, ["n1"])


def test_a_node_made_anew_in_its_cluster_is_no_other_cluster(tmp_path: Path) -> None:
    """A Node object comes and goes; the namespace is as old as the cluster."""
    ours = cluster_with()
    identity.meet(tmp_path, ours, ["n1"])
    ours.delete(NODES, Name("n1"))
    uid = make(ours, NODES, "n1")
    assert identity.meet(tmp_path, ours, ["n1"])
    assert identity.recorded(tmp_path)["Node n1"] == uid


def test_without_the_right_to_see_the_namespace_the_node_tells(tmp_path: Path) -> None:
    """With rights of an earlier role the Node's UID is what clusters are told apart by."""
    for namespace in (True, False):
        state = tmp_path / str(namespace)
        state.mkdir()
        ours, theirs = (cluster_with(s, namespace=namespace) for s in ("ours", "theirs"))
        for cluster in (ours, theirs):
            cluster.engine.access = Access([Rule("u", ("get",), ("nodes",))])
        limited = [MemoryCluster(one.engine, caller=Caller("u")) for one in (ours, theirs)]
        assert identity.meet(state, limited[0], ["n1"])
        assert list(identity.recorded(state)) == ["Node n1"]
        with pytest.raises(errors.ClusterForeign):
            identity.verify(state, limited[1], ["n1"])


def test_a_server_that_does_not_answer_tells_nothing(tmp_path: Path) -> None:
    """An API server that is away keeps nobody from starting, and is asked again later."""
    ours = cluster_with()
    for _ in range(2):
        ours.faults.fail_next("get", errors.ApiUnavailable("away", status=0))
        assert not identity.meet(tmp_path, ours, ["n1"])
        identity.meet(tmp_path, ours, ["n1"])


def test_a_record_that_cannot_be_read_lets_nobody_pass(tmp_path: Path) -> None:
    """Unknown is not "the right one"."""
    (tmp_path / identity.FILE).write_text("{")
    with pytest.raises(errors.ClusterForeign, match="cannot be read"):
        identity.meet(tmp_path, cluster_with(), ["n1"])


def test_a_directory_that_cannot_be_written_keeps_nobody(tmp_path: Path) -> None:
    """It is written down at the next meeting."""
    assert identity.meet(tmp_path / "none", cluster_with(), ["n1"])
