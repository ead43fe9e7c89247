"""The client against the stand-in API server: cases B19, B76 and B78, and what breaks watches."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.kube import client
from fleet.kube.base import CLAIMS, Change, Cluster, Event, Name, Object, PatchKind
from fleet.kube.cluster import KubernetesCluster
from fleet.kube.conflict_retry import settle
from tests.lab.apiserver.http_faults import Fault
from tests.lab.apiserver.server import StandIn

OURS, OTHERS = "gpu.fleetscrub.dev", "nic.other.example.com"
NAME = Name("claim-a", "tenant-a")
STATUS = "/resourceclaims/claim-a/status"


def request(name: str, kind: str) -> Object:
    """One request of the claim."""
    exactly = {"deviceClassName": kind, "allocationMode": "ExactCount", "count": 1}
    return {"name": name, "exactly": exactly}


def result(name: str, driver: str) -> Object:
    """What was allocated for it."""
    return {"request": name, "driver": driver, "pool": "node-a", "device": f"{name}-0"}


def claim() -> Object:
    """Case B19 and B76: two drivers, two consumers, and a field nobody here knows."""
    node = {"key": "metadata.name", "operator": "In", "values": ["node-a"]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": NAME.name, "namespace": NAME.namespace},
        "spec": {"devices": {"requests": [request("gpu", "scrub"), request("nic", "nic")]}},
        "status": {
            "futureField": {"kept": [None, 1]},
            "allocation": {
                "devices": {"results": [result("gpu", OURS), result("nic", OTHERS)]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [node]}]},
            },
            "reservedFor": [
                {"resource": "pods", "name": "p1", "uid": "d1d1"},
                {"resource": "pods", "name": "p2", "uid": "d2d2"},
            ],
            "devices": [
                {
                    "driver": OTHERS,
                    "pool": "node-a",
                    "device": "nic-0",
                    "data": {"theirs": 1},
                    "conditions": None,  # the server writes the list out, also where it is empty
                },
            ],
        },
    }


def ready(found: Object, uid: str = "") -> Object:
    """Our condition on our device, guarded by the version read (and `uid`)."""
    condition = {
        "type": "fleetscrub.dev/Sanitized",
        "status": "True",
        "reason": "Wiped",
        "message": "",
        "lastTransitionTime": "2026-11-29T13:13:23Z",
    }
    entry = {"driver": OURS, "pool": "node-a", "device": "gpu-0", "conditions": [condition]}
    metadata = {"name": NAME.name, "namespace": NAME.namespace}
    metadata["resourceVersion"] = found["metadata"]["resourceVersion"]
    metadata["uid"] = uid or found["metadata"]["uid"]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "status": {"devices": [entry]},
    }


def wanted(found: Object) -> Object | None:
    """Decide: our condition is written once."""
    mine = [one for one in found["status"].get("devices", []) if one["driver"] == OURS]
    return None if mine else ready(found)


def read(cluster: Cluster) -> Object:
    """Read the claim live."""
    return cluster.get(CLAIMS, NAME)


def write(cluster: Cluster, body: Object) -> Object:
    """Apply our part of the claim's status."""
    return cluster.apply(CLAIMS, body, manager="fleetscrub", subresource="status")


@pytest.fixture
def standin() -> Iterator[StandIn]:
    """A server that holds the claim."""
    with StandIn() as found:
        found.engine.seed(CLAIMS, claim())
        yield found


@pytest.fixture
def cluster(standin: StandIn, tmp_path: Path) -> KubernetesCluster:
    """A client of that server."""
    path = standin.kubeconfig(tmp_path / "kubeconfig")
    return client.connect(str(path), qps=1e4, timeout_s=5.0)


def of_others(found: Object) -> tuple[object, ...]:
    """What no write of ours may touch."""
    status = found["status"]
    return status["allocation"], [one for one in status["devices"] if one["driver"] == OTHERS]


def test_what_others_wrote_survives_every_write(
    standin: StandIn, cluster: KubernetesCluster
) -> None:
    """B19, invariant 34: the other driver's entry survives apply, patches and PUT."""
    before = of_others(claim())
    assert of_others(settle(cluster, read, wanted, write).found) == before
    removal = [
        {"op": "test", "path": "/status/reservedFor/0/uid", "value": "d1d1"},
        {"op": "remove", "path": "/status/reservedFor/0"},
    ]
    cluster.patch(CLAIMS, NAME, removal, kind=PatchKind.JSON, subresource="status")
    touch(cluster, "y")
    cluster.replace(CLAIMS, read(cluster), subresource="status")
    assert of_others(read(cluster)) == before
    assert [one["uid"] for one in read(cluster)["status"]["reservedFor"]] == ["d2d2"]


def test_a_field_nobody_knows_is_read_and_written_back(
    standin: StandIn, cluster: KubernetesCluster
) -> None:
    """B19: a typed client would drop the field; ours sends back exactly what it has read."""
    found = read(cluster)
    assert found["status"]["futureField"] == {"kept": [None, 1]}
    cluster.replace(CLAIMS, found, subresource="status")
    assert standin.requests[-1].body == found


def test_each_write_is_of_the_type_that_was_meant(
    standin: StandIn, cluster: KubernetesCluster
) -> None:
    """B76: content type and query of every write, and what it left of the other entries."""
    settle(cluster, read, wanted, write)
    left = {"status": {"reservedFor": [{"resource": "pods", "name": "p2", "uid": "d2d2"}]}}
    cluster.patch(CLAIMS, NAME, left, kind=PatchKind.MERGE, subresource="status")
    found = read(cluster)["status"]
    assert [one["driver"] for one in found["devices"]] == [OTHERS, OURS]
    assert [one["uid"] for one in found["reservedFor"]] == ["d2d2"]
    sent = [one for one in standin.requests if one.method == "PATCH"]
    assert [(one.content_type, one.path.partition(STATUS)[2]) for one in sent] == [
        ("application/apply-patch+yaml", "?fieldManager=fleetscrub&force=true"),
        ("application/merge-patch+json", ""),
    ]


def test_guards_of_an_apply_are_told_apart(cluster: KubernetesCluster) -> None:
    """A stale version is a conflict to decide anew; another object's uid is a refusal."""
    found = read(cluster)
    write(cluster, ready(found))
    stale = ready(found)
    stale["status"]["devices"][0]["conditions"][0]["status"] = "False"
    with pytest.raises(errors.ApiConflict) as caught:
        write(cluster, stale)
    assert caught.value.reason == "Conflict"
    with pytest.raises(errors.ApiInvalid, match="uid"):
        write(cluster, ready(read(cluster), uid="00000000-0000-4000-8000-000000000000"))


def test_junk_in_a_list_hides_nothing(standin: StandIn, cluster: KubernetesCluster) -> None:
    """B19: null and numbers among the items are counted; every object is delivered."""
    standin.faults.junk = [None, 3, {"metadata": None}]
    found = cluster.list(CLAIMS)
    assert [one["metadata"]["name"] for one in found.items] == [NAME.name]
    assert (found.items[0]["kind"], found.skipped, cluster.skipped) == ("ResourceClaim", 3, 3)


def test_the_server_is_judged_at_the_start(standin: StandIn, cluster: KubernetesCluster) -> None:
    """B19: a server without the group version is named at the start with the remedy."""
    cluster.require()
    standin.hidden = {kind for kind in standin.engine.kinds if kind.group == CLAIMS.group}
    with pytest.raises(errors.ApiNotFound, match=r"resource\.k8s\.io/v1") as caught:
        cluster.require()
    assert "1.34 or newer" in caught.value.remedy


def test_an_answer_lost_on_the_way_is_not_written_twice(
    standin: StandIn, cluster: KubernetesCluster
) -> None:
    """An apply whose answer is lost is read back; found carried out, it is not sent again."""
    standin.faults.add(Fault(method="PATCH", drop="after"))
    done = settle(cluster, read, wanted, write, pause=lambda _: None)
    assert (done.writes, done.confirmed) == (1, False)
    assert [one.method for one in standin.requests].count("PATCH") == 1


def test_a_500_is_sent_once(standin: StandIn, cluster: KubernetesCluster) -> None:
    """The server answers 500 to malformed bodies: one request, one error."""
    body = ready(read(cluster))
    body["status"]["devices"][0]["conditions"][0]["lastTransitionTime"] = "2026-11-29T13:13:23"
    with pytest.raises(errors.ApiFailed):
        settle(cluster, read, lambda _: copy.deepcopy(body), write, pause=lambda _: None)
    assert [one.method for one in standin.requests].count("PATCH") == 1


def test_a_connection_the_server_closed_is_replaced(
    standin: StandIn, cluster: KubernetesCluster
) -> None:
    """An idle connection that the server has closed is noticed before it is used again."""
    read(cluster)
    standin.drop_connections()
    touch(cluster, "1")
    assert read(cluster)["metadata"]["annotations"] == {"x": "1"}


def until(watch: Iterator[Event], change: Change) -> list[Event]:
    """The events up to the first `change`."""
    got = []
    for event in watch:
        got.append(event)
        if event.change is change:
            return got
    raise AssertionError(f"the watch ended without {change}")


def touch(cluster: Cluster, value: str) -> None:
    """Change the claim a little."""
    body = {"metadata": {"annotations": {"x": value}}}
    cluster.patch(CLAIMS, NAME, body, kind=PatchKind.MERGE)


def test_a_token_rotated_under_an_open_watch(standin: StandIn, tmp_path: Path) -> None:
    """B78: v1 until its end, then only v2: the patch succeeds and the watch goes on by itself."""
    token = tmp_path / "token"
    token.write_text("v1\n")
    standin.accept_only(["v1"])
    path = standin.kubeconfig(tmp_path / "kubeconfig", token_file=token)
    cluster = client.connect(str(path), qps=1e4, timeout_s=5.0)
    watch = cluster.watch(CLAIMS, timeout_s=60.0)
    assert len(until(watch, Change.SYNCED)) == 2
    standin.accept_only(["v1", "v2"])
    fresh = tmp_path / "token.new"
    fresh.write_text("v2\n")
    fresh.replace(token)
    standin.accept_only(["v2"])
    touch(cluster, "1")
    assert [one.token for one in standin.requests][-2:] == ["v1", "v2"]
    assert until(watch, Change.MODIFIED)[0].object["metadata"]["annotations"] == {"x": "1"}
    standin.drop_connections()
    assert len(until(watch, Change.SYNCED)) == 2


def test_a_watch_goes_on_while_the_token_file_is_missing(standin: StandIn, tmp_path: Path) -> None:
    """B78, variant: refused for a while, the watch waits and goes on with the new token."""
    token = tmp_path / "token"
    token.write_text("v1")
    standin.accept_only(["v1"])
    path = standin.kubeconfig(tmp_path / "kubeconfig", token_file=token)
    watch = client.connect(str(path), qps=1e4, timeout_s=5.0).watch(CLAIMS, timeout_s=60.0)
    until(watch, Change.SYNCED)
    token.unlink()
    refused = Fault(method="GET", status=401)
    standin.faults.add(refused, times=2)
    assert len(until(watch, Change.SYNCED)) == 2
    assert "v2" not in [one.token for one in standin.requests]


@pytest.mark.parametrize("loss", ["dropped", "expired", "unavailable", "during"])
def test_a_watch_survives_every_loss(
    standin: StandIn, cluster: KubernetesCluster, loss: str
) -> None:
    """Dropped, expired, refused or cut after an event: all objects come again, then changes."""
    if loss == "during":
        standin.faults.add(Fault(method="GET", path="watch=true", drop="during"))
    watch = cluster.watch(CLAIMS, timeout_s=60.0)
    until(watch, Change.SYNCED)
    touch(cluster, "0")
    until(watch, Change.MODIFIED)
    if loss == "unavailable":
        standin.faults.add(Fault(path="resourceclaims", status=503), times=3)
    elif loss == "expired":
        standin.engine.forget_history()
    if loss != "during":
        standin.drop_connections()
    again = until(watch, Change.SYNCED)
    assert [event.change for event in again] == [Change.ADDED, Change.SYNCED]
    touch(cluster, "1")
    assert until(watch, Change.MODIFIED)[-1].object["metadata"]["annotations"] == {"x": "1"}
