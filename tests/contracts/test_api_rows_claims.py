"""Finalizers, allocation by another client, reservations of our own (experiments 7 and 9)."""

from __future__ import annotations

import secrets

import pytest

from tests.contracts.api_ground import (
    CLAIMS,
    DELETE_PROTECTION,
    DRIVER,
    HEAD,
    HOLD,
    POOL,
    TEMPLATES,
    Ground,
    allocation,
    condition,
    entry,
    reservation,
)

AT_ONCE = {"status": {"allocation": None, "reservedFor": None}}


def test_anybody_with_the_right_may_allocate(ground: Ground) -> None:
    """9: PUT of the status with an allocation: 200, and it stands."""
    claim = ground.claim()
    wanted = allocation("d0", node=ground.server.node())
    assert ground.allocate(claim, wanted).code == 200
    assert ground.status(claim)["allocation"]["allocationTimestamp"] == "2026-11-29T13:13:23Z"


def test_a_timestamp_cannot_be_added_later(ground: Ground) -> None:
    """9: an allocation without allocationTimestamp: adding one is 422, field is immutable."""
    claim = ground.claim()
    ground.allocate(claim, allocation("d0", timestamp="")).ok()
    reply = ground.allocate(claim, allocation("d0"))
    assert reply.code == 422
    assert reply.causes[0][1] == "status.allocation"
    assert "field is immutable" in reply.message


def test_conditions_may_come_with_the_allocation(ground: Ground) -> None:
    """9: devices with conditions in the same PUT as the allocation: 200."""
    claim = ground.claim()
    reply = ground.allocate(claim, allocation("d0"), devices=[entry("d0", condition())])
    assert reply.code == 200
    assert len(ground.conditions(claim)) == 1


def test_results_without_condition_lists_are_taken(ground: Ground) -> None:
    """9: results that leave the device's condition lists out are accepted."""
    claim = ground.claim()
    bare = {"request": "gpu", "driver": DRIVER, "pool": POOL, "device": "d0"}
    reply = ground.allocate(claim, {"devices": {"results": [bare]}})
    assert reply.code == 200


def test_double_use_is_not_checked(ground: Ground) -> None:
    """9: two claims on one device that does not even exist: both 200. Nobody protects us."""
    first, second = ground.claim(), ground.claim()
    assert ground.allocate(first, allocation("no-such")).code == 200
    assert ground.allocate(second, allocation("no-such")).code == 200


def test_the_request_must_be_one_of_the_claim(ground: Ground) -> None:
    """9: an allocation that names another request: 422."""
    claim = ground.claim()
    wrong = allocation("d0")
    wrong["devices"]["results"][0]["request"] = "other"
    reply = ground.allocate(claim, wrong)
    assert reply.code == 422
    assert reply.causes[0][1] == "status.allocation.devices.results[0].request"


def test_of_two_allocators_one_wins(ground: Ground) -> None:
    """9, B16: same resourceVersion: one 200, the other 409."""
    claim = ground.claim()
    found = ground.get(claim)
    first = {**found, "status": {"allocation": allocation("d0")}}
    second = {**found, "status": {"allocation": allocation("d1")}}
    codes = [ground.put_status(claim, body).code for body in (first, second)]
    assert codes == [200, 409]


def test_an_allocation_is_immutable(ground: Ground) -> None:
    """9: another allocation over an existing one: 422; the identical one: 200, nothing written."""
    claim = ground.claim("d0")
    before = ground.get(claim)
    reply = ground.allocate(claim, allocation("d1"))
    assert reply.code == 422
    assert "field is immutable" in reply.message
    assert ground.allocate(claim, allocation("d0")).code == 200
    after = ground.get(claim)
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_a_reserved_claim_keeps_its_allocation(ground: Ground) -> None:
    """9: clearing the allocation while reserved: 422, reservedFor may not be specified."""
    claim = ground.claim("d0")
    ground.apply(claim, {"reservedFor": [reservation("s1")]}).ok()
    reply = ground.merge(f"{claim}/status", {"status": {"allocation": None}})
    assert reply.code == 422
    assert "may not be specified when `allocated` is not set" in reply.message
    assert ground.merge(f"{claim}/status", AT_ONCE).code == 200
    assert not {"allocation", "reservedFor"}.intersection(ground.status(claim))


def test_a_reservation_needs_an_allocation(ground: Ground) -> None:
    """9: reserving a claim that is not allocated: 422."""
    claim = ground.claim()
    reply = ground.apply(claim, {"reservedFor": [reservation("s1")]})
    assert reply.code == 422
    assert reply.causes[0][1] == "status.reservedFor"


def test_a_dying_claim_takes_no_new_reservation(ground: Ground) -> None:
    """9, B75: once deletionTimestamp is set a new entry is 422; the one there may stay."""
    claim = ground.claim("d0", finalizers=(HOLD,))
    ground.apply(claim, {"reservedFor": [reservation("s1")]}, owner="early").ok()
    ground.send("DELETE", claim).ok()
    reply = ground.apply(claim, {"reservedFor": [reservation("s2")]}, owner="late")
    assert reply.code == 422
    assert (
        "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        in reply.message
    )
    assert [item["name"] for item in ground.status(claim)["reservedFor"]] == ["s1"]
    assert ground.confirm(claim, entry("d0", condition()), owner="early-devices").code == 200


def test_without_a_finalizer_a_claim_in_use_goes_at_once(ground: Ground) -> None:
    """9: deleting an allocated claim without finalizer removes it at once."""
    claim = ground.claim("d0")
    ground.send("DELETE", claim).ok()
    assert ground.send("GET", claim).code == 404


def test_a_finalizer_keeps_the_object(ground: Ground) -> None:
    """7: with a finalizer the claim stays, Terminating, and goes with its last finalizer."""
    claim = ground.claim(finalizers=(HOLD,))
    assert ground.send("DELETE", claim).code == 200
    found = ground.get(claim)["metadata"]
    assert found["deletionTimestamp"]
    reply = ground.merge(claim, {"metadata": {"finalizers": None}})
    assert reply.code == 200
    assert ground.send("GET", claim).code == 404


def test_a_client_may_set_the_builtin_finalizer(ground: Ground) -> None:
    """9: the delete-protection finalizer may be set by a client when it creates the claim."""
    claim = ground.claim(finalizers=(DELETE_PROTECTION,))
    assert ground.get(claim)["metadata"]["finalizers"] == [DELETE_PROTECTION]


def test_a_dying_claim_takes_no_new_finalizer(ground: Ground) -> None:
    """7, B75: 422 Forbidden, no new finalizers can be added if the object is being deleted."""
    claim = ground.claim(finalizers=(HOLD,))
    ground.send("DELETE", claim).ok()
    reply = ground.merge(claim, {"metadata": {"finalizers": [HOLD, "x.example.com/second"]}})
    assert reply.code == 422
    assert reply.causes[0][:2] == ("FieldValueForbidden", "metadata.finalizers")
    assert "no new finalizers can be added if the object is being deleted" in reply.message


def test_the_name_of_a_dying_claim_is_taken(ground: Ground) -> None:
    """7: re-creating the name of a Terminating claim: 409 AlreadyExists, being deleted."""
    claim = ground.claim(finalizers=(HOLD,))
    ground.send("DELETE", claim).ok()
    exact = {"name": "gpu", "exactly": {"deviceClassName": "rows"}}
    body = {
        **HEAD,
        "metadata": {"name": claim.rpartition("/")[2], "namespace": "default"},
        "spec": {"devices": {"requests": [exact]}},
    }
    reply = ground.send("POST", CLAIMS, body)
    assert (reply.code, reply.reason) == (409, "AlreadyExists")
    assert "object is being deleted" in reply.message


def test_a_template_sets_no_finalizers(ground: Ground) -> None:
    """7: spec.metadata.finalizers of a template: 422, Forbidden: cannot be set."""
    exact = {"name": "gpu", "exactly": {"deviceClassName": "rows"}}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"row-{secrets.token_hex(5)}", "namespace": "default"},
        "spec": {
            "metadata": {"finalizers": [HOLD]},
            "spec": {"devices": {"requests": [exact]}},
        },
    }
    reply = ground.send("POST", TEMPLATES, body)
    assert reply.code == 422
    assert "Forbidden: cannot be set" in reply.message


@pytest.mark.parametrize("change", ["spec", "name"])
def test_a_claim_keeps_its_spec_and_name(ground: Ground, change: str) -> None:
    """The spec of a claim is immutable (422); the name in a body is that of the URL (400)."""
    claim = ground.claim()
    found = ground.get(claim)
    if change == "spec":
        found["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "other"
    else:
        found["metadata"]["name"] = "other"
    assert ground.send("PUT", claim, found).code == (422 if change == "spec" else 400)


def test_a_delete_honours_its_preconditions(ground: Ground) -> None:
    """DELETE under another uid or resourceVersion: 409; under the right ones: 200."""
    claim = ground.claim()
    found = ground.get(claim)["metadata"]
    for guard in ({"uid": "another"}, {"resourceVersion": "1"}):
        reply = ground.send("DELETE", claim, {"preconditions": guard})
        assert (reply.code, reply.reason) == (409, "Conflict")
        assert "in the precondition" in reply.message
    right = {"uid": found["uid"], "resourceVersion": found["resourceVersion"]}
    assert ground.send("DELETE", claim, {"preconditions": right}).code == 200
