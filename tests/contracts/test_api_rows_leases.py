"""What a real API server answers to writes of leases (experiments 11)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contracts.api_ground import LEASES, Ground


def test_transitions_may_be_lowered(ground: Ground) -> None:
    """11: leaseTransitions is plain stored content: lowering it is 200."""
    made = ground.send("POST", LEASES, ground.lease(leaseTransitions=5)).ok()
    made["spec"]["leaseTransitions"] = 2
    reply = ground.send("PUT", f"{LEASES}/{made['metadata']['name']}", made)
    assert reply.code == 200
    assert reply.body["spec"]["leaseTransitions"] == 2


def test_transitions_are_dropped_when_left_out(ground: Ground) -> None:
    """11: a change of holder that leaves leaseTransitions out drops it."""
    made = ground.send("POST", LEASES, ground.lease(leaseTransitions=5)).ok()
    made["spec"] = {"holderIdentity": "b", "leaseDurationSeconds": 15}
    found = ground.send("PUT", f"{LEASES}/{made['metadata']['name']}", made).ok()
    assert "leaseTransitions" not in found["spec"]


def test_transitions_do_not_survive_the_object(ground: Ground) -> None:
    """11: after delete and re-create: new uid, no transitions unless sent."""
    made = ground.send("POST", LEASES, ground.lease(leaseTransitions=5)).ok()
    name = made["metadata"]["name"]
    ground.send("DELETE", f"{LEASES}/{name}").ok()
    again = ground.send("POST", LEASES, ground.lease(name)).ok()
    assert again["metadata"]["uid"] != made["metadata"]["uid"]
    assert "leaseTransitions" not in again["spec"]


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"leaseTransitions": -1}, 422),
        ({"leaseTransitions": 2**31}, 400),
        ({"leaseDurationSeconds": 0}, 422),
        ({"holderIdentity": ""}, 200),
    ],
    ids=["negative", "overflow", "no-duration", "no-holder"],
)
def test_numbers_of_a_lease_have_limits(ground: Ground, spec: dict[str, object], code: int) -> None:
    """11: -1: 422; 2^31: 400; duration 0: 422; an empty holder is fine."""
    made = ground.send("POST", LEASES, ground.lease()).ok()
    made["spec"] |= spec
    reply = ground.send("PUT", f"{LEASES}/{made['metadata']['name']}", made)
    assert reply.code == code


def test_a_stale_put_is_refused(ground: Ground) -> None:
    """11: PUT with a stale resourceVersion: 409 Conflict."""
    made = ground.send("POST", LEASES, ground.lease()).ok()
    path = f"{LEASES}/{made['metadata']['name']}"
    first = {**made, "spec": {**made["spec"], "holderIdentity": "b"}}
    assert ground.send("PUT", path, first).code == 200
    reply = ground.send("PUT", path, {**made, "spec": {**made["spec"], "holderIdentity": "c"}})
    assert (reply.code, reply.reason) == (409, "Conflict")


def test_a_put_without_version_never_overwrites(ground: Ground) -> None:
    """11: PUT without resourceVersion: 422 on an existing lease, creates a missing one (201)."""
    body = ground.lease()
    path = f"{LEASES}/{body['metadata']['name']}"
    assert ground.send("PUT", path, body).code == 201
    reply = ground.send("PUT", path, body)
    assert reply.code == 422
    assert "metadata.resourceVersion" in reply.message
    assert "must be specified for an update" in reply.message


def test_a_put_of_a_deleted_lease_is_refused(ground: Ground) -> None:
    """11: PUT with the uid and resourceVersion of a deleted lease: 409, Precondition failed."""
    made = ground.send("POST", LEASES, ground.lease()).ok()
    path = f"{LEASES}/{made['metadata']['name']}"
    ground.send("DELETE", path).ok()
    reply = ground.send("PUT", path, made)
    assert reply.code == 409
    assert "Precondition failed: UID" in reply.message


def test_creating_an_existing_lease_is_refused(ground: Ground) -> None:
    """11: POST of an existing lease: 409 AlreadyExists: same code, other reason."""
    made = ground.send("POST", LEASES, ground.lease()).ok()
    reply = ground.send("POST", LEASES, ground.lease(made["metadata"]["name"]))
    assert (reply.code, reply.reason) == (409, "AlreadyExists")


def test_a_merge_patch_with_a_stale_version_is_refused(ground: Ground) -> None:
    """11: merge patch with a stale resourceVersion: 409; without one it is unconditional."""
    made = ground.send("POST", LEASES, ground.lease()).ok()
    path = f"{LEASES}/{made['metadata']['name']}"
    assert ground.merge(path, {"spec": {"holderIdentity": "b"}}).code == 200
    version = {"resourceVersion": made["metadata"]["resourceVersion"]}
    stale = {"metadata": version, "spec": {"holderIdentity": "c"}}
    assert ground.merge(path, stale).code == 409


def test_a_delete_under_another_uid_is_refused(ground: Ground) -> None:
    """11: DELETE with a wrong uid precondition: 409."""
    made = ground.send("POST", LEASES, ground.lease()).ok()
    path = f"{LEASES}/{made['metadata']['name']}"
    reply = ground.send("DELETE", path, {"preconditions": {"uid": "another"}})
    assert reply.code == 409
    assert ground.send("GET", path).code == 200


def test_of_eight_racers_one_wins(ground: Ground) -> None:
    """11, B22: 8 PUTs with one resourceVersion: one 200, seven 409."""
    made = ground.send("POST", LEASES, ground.lease()).ok()
    path = f"{LEASES}/{made['metadata']['name']}"
    bodies = [{**made, "spec": {**made["spec"], "holderIdentity": f"h{n}"}} for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda body: ground.send("PUT", path, body).code, bodies))
    assert sorted(codes) == [200, *[409] * 7]


def test_of_eight_creators_one_wins(ground: Ground) -> None:
    """11, B22: 8 POSTs of one name: one 201, seven 409."""
    body = ground.lease()
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda _: ground.send("POST", LEASES, body).code, range(8)))
    assert sorted(codes) == [201, *[409] * 7]
