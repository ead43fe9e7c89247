"""What a real API server answers to odd bodies, guards and lists (measured on 1.36.2).

These rows came from putting the same requests to the stand-in and to a real cluster until both
agreed; each was wrong in the stand-in once.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Any

import pytest

from fleet.kube.base import Object
from fleet.kube.client import encoded
from tests.contracts.api_ground import (
    CLAIMS,
    DRIVER,
    HEAD,
    LEASES,
    SLICES,
    Ground,
    allocation,
    condition,
    entry,
    reservation,
)
from tests.contracts.api_server import APPLY, JSON_PATCH, MERGE, STRATEGIC

EXACT = {"name": "gpu", "exactly": {"deviceClassName": "rows"}}
NAIVE = "2026-11-29T13:13:23"


def body(**metadata: Any) -> Object:
    """The body of a new claim."""
    name = f"row-{secrets.token_hex(5)}"
    return {
        **HEAD,
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {"devices": {"requests": [EXACT]}},
    }


@pytest.mark.parametrize(
    ("metadata", "code", "field"),
    [
        ({"resourceVersion": "5"}, 500, ""),
        ({"uid": "mine"}, 201, ""),
        ({"name": "A_b"}, 422, "metadata.name"),
        ({"namespace": "other"}, 400, ""),
        ({"finalizers": ["hold"]}, 422, "metadata.finalizers[0]"),
        ({"labels": {"a b": "c"}}, 422, "metadata.labels"),
        ({"ownerReferences": [{"uid": "x"}]}, 422, "metadata.ownerReferences.apiVersion"),
    ],
    ids=["version", "uid", "name", "namespace", "finalizer", "label", "owner"],
)
def test_metadata_of_a_new_object(
    ground: Ground, metadata: dict[str, Any], code: int, field: str
) -> None:
    """A version is a 500, a uid is ignored, a finalizer needs a domain."""
    reply = ground.send("POST", CLAIMS, body(**metadata))
    assert reply.code == code
    assert not field or field in [cause[1] for cause in reply.causes]


def test_a_request_is_for_one_device_unless_it_says_otherwise(ground: Ground) -> None:
    """allocationMode and count are filled in: what was sent is not what is read."""
    found = ground.send("POST", CLAIMS, body()).ok()
    exactly = found["spec"]["devices"]["requests"][0]["exactly"]
    assert (exactly["allocationMode"], exactly["count"]) == ("ExactCount", 1)


@pytest.mark.parametrize(
    ("content_type", "sent", "code"),
    [
        (MERGE, [1], 400),
        (MERGE, {"metadata": {"name": "other"}}, 400),
        (MERGE, {"kind": "Pod"}, 422),
        (MERGE, {"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}}, 422),
        (MERGE, {"unheardOf": 1}, 200),
        (JSON_PATCH, {}, 400),
        (JSON_PATCH, [{"op": "dance", "path": "/a"}], 422),
        (JSON_PATCH, [{"op": "remove", "path": "/metadata/annotations"}], 422),
        (JSON_PATCH, [{"op": "replace", "path": "/metadata/annotations", "value": {}}], 200),
        (JSON_PATCH, [{"op": "add", "path": "/metadata/no/where", "value": 1}], 422),
        (APPLY, [1], 400),
        (APPLY, {"metadata": {}}, 400),
        (APPLY, {**HEAD, "kind": "Pod", "metadata": {}}, 400),
        (APPLY, {**HEAD, "metadata": {"name": "other"}}, 400),
    ],
)
def test_a_patch_that_makes_little_sense(
    ground: Ground, content_type: str, sent: Any, code: int
) -> None:
    """Unknown fields are dropped in silence, and a JSON patch may replace what is not there."""
    claim = ground.claim()
    reply = ground.send("PATCH", f"{claim}?fieldManager=rows", sent, content_type=content_type)
    assert reply.code == code


def test_force_belongs_to_apply(ground: Ground) -> None:
    """force=true on a merge patch: 422."""
    claim = ground.claim()
    assert ground.send("PATCH", f"{claim}?force=true", {}, content_type=MERGE).code == 422


@pytest.mark.parametrize(
    "fields", [{"status": True}, {"lastTransitionTime": NAIVE}], ids=["boolean", "time"]
)
def test_wrong_types_are_answered_by_the_way_they_came(
    ground: Ground, fields: dict[str, Any]
) -> None:
    """A merge patch of a malformed value: 422 on 'patch'; a PUT: 400; an apply: 500."""
    claim = ground.claim("d0")
    bad = entry("d0", condition(**fields))
    merged = ground.merge(f"{claim}/status", {"status": {"devices": [bad]}})
    assert (merged.code, merged.causes[0][1]) == (422, "patch")
    found = ground.get(claim)
    found["status"]["devices"] = [bad]
    assert ground.put_status(claim, found).code == 400
    assert ground.confirm(claim, bad).code == 500


@pytest.mark.parametrize(
    ("missing", "causes"),
    [
        ({"pool"}, {"status.devices[0].pool", "status.devices[0]"}),
        (
            {"driver", "pool", "device"},
            {
                "status.devices[0].driver",
                "status.devices[0].pool",
                "status.devices[0].device",
                "status.devices[0]",
            },
        ),
    ],
)
def test_an_entry_without_its_keys_is_refused(
    ground: Ground, missing: set[str], causes: set[str]
) -> None:
    """Apply takes any subset of the keys; validation names what is missing: 422, no 500."""
    claim = ground.claim("d0")
    bare = {key: value for key, value in entry("d0", data={}).items() if key not in missing}
    reply = ground.confirm(claim, bare)
    assert reply.code == 422
    assert {cause[1] for cause in reply.causes} == causes


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"driver": "A_"}, "driver"),
        ({"pool": "b b"}, "pool"),
        ({"device": "C"}, "device"),
        ({"shareID": "x"}, "shareID"),
    ],
)
def test_an_allocation_has_its_form(ground: Ground, change: Object, field: str) -> None:
    """Names of driver, pool and device are checked, a share is a UUID: 422."""
    wanted = allocation("d0")
    wanted["devices"]["results"][0] |= change
    reply = ground.allocate(ground.claim(), wanted)
    assert reply.code == 422
    assert [cause[1] for cause in reply.causes] == [f"status.allocation.devices.results[0].{field}"]


def test_an_entry_without_conditions_reads_back_with_null(ground: Ground) -> None:
    """status.devices[].conditions is null, not absent: a reader must take both for empty."""
    claim = ground.claim("d0")
    (found,) = ground.confirm(claim, entry("d0", data={"a": 1})).ok()["status"]["devices"]
    assert found["conditions"] is None


def test_entries_come_in_the_order_of_the_last_apply(ground: Ground) -> None:
    """Entries both know are ordered by the apply; those only the server knows stay before."""
    claim = ground.claim("d0", "d1", "d2")
    ground.confirm(claim, entry("d0"), entry("d1"), entry("d2"), owner="one").ok()
    ground.confirm(claim, entry("d2"), entry("d0"), owner="two").ok()
    found = [item["device"] for item in ground.status(claim)["devices"]]
    assert found == ["d1", "d2", "d0"]


def test_an_entry_goes_with_what_others_patched_inside(ground: Ground) -> None:
    """5: who patched one field of an entry does not keep it when its applier leaves it out."""
    claim = ground.claim("d0")
    ground.confirm(claim, entry("d0", condition(), data={"a": 1}), owner="plugin").ok()
    change = [{"op": "replace", "path": "/status/devices/0/data", "value": {"a": 2}}]
    ground.send("PATCH", f"{claim}/status", change, content_type=JSON_PATCH).ok()
    assert ground.confirm(claim, owner="plugin").code == 200
    assert "devices" not in ground.status(claim)


def test_a_strategic_patch_merges_reservations_only(ground: Ground) -> None:
    """B76: reservedFor merges by uid and needs $patch to lose one; devices are replaced."""
    claim = ground.claim("d0", "d1")
    both = [reservation("a"), reservation("b")]
    ground.apply(claim, {"reservedFor": both, "devices": [entry("d0")]}).ok()

    def strategic(status: Object) -> Object:
        path = f"{claim}/status"
        sent = {"status": status}
        found: Object = ground.send("PATCH", path, sent, content_type=STRATEGIC).ok()["status"]
        return found

    names = [item["name"] for item in strategic({"reservedFor": [reservation("c")]})["reservedFor"]]
    assert sorted(names) == ["a", "b", "c"]
    gone = {"uid": "uid-of-a", "$patch": "delete"}
    names = [item["name"] for item in strategic({"reservedFor": [gone]})["reservedFor"]]
    assert sorted(names) == ["b", "c"]
    left = strategic({"devices": [entry("d1")]})["devices"]
    assert [item["device"] for item in left] == ["d1"]


@pytest.mark.parametrize(("guard", "code"), [({"uid": "x"}, 409), ({"resourceVersion": "1"}, 201)])
def test_only_a_uid_keeps_an_apply_from_creating(
    ground: Ground, guard: dict[str, str], code: int
) -> None:
    """Apply to a missing object: 409 with a uid; with a resourceVersion it is created (201)."""
    sent = body()
    name = sent["metadata"]["name"]
    sent["metadata"] = {"name": name, **guard}
    path = f"{CLAIMS}/{name}?fieldManager=rows"
    assert ground.send("PATCH", path, sent, content_type=APPLY).code == code


def test_a_version_that_is_no_number_is_a_500(ground: Ground) -> None:
    """PUT with metadata.resourceVersion "abc": 500; versions are only opaque to clients."""
    claim = ground.claim()
    found = ground.get(claim)
    found["metadata"]["resourceVersion"] = "abc"
    assert ground.send("PUT", claim, found).code == 500


def test_a_deleted_claim_or_slice_is_sent_a_lease_is_not(ground: Ground) -> None:
    """DELETE answers with the object for pods, claims and slices, with a Status for leases."""
    pods = "/api/v1/namespaces/default/pods"
    body = {
        "metadata": {"generateName": "row-"},
        "spec": {"containers": [{"name": "main", "image": "none"}], "schedulerName": "nobody"},
    }
    pod = ground.send("POST", pods, body).ok()["metadata"]["name"]
    assert ground.send("DELETE", f"{pods}/{pod}?gracePeriodSeconds=0").body["kind"] == "Pod"
    assert ground.send("DELETE", ground.claim()).body["kind"] == "ResourceClaim"
    made = ground.publish([{"name": "d0"}]).ok()["metadata"]["name"]
    assert ground.send("DELETE", f"{SLICES}/{made}").body["kind"] == "ResourceSlice"
    lease = ground.send("POST", LEASES, ground.lease()).ok()["metadata"]["name"]
    gone = ground.send("DELETE", f"{LEASES}/{lease}").body
    assert (gone["kind"], gone["status"]) == ("Status", "Success")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("fieldSelector=spec.unheardOf%3D1", 400),
        ("fieldSelector=spec.unheardOf", 400),
        ("labelSelector=a%20%3D%20%3D%20b", 400),
        ("limit=abc", 400),
        ("limit=1&continue=abc", 400),
        ("watch=1&resourceVersion=abc", 500),
    ],
)
def test_a_list_that_cannot_be_understood(ground: Ground, query: str, code: int) -> None:
    """Selectors, limits and tokens nobody understands are refused, not ignored."""
    assert ground.send("GET", f"{CLAIMS}?{query}").code == code


def test_the_items_of_a_list_carry_no_kind(ground: Ground) -> None:
    """Entries of a list have neither kind nor apiVersion; pages end with a token."""
    ground.claim()
    ground.claim()
    found = ground.send("GET", f"{CLAIMS}?limit=1").ok()
    assert found["kind"] == "ResourceClaimList"
    assert not {"kind", "apiVersion"} & set(found["items"][0])
    token = found["metadata"]["continue"]
    following = ground.send("GET", f"{CLAIMS}?limit=1&continue={token}").ok()
    assert len(following["items"]) == 1
    assert following["items"][0]["metadata"]["uid"] != found["items"][0]["metadata"]["uid"]


def test_a_watch_from_too_far_back_is_told_in_the_stream(ground: Ground) -> None:
    """410 comes as an ERROR event in a 200 answer: Status, reason Expired."""
    ground.claim()
    reply = ground.send("GET", f"{CLAIMS}?watch=1&resourceVersion=1&timeoutSeconds=2")
    assert (reply.code, reply.body["type"]) == (200, "ERROR")
    status = reply.body["object"]
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")


def test_a_watch_without_version_begins_with_what_there_is(ground: Ground) -> None:
    """ADDED events of all objects come first; objects in a watch carry their kind."""
    ground.claim()
    reply = ground.send("GET", f"{CLAIMS}?watch=1&timeoutSeconds=1")
    assert reply.body["type"] == "ADDED"
    assert reply.body["object"]["kind"] == "ResourceClaim"


def test_what_is_not_served_is_a_404(ground: Ground) -> None:
    """Unknown kinds, unknown subresources, the status of a kind that has none."""
    claim = ground.claim()
    for path in ("/apis/resource.k8s.io/v1/unheardof", f"{claim}/unheardof", f"{SLICES}/x/status"):
        assert ground.send("GET", path).code == 404


def test_a_create_is_sent_to_the_collection(ground: Ground) -> None:
    """POST to an object: 405."""
    claim = ground.claim()
    assert ground.send("POST", claim, body()).code == 405


PARAMETERS = {"zone": "a", "kind": "K", "apiVersion": "v"}
"""Not in the order in which the server writes keys."""


def configured(ground: Ground, spelled: Callable[[object], bytes], zone: str = "a") -> str:
    """A claim with opaque parameters, allocated with a copy of them; its path."""
    made = body()
    opaque = {"driver": DRIVER, "parameters": {**PARAMETERS, "zone": zone}}
    made["spec"]["devices"]["config"] = [{"opaque": opaque}]
    ground.send("POST", CLAIMS, spelled(made)).ok()
    path = f"{CLAIMS}/{made['metadata']['name']}"
    found = ground.get(path)
    found["spec"] = made["spec"]
    given = allocation("d0")
    given["devices"]["config"] = [{"source": "FromClaim", "opaque": opaque}]
    found["status"] = {"allocation": given}
    ground.send("PUT", f"{path}/status", spelled(found)).ok()
    return path


def test_f61_an_apply_changes_the_order_of_keys_in_raw_json(ground: Ground) -> None:
    """F61: any apply to a claim's status writes its allocation out anew, keys sorted, and is
    refused because that is immutable; a merge patch leaves the order as it came."""
    claim = configured(ground, encoded)
    reply = ground.confirm(claim, entry("d0", condition()))
    assert reply.code == 422
    assert "status.allocation" in {cause[1] for cause in reply.causes}
    ground.merge(f"{claim}/status", {"status": {"devices": [entry("d0", condition())]}}).ok()
    (config,) = ground.status(claim)["allocation"]["devices"]["config"]
    assert list(config["opaque"]["parameters"]) == list(PARAMETERS)
    ground.merge(claim, {"metadata": {"labels": {"a": "b"}}}).ok()


def test_f61_spaces_in_raw_json_are_changed_by_any_patch(ground: Ground) -> None:
    """F61: opaque parameters sent with spaces are kept with them, shown without, and changed by
    every patch of status or metadata alike: 422, though the patch names nothing of them."""
    claim = configured(ground, lambda found: json.dumps(found).encode())
    said = {"status": {"devices": [entry("d0", condition())]}}
    assert ground.confirm(claim, entry("d0", condition())).code == 422
    reply = ground.merge(f"{claim}/status", said)
    assert reply.code == 422
    assert "status.allocation" in {cause[1] for cause in reply.causes}
    reply = ground.merge(claim, {"metadata": {"labels": {"a": "b"}}})
    assert reply.code == 422
    assert "spec" in {cause[1] for cause in reply.causes}


def test_f61_what_our_client_sends_is_changed_by_no_patch(ground: Ground) -> None:
    """F61: a claim and an allocation written as our own client writes JSON, with every mark that
    the server spells its own way, take a patch afterwards."""
    claim = configured(ground, encoded, "<&> \u00fc \u2028")
    ground.merge(f"{claim}/status", {"status": {"devices": [entry("d0", condition())]}}).ok()
    ground.merge(claim, {"metadata": {"labels": {"a": "b"}}}).ok()
