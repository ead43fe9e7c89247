"""What every `Cluster` does: the twin in memory, and the client against the stand-in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fleet.core import errors
from fleet.kube.base import (
    CLAIMS,
    NODES,
    SLICES,
    Name,
    Object,
    PatchKind,
    Selection,
    name_of,
    uid_of,
    version_of,
)
from tests.contracts.cluster_benches import (
    Bench,
    allocated,
    claim,
    condition,
    device,
    slice_of,
    status,
)

HERE = Name("a", "default")


# --- reading and creating ----------------------------------------------------


def test_a_missing_object_is_not_found(bench: Bench) -> None:
    """Reading what is not there raises ApiNotFound, whatever the kind."""
    with pytest.raises(errors.ApiNotFound):
        bench.cluster.get(CLAIMS, HERE)
    with pytest.raises(errors.ApiNotFound):
        bench.cluster.get(NODES, Name("node-1"))


def test_a_created_object_is_read_back(bench: Bench) -> None:
    """The server gives uid and resourceVersion; what is read is what was created."""
    made = bench.cluster.create(CLAIMS, claim("a", labels={"team": "x"}))
    found = bench.cluster.get(CLAIMS, HERE)
    assert found == made
    assert uid_of(found)
    assert version_of(found)
    assert (found["kind"], found["apiVersion"]) == ("ResourceClaim", "resource.k8s.io/v1")


def test_a_name_is_taken_once(bench: Bench) -> None:
    """Creating it again raises ApiConflict with the reason AlreadyExists."""
    bench.cluster.create(CLAIMS, claim("a"))
    with pytest.raises(errors.ApiConflict) as caught:
        bench.cluster.create(CLAIMS, claim("a"))
    assert caught.value.reason == "AlreadyExists"


def test_a_name_may_be_generated(bench: Bench) -> None:
    """With generateName each creation gets a name of its own that begins so."""
    names = {name_of(bench.cluster.create(SLICES, slice_of("node-1"))).name for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("00000-gpu.example.com-node-1-") for name in names)


def test_a_body_that_breaks_the_rules_names_its_fields(bench: Bench) -> None:
    """ApiInvalid carries the causes as (reason, field, message)."""
    wrong = slice_of("node-1", "Not_A_Name")
    with pytest.raises(errors.ApiInvalid) as caught:
        bench.cluster.create(SLICES, wrong)
    assert [cause[1] for cause in caught.value.causes] == ["spec.devices[0].name"]


def test_a_body_of_another_kind_is_never_sent(bench: Bench) -> None:
    """The body's kind must be the resource's: InputInvalid."""
    with pytest.raises(errors.InputInvalid):
        bench.cluster.create(SLICES, claim("a"))


def test_lists_select_by_namespace_field_and_label(bench: Bench) -> None:
    """A selection narrows a list on the server."""
    bench.cluster.create(CLAIMS, claim("a", labels={"team": "x"}))
    bench.cluster.create(CLAIMS, claim("b", labels={"team": "y"}))
    other = claim("c")
    other["metadata"]["namespace"] = "other"
    bench.cluster.create(CLAIMS, other)
    bench.cluster.create(SLICES, slice_of("node-1"))
    bench.cluster.create(SLICES, slice_of("node-2"))
    bench.cluster.create(SLICES, slice_of("node-1", driver="other.example.com"))

    def names(selection: Selection) -> list[str]:
        return [name_of(item).name for item in bench.cluster.list(CLAIMS, selection).items]

    assert names(Selection()) == ["a", "b", "c"]
    assert names(Selection("default")) == ["a", "b"]
    assert names(Selection(labels="team in (x)")) == ["a"]
    assert names(Selection(fields="metadata.name=b")) == ["b"]
    fields = "spec.nodeName=node-1,spec.driver=gpu.example.com"
    assert len(bench.cluster.list(SLICES, Selection(fields=fields)).items) == 1


def test_a_selector_nobody_understands_is_invalid(bench: Bench) -> None:
    """A field that cannot be selected by raises ApiInvalid, for a list and for a watch."""
    selection = Selection(fields="spec.unheardOf=1")
    with pytest.raises(errors.ApiInvalid):
        bench.cluster.list(SLICES, selection)
    with pytest.raises(errors.ApiInvalid):
        list(bench.cluster.watch(SLICES, selection, timeout_s=5))


def test_a_long_list_is_whole(bench: Bench) -> None:
    """More objects than fit one page are all delivered, each with kind and apiVersion."""
    for number in range(1203):
        body = {"metadata": {"name": f"node-{number}"}}
        bench.engine.seed(NODES, body)
    listing = bench.cluster.list(NODES)
    assert len({name_of(item) for item in listing.items}) == 1203
    assert {item["kind"] for item in listing.items} == {"Node"}
    assert listing.resource_version == bench.engine.version


# --- guards ---------------------------------------------------------------


def test_a_replacement_carries_its_version(bench: Bench) -> None:
    """B16: without resourceVersion InputInvalid, with a stale one a conflict; nothing is done."""
    made = bench.cluster.create(CLAIMS, claim("a"))
    bare = claim("a", labels={"x": "y"})
    with pytest.raises(errors.InputInvalid):
        bench.cluster.replace(CLAIMS, bare)
    changed = {**made, "metadata": {**made["metadata"], "labels": {"x": "1"}}}
    bench.cluster.replace(CLAIMS, changed)
    with pytest.raises(errors.ApiConflict) as caught:
        bench.cluster.replace(CLAIMS, changed | {"metadata": {**changed["metadata"], "labels": {}}})
    assert caught.value.reason == "Conflict"
    assert bench.cluster.get(CLAIMS, HERE)["metadata"]["labels"] == {"x": "1"}


def test_of_many_writers_one_wins(bench: Bench) -> None:
    """B16, B22: of eight replacements of one version exactly one is carried out."""
    made = bench.cluster.create(CLAIMS, claim("a"))

    def write(number: int) -> bool:
        body = {**made, "metadata": {**made["metadata"], "labels": {"n": str(number)}}}
        try:
            bench.cluster.replace(CLAIMS, body)
        except errors.ApiConflict:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(write, range(8))) == 1


def test_an_apply_honours_its_guards(bench: Bench) -> None:
    """A stale resourceVersion is a conflict, another UID invalid; the right ones pass."""
    old = allocated(bench, "d0")
    new = bench.cluster.apply(
        CLAIMS, status("a", device("d0", data={"n": 1})), manager="m", subresource="status"
    )
    entry = device("d0", data={"n": 2})
    stale = status("a", entry, resourceVersion=version_of(old))
    with pytest.raises(errors.ApiConflict):
        bench.cluster.apply(CLAIMS, stale, manager="m", subresource="status")
    other = status("a", entry, uid="another")
    with pytest.raises(errors.ApiInvalid):
        bench.cluster.apply(CLAIMS, other, manager="m", subresource="status")
    right = status("a", entry, uid=uid_of(new), resourceVersion=version_of(new))
    done = bench.cluster.apply(CLAIMS, right, manager="m", subresource="status")
    assert done["status"]["devices"][0]["data"] == {"n": 2}


def test_an_apply_owns_exactly_what_it_sends(bench: Bench) -> None:
    """What a later apply leaves out is removed; what others wrote stays; force takes over."""
    allocated(bench, "d0", "d1")

    def apply(manager: str, *entries: Object) -> list[str]:
        body = status("a", *entries)
        done = bench.cluster.apply(CLAIMS, body, manager=manager, subresource="status")
        return [item["device"] for item in done["status"].get("devices", [])]

    assert apply("one", device("d0", conditions=[condition()])) == ["d0"]
    assert apply("two", device("d1", conditions=[condition()])) == ["d0", "d1"]
    assert apply("one") == ["d1"]
    assert apply("one", device("d1", conditions=[condition("False")])) == ["d1"]
    found = bench.cluster.get(CLAIMS, HERE)["status"]["devices"][0]["conditions"]
    assert [item["status"] for item in found] == ["False"]


def test_an_apply_creates_objects_but_no_status(bench: Bench) -> None:
    """An apply of a missing object creates it; of a missing object's status it is ApiNotFound."""
    body = slice_of("node-1", "d0")
    body["metadata"] = {"name": "s1"}
    bench.cluster.apply(SLICES, body, manager="m")
    assert bench.cluster.get(SLICES, Name("s1"))["spec"]["devices"] == [{"name": "d0"}]
    with pytest.raises(errors.ApiNotFound):
        bench.cluster.apply(CLAIMS, status("a"), manager="m", subresource="status")


def test_a_malformed_apply_is_a_failure_not_an_absence(bench: Bench) -> None:
    """The server's 500 to a malformed body is ApiFailed: nobody retries it as a loss."""
    allocated(bench, "d0")
    body = status("a", device("d0", unheardOf=1))
    with pytest.raises(errors.ApiFailed):
        bench.cluster.apply(CLAIMS, body, manager="m", subresource="status")


def test_other_peoples_fields_survive_every_write(bench: Bench) -> None:
    """B19, B76, invariant 34: unknown fields and another driver's entries survive every write."""
    results = [
        {"request": "gpu", **device("d0")},
        {"request": "gpu", **device("n0", driver="nic.example.com")},
    ]
    body = claim("a")
    body["status"] = {
        "futureField": {"made": ["later"]},
        "allocation": {"devices": {"results": results}},
        "devices": [device("n0", driver="nic.example.com", conditions=[condition()])],
    }
    bench.engine.seed(CLAIMS, body)
    cluster = bench.cluster
    cluster.apply(
        CLAIMS,
        status("a", device("d0", conditions=[condition()])),
        manager="m",
        subresource="status",
    )
    cluster.patch(CLAIMS, HERE, {"metadata": {"labels": {"a": "b"}}}, kind=PatchKind.MERGE)
    found = cluster.get(CLAIMS, HERE)
    found["status"]["devices"][1]["data"] = {"seen": True}
    cluster.replace(CLAIMS, found, subresource="status")
    operations = [{"op": "add", "path": "/metadata/labels/c", "value": "d"}]
    cluster.patch(CLAIMS, HERE, operations, kind=PatchKind.JSON)
    end = cluster.get(CLAIMS, HERE)
    assert end["status"]["futureField"] == {"made": ["later"]}
    drivers = [item["driver"] for item in end["status"]["devices"]]
    assert drivers == ["nic.example.com", "gpu.example.com"]
    assert end["metadata"]["labels"] == {"a": "b", "c": "d"}


def test_removing_one_reservation_leaves_the_others(bench: Bench) -> None:
    """B76: a JSON patch with a test removes exactly one entry of reservedFor."""
    made = allocated(bench, "d0")
    made["status"]["reservedFor"] = [
        {"resource": "pods", "name": name, "uid": f"uid-{name}"} for name in ("p", "q")
    ]
    bench.cluster.replace(CLAIMS, made, subresource="status")
    operations = [
        {"op": "test", "path": "/status/reservedFor/0/uid", "value": "uid-p"},
        {"op": "remove", "path": "/status/reservedFor/0"},
    ]
    arguments = {"kind": PatchKind.JSON, "subresource": "status"}
    done = bench.cluster.patch(CLAIMS, HERE, operations, **arguments)  # type: ignore[arg-type]
    assert [item["name"] for item in done["status"]["reservedFor"]] == ["q"]
    with pytest.raises(errors.ApiInvalid):
        bench.cluster.patch(CLAIMS, HERE, operations, **arguments)  # type: ignore[arg-type]


def test_the_kind_of_a_patch_fits_its_body(bench: Bench) -> None:
    """B76: a mapping is a merge patch, a sequence a JSON patch; anything else is InputInvalid."""
    bench.cluster.create(CLAIMS, claim("a"))
    with pytest.raises(errors.InputInvalid):
        bench.cluster.patch(CLAIMS, HERE, {"metadata": {}}, kind=PatchKind.JSON)
    with pytest.raises(errors.InputInvalid):
        bench.cluster.patch(CLAIMS, HERE, [], kind=PatchKind.MERGE)


def test_a_merge_patch_can_be_guarded(bench: Bench) -> None:
    """B16: metadata.resourceVersion in a merge patch is a guard."""
    made = bench.cluster.create(CLAIMS, claim("a"))
    body = {"metadata": {"resourceVersion": version_of(made), "labels": {"a": "1"}}}
    bench.cluster.patch(CLAIMS, HERE, body, kind=PatchKind.MERGE)
    body = {"metadata": {"resourceVersion": version_of(made), "labels": {"a": "2"}}}
    with pytest.raises(errors.ApiConflict):
        bench.cluster.patch(CLAIMS, HERE, body, kind=PatchKind.MERGE)


# --- removing ---------------------------------------------------------------


def test_a_delete_is_idempotent_but_guarded(bench: Bench) -> None:
    """Gone already is fine; another UID or version under the name is a conflict."""
    bench.cluster.delete(CLAIMS, HERE)
    made = bench.cluster.create(CLAIMS, claim("a"))
    with pytest.raises(errors.ApiConflict):
        bench.cluster.delete(CLAIMS, HERE, uid="another")
    with pytest.raises(errors.ApiConflict):
        bench.cluster.delete(CLAIMS, HERE, resource_version="1")
    bench.cluster.delete(CLAIMS, HERE, uid=uid_of(made), resource_version=version_of(made))
    bench.cluster.delete(CLAIMS, HERE, uid=uid_of(made))
    with pytest.raises(errors.ApiNotFound):
        bench.cluster.get(CLAIMS, HERE)


def test_a_finalizer_keeps_an_object_until_it_is_removed(bench: Bench) -> None:
    """B75: delete sets deletionTimestamp; the last finalizer's removal removes the object."""
    bench.cluster.create(CLAIMS, claim("a", finalizers=["x.example.com/hold"]))
    bench.cluster.delete(CLAIMS, HERE)
    assert bench.cluster.get(CLAIMS, HERE)["metadata"]["deletionTimestamp"]
    body = {"metadata": {"finalizers": None}}
    bench.cluster.patch(CLAIMS, HERE, body, kind=PatchKind.MERGE)
    with pytest.raises(errors.ApiNotFound):
        bench.cluster.get(CLAIMS, HERE)
