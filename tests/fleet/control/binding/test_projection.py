"""Of a claim the coordinator keeps what it decides by: little, and all of it."""

from __future__ import annotations

import copy
import json
from functools import partial

import pytest

from fleet.control.binding import pledge
from fleet.control.binding.object_cache import Cached
from fleet.control.binding.projection import trimmed, trimmed_node
from fleet.core.clock import ManualClock
from fleet.kube.base import CLAIMS, NODES, Object, Selection
from fleet.kube.claim import read
from fleet.kube.cluster import Answer, KubernetesCluster, Request
from fleet.kube.marks import Marks
from fleet.plugin import resource_claim as dra
from tests.fleet.control.binding.scenes import DRIVER

MARKS = Marks(DRIVER)
JUNK = "x" * 250_000
HARD = {"apiVersion": "fleetscrub.dev/v1", "kind": "SanitizationConfig", "coverageFloor": 0.999}


def config(driver: str, parameters: object) -> Object:
    """One entry of the allocation's configuration."""
    return {"source": "FromClaim", "opaque": {"driver": driver, "parameters": parameters}}


def full() -> Object:
    """A claim with everything that anybody can put on it, allocated a device of ours."""
    result = {"request": "r", "driver": DRIVER, "pool": "n1", "device": "gpu-0"}
    entry = {"driver": DRIVER, "pool": "n1", "device": "gpu-0", "data": {"token": "1.7"}}
    return {
        "apiVersion": CLAIMS.api_version,
        "kind": CLAIMS.kind,
        "metadata": {
            "name": "c",
            "namespace": "tenant",
            "uid": "u",
            "resourceVersion": "7",
            "finalizers": ["x.example.com/y", MARKS.finalizer],
            "deletionTimestamp": "2023-11-14T22:13:20Z",
            "annotations": {"a": JUNK, pledge.key(MARKS): "me 5"},
            "labels": {"b": JUNK},
            "managedFields": [{"c": JUNK}],
        },
        "spec": {"devices": {"config": [config(DRIVER, {"d": JUNK})]}},
        "status": {
            "allocation": {
                "devices": {
                    "results": [result],
                    "config": [config("x.example.com", {"e": JUNK}), config(DRIVER, HARD)],
                },
                "allocationTimestamp": "2023-11-14T22:13:20Z",
            },
            "devices": [entry, {"driver": "x.example.com", "data": {"f": JUNK}}],
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "p"}],
        },
    }


def test_nothing_that_decides_is_lost_and_little_is_kept() -> None:
    """T10: the coordinator reads the same claim, guards included, from a thousandth of it."""
    whole = full()
    before = copy.deepcopy(whole)
    kept = trimmed(whole, MARKS)
    assert whole == before
    assert len(json.dumps(kept)) < 2_000
    for name in ("name", "uid", "version", "terminating", "allocated_at", "devices", "pods", "held",
                 "others", "finalizer", "conditions", "receipts"):  # fmt: skip
        assert getattr(read(kept, MARKS), name) == getattr(read(whole, MARKS), name), name
    assert kept["metadata"]["finalizers"] == before["metadata"]["finalizers"]
    assert pledge.read(kept, MARKS) == pledge.read(whole, MARKS)
    demands = [dra.read(one, uid="u", driver=DRIVER, pool="n1").demand for one in (kept, whole)]
    assert demands[0] == demands[1]
    assert demands[0].wipe is not None
    assert trimmed(kept, MARKS) == kept


def test_a_pledge_that_is_none_is_not_kept() -> None:
    """T10: our own key is anybody's to write as well."""
    found = full()
    found["metadata"]["annotations"][pledge.key(MARKS)] = JUNK
    assert "annotations" not in trimmed(found, MARKS)["metadata"]


@pytest.mark.parametrize("part", ["metadata", "status", "allocation", "devices", "config"])
@pytest.mark.parametrize("odd", [None, [], "x", [None, 3], {}])
def test_what_cannot_be_understood_stays_as_it_is(part: str, odd: object) -> None:
    """B19: a claim of any shape is kept, for whoever reads it to say what is wrong."""
    found = full()
    devices = found["status"]["allocation"]["devices"]
    homes = {"allocation": found["status"], "devices": found["status"], "config": devices}
    homes.get(part, found)[part] = odd
    kept = trimmed(found, MARKS)
    place = {"metadata": (), "status": (), "config": ("status", "allocation", "devices")}
    for name in place.get(part, ("status",)):
        kept = kept[name]
    assert kept[part] == odd


class Pages:
    """A server that lists one claim on each of two pages."""

    def exchange(self, request: Request) -> Answer:
        last = "continue=next" in request.target
        found = full()
        found["metadata"]["uid"] = "u2" if last else "u1"
        head = {"resourceVersion": "9", "continue": "" if last else "next"}
        return Answer(200, json.dumps({"metadata": head, "items": [found]}).encode())

    def stream(self, request: Request) -> Answer:
        raise NotImplementedError(request.what)

    def close(self) -> None:
        pass


def test_the_cache_keeps_what_is_left_wherever_it_comes_from() -> None:
    """T10: lists (page by page), and answers to our own writes."""
    cluster = KubernetesCluster(Pages(), qps=1000.0, timeout_s=5.0, clock=ManualClock(100.0))
    selection = Selection(trim=partial(trimmed, marks=MARKS))
    assert len(json.dumps(cluster.list(CLAIMS, selection).items)) < 4_000
    cached = Cached(cluster, CLAIMS, selection, clock=ManualClock(100.0))
    cached.refresh()
    newer, third = full(), full()
    newer["metadata"] |= {"uid": "u1", "resourceVersion": "8"}
    third["metadata"] |= {"uid": "u3"}
    cached.learn(newer)
    cached.learn(third)
    assert {uid: one["metadata"]["resourceVersion"] for uid, one in cached.items.items()} == {
        "u1": "8", "u2": "7", "u3": "7"
    }  # fmt: skip
    assert len(json.dumps(dict(cached.items))) < 6_000


def test_of_a_node_name_labels_and_conditions_are_kept() -> None:
    """DESIGN 4: whose it is, whether it is there, and the condition that we keep on it; a thousand
    Nodes with their images would be the largest thing that a coordinator has in memory.
    """
    conditions = [{"type": f"{DRIVER}/RebootRequired", "status": "True"}]
    metadata = {"name": "n", "uid": "u", "resourceVersion": "7", "labels": {"pool": "a"}}
    node: Object = {
        "apiVersion": NODES.api_version,
        "kind": NODES.kind,
        "metadata": {**metadata, "annotations": {"x": JUNK}, "managedFields": [JUNK]},
        "spec": {"taints": [JUNK]},
        "status": {"conditions": conditions, "images": [{"names": [JUNK]}]},
    }
    before = copy.deepcopy(node)
    kept = trimmed_node(node)
    assert kept["metadata"] == metadata
    assert kept["status"] == {"conditions": conditions}
    assert len(json.dumps(kept)) < 400
    assert node == before
    assert trimmed_node({"metadata": None, "status": [1]}) == {}
