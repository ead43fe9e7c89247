"""Reading the pods of a claim: bounded, whoever reserves it for how many."""

from __future__ import annotations

from fleet.control.binding.decisions import PodFact
from fleet.control.binding.snapshot import KEPT_S, PODS_MAX, UNREAD, Consumers
from fleet.kube.base import PODS, Name, PatchKind
from fleet.kube.claim import ClaimReading, read
from fleet.kube.marks import Marks
from tests.lab.apiserver.cluster import MemoryCluster

MARKS = Marks("gpu.fleetscrub.dev")


def pod(cluster: MemoryCluster, name: str, *, node: str = "", phase: str = "Pending") -> str:
    """A pod; its UID."""
    made = cluster.create(
        PODS,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"nodeName": node} if node else {},
        },
    )
    body = {"status": {"phase": phase}}
    cluster.patch(PODS, Name(name, "ns"), body, kind=PatchKind.MERGE, subresource="status")
    return str(made["metadata"]["uid"])


def claim(*pods: tuple[str, str], version: str = "1") -> ClaimReading:
    """A claim reserved for these pods (name, UID)."""
    reserved = [{"resource": "pods", "name": name, "uid": uid} for name, uid in pods]
    found = {
        "metadata": {"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": version},
        "status": {"reservedFor": reserved},
    }
    return read(found, MARKS)


def test_gone_ended_and_replaced_pods_are_no_consumers() -> None:
    """B12: a pod counts while it exists under its UID and has not ended."""
    cluster = MemoryCluster()
    live, ended = pod(cluster, "live", node="n1"), pod(cluster, "ended", phase="Succeeded")
    pod(cluster, "replaced")
    asked = claim(("live", live), ("ended", ended), ("replaced", "other"), ("gone", "nobody"))
    assert Consumers(cluster).of(asked, 0.0) == (PodFact("live", live, bound=True, leaving=False),)


def test_a_claim_of_many_pods_costs_no_more_than_a_few_reads() -> None:
    """Promise 9: what was not read may be bound, so that nothing is failed under it."""
    cluster = MemoryCluster()
    asked = claim(*((f"p{number}", f"u{number}") for number in range(250)))
    consumers = Consumers(cluster)
    assert consumers.of(asked, 0.0) == (UNREAD,)
    consumers.of(asked, KEPT_S / 2)
    assert len(cluster.calls) == PODS_MAX


def test_a_changed_claim_and_time_are_looked_at_anew() -> None:
    """B5: what was read is believed for an unchanged claim and a moment only."""
    cluster = MemoryCluster()
    uid = pod(cluster, "p")
    consumers = Consumers(cluster)
    assert consumers.of(claim(("p", uid)), 0.0) == (PodFact("p", uid, bound=False, leaving=False),)
    cluster.delete(PODS, Name("p", "ns"))
    assert consumers.of(claim(("p", uid)), KEPT_S / 2) != ()
    assert consumers.of(claim(("p", uid), version="2"), KEPT_S / 2) == ()
