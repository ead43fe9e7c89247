"""Rules of the engine beyond the measured rows (tests/contracts/test_api_rows*)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fleet.core.clock import ManualClock
from fleet.kube.base import CLAIMS, NODES, PODS, SLICES, Name, Object, Resource, Selection
from tests.lab.apiserver.access import Access, Caller
from tests.lab.apiserver.engine import APPLY_YAML, JSON, MERGE, Engine, Options, Target
from tests.lab.apiserver.gates import GATES_1_34, Features
from tests.lab.apiserver.refusal import Refusal
from tests.lab.apiserver.removal import Preconditions

NODE = Target(NODES, Name("n"))


def slice_of(node: str, **spec: object) -> Object:
    """A slice."""
    return {
        "metadata": {"generateName": f"{node}-"},
        "spec": {
            "driver": "d.example.com",
            "nodeName": node,
            "pool": {"name": node, "resourceSliceCount": 1},
            **spec,
        },
    }


def refused(call: object, code: int) -> Refusal:
    """The refusal a call raises."""
    assert callable(call)
    with pytest.raises(Refusal) as caught:
        call()
    assert caught.value.code == code
    return caught.value


def test_an_unknown_kind_is_a_404() -> None:
    """The server does not serve what it does not know."""
    widgets = Resource("example.com", "v1", "widgets", "Widget", namespaced=False)
    refused(lambda: Engine().list(widgets), 404)


def test_generation_counts_changes_of_the_spec_only() -> None:
    """Labels do not count, the spec does; a write of nothing changes nothing."""
    engine = Engine()
    made = engine.create(SLICES, slice_of("n"))
    target = Target(SLICES, Name(made["metadata"]["name"]))
    labelled = engine.patch(target, MERGE, {"metadata": {"labels": {"a": "b"}}})
    assert labelled["metadata"]["generation"] == 1
    changed = engine.patch(target, MERGE, {"spec": {"devices": [{"name": "d0"}]}})
    assert changed["metadata"]["generation"] == 2
    again = engine.patch(target, MERGE, {"spec": {"devices": [{"name": "d0"}]}})
    assert again == changed


def test_a_new_object_carries_no_version() -> None:
    """A resourceVersion in a new body is refused: it is no new object."""
    body = slice_of("n")
    body["metadata"]["resourceVersion"] = "7"
    refused(lambda: Engine().create(SLICES, body), 500)


def test_a_missing_object_is_not_created_by_a_put() -> None:
    """Except for leases and events (rows 11)."""
    refused(lambda: Engine().replace(NODE, {"metadata": {"name": "n"}}), 404)


def test_only_a_uid_keeps_an_apply_from_creating() -> None:
    """A uid guards against that (409); a resourceVersion does not, it is ignored (measured)."""
    engine = Engine()
    options = Options(manager="m")
    head = {"apiVersion": "v1", "kind": "Node"}
    guarded = {**head, "metadata": {"name": "n", "uid": "u"}}
    refused(lambda: engine.patch(NODE, APPLY_YAML, guarded, options), 409)
    stale = {**head, "metadata": {"name": "n", "resourceVersion": "1"}}
    made = engine.patch(NODE, APPLY_YAML, stale, options)
    assert made["metadata"]["uid"]


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [
        ("text/plain", {}, 415),
        (MERGE, [], 400),
        (JSON, {}, 400),
        (APPLY_YAML, [], 400),
        (APPLY_YAML, {"metadata": {"name": "n"}}, 400),
        (MERGE, {"kind": "Pod"}, 422),
        (MERGE, {"metadata": {"name": "other"}}, 400),
        (APPLY_YAML, {"apiVersion": "v1", "kind": "Pod", "metadata": {}}, 400),
    ],
)
def test_a_patch_that_makes_no_sense_is_refused(content_type: str, body: object, code: int) -> None:
    """Unknown types, bodies of the wrong form, bodies of another kind."""
    engine = Engine()
    engine.seed(NODES, {"metadata": {"name": "n"}})
    refused(lambda: engine.patch(NODE, content_type, body, Options(manager="m")), code)


def test_force_belongs_to_apply() -> None:
    """422 for any other patch."""
    engine = Engine()
    engine.seed(NODES, {"metadata": {"name": "n"}})
    found = refused(lambda: engine.patch(NODE, MERGE, {}, Options(force=True)), 422)
    assert found.causes[0].field == "force"


def test_a_forced_delete_of_a_pod_is_immediate() -> None:
    """B01: grace 0 removes the object while its container may still run."""
    engine = Engine()
    pod = {"metadata": {"name": "p", "namespace": "x"}, "spec": {"nodeName": "n"}}
    engine.create(PODS, pod)
    target = Target(PODS, Name("p", "x"))
    staying = engine.delete(target)
    assert staying["metadata"]["deletionTimestamp"]
    assert engine.has(target)
    engine.delete(target, Preconditions(grace_s=0))
    assert not engine.has(target)


def test_a_collection_is_deleted_by_selection() -> None:
    """B34: kubelet's deletecollection of a node's slices."""
    engine = Engine()
    for node in ("a", "a", "b"):
        engine.create(SLICES, slice_of(node))
    assert engine.delete_collection(SLICES, Selection(fields="spec.nodeName=a")) == 2
    left = engine.list(SLICES).items
    assert [item["spec"]["nodeName"] for item in left] == ["b"]


def test_garbage_goes_with_its_owner() -> None:
    """B34: slices of a Node that was re-created under a new UID are collected, transitively."""
    engine = Engine()
    node = engine.create(NODES, {"metadata": {"name": "n"}})
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": node["metadata"]["uid"]}
    body = slice_of("n")
    body["metadata"]["ownerReferences"] = [owner]
    made = engine.create(SLICES, body)
    child = slice_of("m")
    child["metadata"]["ownerReferences"] = [{**owner, "uid": made["metadata"]["uid"]}]
    engine.create(SLICES, child)
    assert engine.collect_garbage() == 0
    engine.delete(NODE)
    engine.create(NODES, {"metadata": {"name": "n"}})
    assert engine.collect_garbage() == 2
    assert engine.list(SLICES).items == ()


def test_rights_are_asked_before_anything_else() -> None:
    """A caller without rights learns nothing, not even whether the object exists."""
    engine = Engine(access=Access())
    stranger = Options(Caller("nobody"), manager="m")
    calls = [
        lambda: engine.get(NODE, stranger),
        lambda: engine.list(NODES, Selection(), stranger),
        lambda: engine.watch(NODES, options=stranger),
        lambda: engine.create(NODES, {"metadata": {"name": "n"}}, options=stranger),
        lambda: engine.replace(NODE, {}, stranger),
        lambda: engine.patch(NODE, MERGE, {}, stranger),
        lambda: engine.delete(NODE, options=stranger),
        lambda: engine.delete_collection(NODES, Selection(), stranger),
    ]
    for call in calls:
        refused(call, 403)


def test_an_older_server_drops_fields_in_silence() -> None:
    """A publisher must compare the answer with what it sent: on 1.34 taints are gone."""
    engine = Engine(features=Features(gates=GATES_1_34))
    taint = {"key": "a.b/c", "effect": "NoSchedule"}
    made = engine.create(SLICES, slice_of("n", devices=[{"name": "d0", "taints": [taint]}]))
    assert made["spec"]["devices"] == [{"name": "d0"}]


def test_what_comes_out_is_the_callers_own() -> None:
    """Changing an answer changes nothing on the server."""
    engine = Engine(clock=ManualClock(0.0))
    made = engine.create(NODES, {"metadata": {"name": "n", "labels": {"a": "b"}}})
    made["metadata"]["labels"]["a"] = "changed"
    engine.list(NODES).items[0]["metadata"]["labels"]["a"] = "changed"
    assert engine.get(NODE)["metadata"]["labels"] == {"a": "b"}


def test_a_version_that_is_no_number_is_a_500() -> None:
    """Versions are numbers to the server, whatever they are to clients."""
    engine = Engine()
    refused(lambda: engine.watch(NODES, since="abc"), 500)
    made = engine.create(NODES, {"metadata": {"name": "n"}})
    made["metadata"]["resourceVersion"] = "abc"
    refused(lambda: engine.replace(NODE, made), 500)


def test_every_write_of_many_threads_is_kept() -> None:
    """Sixteen threads append to one object under its version: none is lost (B31)."""
    engine = Engine()
    engine.seed(CLAIMS, {"metadata": {"name": "c", "namespace": "x", "annotations": {}}})
    target = Target(CLAIMS, Name("c", "x"))

    def add(number: int) -> None:
        while True:
            found = engine.get(target)
            found["metadata"].setdefault("annotations", {})[f"n{number}"] = "x"
            try:
                engine.replace(target, found)
            except Refusal as refusal:
                if refusal.code != 409:
                    raise
            else:
                return

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(add, range(16)))
    assert len(engine.get(target)["metadata"]["annotations"]) == 16
