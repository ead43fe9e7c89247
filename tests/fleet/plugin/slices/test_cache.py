"""The cache believes the API, not itself."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fleet.core.errors import ApiNotFound, ApiUnavailable
from fleet.kube.base import NODES, SLICES, Change, Event, Name, name_of
from fleet.plugin.slices.cache import NodeSlices
from tests.lab.apiserver.cluster import MemoryCluster


def body(name: str, driver: str = "d.example.com", node: str = "node-a") -> dict[str, Any]:
    """A small slice."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
        },
    }


@pytest.fixture
def cluster() -> MemoryCluster:
    """A cluster with the node."""
    made = MemoryCluster()
    made.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}})
    return made


def cached(cluster: MemoryCluster) -> NodeSlices:
    """A cache that has listed once."""
    made = NodeSlices(cluster, node="node-a", driver="d.example.com", resync_s=30.0)
    assert made.refresh(0.0)
    return made


def test_slices_of_all_drivers_of_the_node_are_known(cluster: MemoryCluster) -> None:
    """B4: what others publish about this node is read with our own; other nodes are not."""
    for one in (body("b"), body("a"), body("x", "other"), body("y", node="node-b")):
        cluster.create(SLICES, one)
    found = cached(cluster)
    assert [name_of(one).name for one in found.ours] == ["a", "b"]
    assert [name_of(one).name for one in found.foreign] == ["x"]
    assert found.node_uid


def test_without_news_nothing_is_read_until_the_period_is_over(cluster: MemoryCluster) -> None:
    """B34 c: a deaf watch costs one period at most."""
    found = cached(cluster)
    assert not found.refresh(29.0)
    assert found.refresh(30.0)


def test_own_writes_are_read_back_and_recognised_in_the_watch(cluster: MemoryCluster) -> None:
    """Promise 6: an answer is no read-back; and our own echo is no news."""
    found = cached(cluster)
    answer = cluster.create(SLICES, body("a"))
    found.written(answer)
    assert not found.current
    assert found.refresh(1.0)
    found.changed(Event(Change.ADDED, answer))
    assert found.current


def test_foreign_changes_make_it_read_again(cluster: MemoryCluster) -> None:
    """B34 a: an edit or deletion by anybody is noticed at the next step."""
    cluster.create(SLICES, body("a"))
    found = cached(cluster)
    (stored,) = found.ours
    found.changed(Event(Change.MODIFIED, stored))
    assert found.current
    edited = cluster.replace(SLICES, {**stored, "spec": {**stored["spec"], "devices": []}})
    found.changed(Event(Change.MODIFIED, edited))
    assert found.refresh(1.0)
    found.changed(Event(Change.DELETED, {**edited, "metadata": {"name": "a", "uid": "older"}}))
    assert found.current
    found.changed(Event(Change.DELETED, edited))
    assert not found.current


def test_a_new_watch_that_misses_a_slice_makes_it_read_again(cluster: MemoryCluster) -> None:
    """B34 c: a slice deleted while the watch was down sends no event; SYNCED shows it."""
    cluster.create(SLICES, body("a"))
    found = cached(cluster)
    found.changed(Event(Change.ADDED, found.ours[0]))
    found.changed(Event(Change.SYNCED))
    assert found.current
    found.changed(Event(Change.SYNCED))
    assert not found.current


def test_a_failed_reading_stays_due(cluster: MemoryCluster) -> None:
    """What could not be read is read at the next step; nothing is assumed meanwhile."""
    found = cached(cluster)
    cluster.faults.fail_next("list", ApiUnavailable("away"))
    found.expire()
    with pytest.raises(ApiUnavailable):
        found.refresh(1.0)
    assert not found.current
    assert found.refresh(1.0)


def test_a_node_that_does_not_exist_cannot_be_published(cluster: MemoryCluster) -> None:
    """Invariant 30: without the Node there is no owner, so nothing is read as if there were."""
    cluster.delete(NODES, Name("node-a"))
    found = NodeSlices(cluster, node="node-a", driver="d.example.com", resync_s=30.0)
    with pytest.raises(ApiNotFound):
        found.refresh(0.0)


class Slow(dict[str, Any]):
    """An object's metadata, the reading of whose UID is held up."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.reading, self.go_on = threading.Event(), threading.Event()

    def get(self, key: str, default: Any = None) -> Any:
        """As in any dictionary, later."""
        if key == "uid":
            self.reading.set()
            assert self.go_on.wait(10.0)
        return super().get(key, default)


@pytest.mark.parametrize("how", ["expire", "refresh"])
def test_no_word_of_a_change_is_lost_between_threads(cluster: MemoryCluster, how: str) -> None:
    """Promise 6: what is found outdated while an event is being judged stays outdated."""
    cluster.create(SLICES, body("a"))
    found = cached(cluster)
    cluster.faults.offline = True

    def outdated() -> None:
        if how == "expire":
            found.expire()
        else:
            with pytest.raises(ApiUnavailable):
                found.refresh(30.0)

    metadata = Slow({"name": "a", "uid": "of another object"})
    event = Event(Change.DELETED, {**body("a"), "metadata": metadata})
    watching = threading.Thread(target=found.changed, args=(event,))
    stepping = threading.Thread(target=outdated)
    watching.start()
    assert metadata.reading.wait(10.0)
    stepping.start()
    stepping.join(0.2)
    metadata.go_on.set()
    for thread in (watching, stepping):
        thread.join(10.0)
    assert not found.current
