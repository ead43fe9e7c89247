"""What a real API server answers to writes of a claim's status (experiments 1.1, 2, 3).

Each row was measured on Kubernetes 1.36.2; each is put to the stand-in and, when there is one, to
the real cluster, so that the stand-in cannot become what we would like a server to be.
"""

from __future__ import annotations

import pytest

from tests.contracts.api_ground import (
    CLAIMS,
    DONE,
    FAILED,
    HEAD,
    HOLD,
    Ground,
    allocation,
    condition,
    entry,
    reservation,
)
from tests.contracts.api_server import APPLY, JSON, JSON_PATCH, MERGE, STRATEGIC


def test_apply_with_a_field_manager_owns_its_entries(ground: Ground) -> None:
    """1.1: server-side apply of conditions is answered 200 and owns them entry by entry."""
    claim = ground.claim("d0")
    found = ground.confirm(claim, entry("d0", condition()), owner="scrubber").ok()
    owned = [item for item in found["metadata"]["managedFields"] if item["manager"] == "scrubber"]
    assert [item["operation"] for item in owned] == ["Apply"]
    assert owned[0]["subresource"] == "status"
    assert ground.conditions(claim) == {DONE: "True"}


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (MERGE, {"status": {"devices": [entry("d1", condition())]}}),
        (JSON_PATCH, [{"op": "add", "path": "/status/devices", "value": [entry("d1")]}]),
    ],
    ids=["merge", "json"],
)
def test_a_plain_patch_replaces_the_whole_list(
    ground: Ground, content_type: str, body: object
) -> None:
    """1.1, B76: merge and JSON patches of status.devices lose the other writers' entries."""
    claim = ground.claim("d0", "d1")
    ground.confirm(claim, entry("d0", condition())).ok()
    reply = ground.send("PATCH", f"{claim}/status", body, content_type=content_type)
    assert reply.code == 200
    assert [item["device"] for item in ground.status(claim)["devices"]] == ["d1"]


def test_a_strategic_merge_patch_is_taken(ground: Ground) -> None:
    """1.1: application/strategic-merge-patch+json is answered 200."""
    claim = ground.claim("d0")
    body = {"status": {"devices": [entry("d0", condition())]}}
    reply = ground.send("PATCH", f"{claim}/status", body, content_type=STRATEGIC)
    assert reply.code == 200
    assert ground.conditions(claim) == {DONE: "True"}


def test_a_put_of_what_was_read_is_taken_once(ground: Ground) -> None:
    """1.1, B16: PUT of a GET result: 200; again with the same resourceVersion: 409 Conflict."""
    claim = ground.claim("d0")
    found = ground.get(claim)
    found["status"]["devices"] = [entry("d0", condition())]
    assert ground.put_status(claim, found).code == 200
    found["status"]["devices"] = [entry("d0", condition(status="False"))]
    stale = ground.put_status(claim, found)
    assert (stale.code, stale.reason) == (409, "Conflict")
    assert "the object has been modified" in stale.message


def test_a_put_that_loses_a_field_of_the_allocation_is_refused(ground: Ground) -> None:
    """1.1, B19: PUT without a field of the allocation (old typed client): 422, immutable."""
    claim = ground.claim("d0")
    found = ground.get(claim)
    del found["status"]["allocation"]["devices"]["results"][0]["bindingFailureConditions"]
    reply = ground.put_status(claim, found)
    assert reply.code == 422
    assert reply.causes[0][1] == "status.allocation"
    assert "field is immutable" in reply.causes[0][2]


def test_an_unconditional_put_clears_the_allocation(ground: Ground) -> None:
    """1.1: PUT of a status without resourceVersion and allocation: 200, and both are gone."""
    claim = ground.claim("d0")
    ground.apply(claim, {"reservedFor": [reservation("s1")]}).ok()
    name = claim.rpartition("/")[2]
    body = {
        **HEAD,
        "metadata": {"name": name, "namespace": "default"},
        "status": {"devices": [entry("d0", condition())]},
    }
    reply = ground.put_status(claim, body)
    assert reply.code == 200
    assert not {"allocation", "reservedFor", "devices"}.intersection(ground.status(claim))


def test_a_status_sent_to_the_object_itself_is_ignored(ground: Ground) -> None:
    """1.1: apply of a status to the claim instead of claim/status: 200, nothing happens."""
    claim = ground.claim("d0")
    body = {
        **HEAD,
        "metadata": {"name": claim.rpartition("/")[2]},
        "status": {"devices": [entry("d0", condition())]},
    }
    reply = ground.send("PATCH", f"{claim}?fieldManager=rows", body, content_type=APPLY)
    assert reply.code == 200
    assert ground.conditions(claim) == {}


def test_metadata_sent_to_the_status_is_ignored(ground: Ground) -> None:
    """1.1: finalizers and annotations sent to claim/status: 200, nothing happens."""
    claim = ground.claim("d0")
    metadata = {"finalizers": [HOLD], "annotations": {"a": "b"}}
    assert ground.confirm(claim, entry("d0", condition()), metadata=metadata).code == 200
    found = ground.get(claim)["metadata"]
    assert HOLD not in found.get("finalizers", [])
    assert "a" not in found.get("annotations", {})


def test_an_apply_without_field_manager_is_refused(ground: Ground) -> None:
    """1.1: 422, fieldManager: Required value."""
    claim = ground.claim("d0")
    body = {**HEAD, "metadata": {"name": claim.rpartition("/")[2]}, "status": {}}
    reply = ground.send("PATCH", f"{claim}/status", body, content_type=APPLY)
    assert reply.code == 422
    assert 'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value' in reply.message


def test_a_patch_of_no_known_type_is_refused(ground: Ground) -> None:
    """1.1, B76: PATCH with application/json: 415."""
    claim = ground.claim("d0")
    body = {**HEAD, "metadata": {"name": claim.rpartition("/")[2]}, "status": {}}
    reply = ground.send("PATCH", f"{claim}/status?fieldManager=rows", body, content_type=JSON)
    assert (reply.code, reply.reason) == (415, "UnsupportedMediaType")


def test_an_apply_to_a_missing_status_creates_nothing(ground: Ground) -> None:
    """1.1: server-side apply of the status of a missing claim: 404."""
    reply = ground.confirm(f"{CLAIMS}/never-made", entry("d0", condition()))
    assert (reply.code, reply.reason) == (404, "NotFound")
    assert ground.send("GET", f"{CLAIMS}/never-made").code == 404


def test_an_apply_under_another_uid_is_refused(ground: Ground) -> None:
    """1.1: metadata.uid in an apply is a guard: 422, metadata.uid: field is immutable."""
    claim = ground.claim("d0")
    uid = "11111111-2222-3333-4444-555555555555"
    reply = ground.confirm(claim, entry("d0", condition()), metadata={"uid": uid})
    assert reply.code == 422
    assert reply.causes[0][1] == "metadata.uid"
    assert "field is immutable" in reply.message


def test_an_apply_under_the_right_guards_is_taken(ground: Ground) -> None:
    """1.1, 4: uid and current resourceVersion in the body are honoured: 200."""
    claim = ground.claim("d0")
    found = ground.get(claim)["metadata"]
    guards = {"uid": found["uid"], "resourceVersion": found["resourceVersion"]}
    assert ground.confirm(claim, entry("d0", condition()), metadata=guards).code == 200


@pytest.mark.parametrize("how", ["apply", "put", "merge"])
def test_a_stale_resource_version_is_refused(ground: Ground, how: str) -> None:
    """4, B16: stale resourceVersion in an apply, a PUT or a merge patch: 409 Conflict."""
    claim = ground.claim("d0")
    old = ground.get(claim)
    ground.confirm(claim, entry("d0", condition(FAILED))).ok()
    version = {"resourceVersion": old["metadata"]["resourceVersion"]}
    if how == "apply":
        reply = ground.confirm(claim, entry("d0", condition()), metadata=version)
    elif how == "put":
        old["status"]["devices"] = [entry("d0", condition())]
        reply = ground.put_status(claim, old)
    else:
        body = {"metadata": version, "status": {"devices": []}}
        reply = ground.merge(f"{claim}/status", body)
    assert (reply.code, reply.reason) == (409, "Conflict")
    assert "the object has been modified" in reply.message
    assert ground.conditions(claim) == {FAILED: "True"}


def test_a_late_condition_finds_no_device(ground: Ground) -> None:
    """2: a write between deallocation and the next allocation: 422, must be allocated."""
    claim = ground.claim("d0")
    ground.merge(f"{claim}/status", {"status": {"allocation": None}}).ok()
    reply = ground.confirm(claim, entry("d0", condition()))
    assert reply.code == 422
    assert reply.causes[0][1] == "status.devices[0]"
    assert "must be an allocated device in the claim" in reply.causes[0][2]


def test_deallocation_takes_the_conditions_along(ground: Ground) -> None:
    """2, 5: on deallocation all entries of status.devices vanish, data included."""
    claim = ground.claim("d0")
    ground.confirm(claim, entry("d0", condition(), data={"receipt": 1})).ok()
    ground.merge(f"{claim}/status", {"status": {"allocation": None}}).ok()
    ground.allocate(claim, allocation("d0", timestamp="2026-11-29T14:00:00Z")).ok()
    assert "devices" not in ground.status(claim)


def test_a_condition_is_not_tied_to_an_allocation(ground: Ground) -> None:
    """2: a late condition is accepted for a new allocation of the same device."""
    claim = ground.claim("d0")
    ground.merge(f"{claim}/status", {"status": {"allocation": None}}).ok()
    ground.allocate(claim, allocation("d0", timestamp="2026-11-29T14:00:00Z")).ok()
    assert ground.confirm(claim, entry("d0", condition())).code == 200


def test_a_condition_of_an_unreserved_claim_is_taken(ground: Ground) -> None:
    """3: after the reservation was dropped the allocation stays and takes conditions."""
    claim = ground.claim("d0")
    ground.apply(claim, {"reservedFor": [reservation("s1")]}).ok()
    ground.apply(claim, {"reservedFor": []}).ok()
    assert "allocation" in ground.status(claim)
    assert ground.confirm(claim, entry("d0", condition())).code == 200
