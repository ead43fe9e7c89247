"""The coordinator's account and uninstall's write to what is of our driver, and to nothing else."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest

from fleet.core.profiles import Profile
from fleet.kube.base import Object
from tests.deploy import test_coordinator
from tests.deploy.reviews import Recorded, Review, refused
from tests.deploy.test_account_policies import (
    ADMIN,
    CLAIMS_,
    COORDINATOR,
    NODE_STATUS,
    POLICIES,
    STATUS,
    UNINSTALL,
    recording,
)
from tests.fleet.plugin.benches import DRIVER, MARKS, NODE, bench

BOTH = (COORDINATOR, UNINSTALL)
OTHER = "other.example.com"


def claim(*drivers: str, **status: object) -> Object:
    """A claim with a device of each of these drivers."""
    results = [
        {"request": "r", "driver": one, "pool": NODE, "device": f"gpu-{at}"}
        for at, one in enumerate(drivers)
    ]
    allocated: Object = {"allocation": {"devices": {"results": results}}} if drivers else {}
    return {"metadata": {"name": "c", "uid": "u"}, "status": {**allocated, **status}}


def judged(new: Object, old: Object, user: str, resource: str = STATUS) -> list[str]:
    """What is said of an update."""
    return refused(Review("UPDATE", resource, user, NODE, new, old), POLICIES)


def entry(driver: str) -> Object:
    """What is said about a device."""
    return {"driver": driver, "pool": NODE, "device": "gpu-0", "conditions": []}


POD = {"resource": "pods", "name": "p", "uid": "p"}
HOLD = MARKS.hold(node=NODE, uid="u")


@pytest.mark.parametrize("user", BOTH)
def test_f64_claims_of_other_drivers_are_out_of_reach(user: str) -> None:
    """F64: coordinator and uninstall end no allocation, reserve nothing and say nothing where no
    device of our driver is allocated, and give no allocation anywhere."""
    theirs, free = claim(OTHER), claim()
    for new, old in (
        (free, theirs),
        (claim(OTHER, OTHER), theirs),
        (theirs, free),
        (claim(DRIVER), free),
        (claim(DRIVER, OTHER), claim(DRIVER)),
        (claim(OTHER, reservedFor=[HOLD]), theirs),
        (claim(OTHER, reservedFor=[POD]), theirs),
        (theirs, claim(OTHER, reservedFor=[POD])),
        (claim(OTHER, devices=[entry(OTHER)]), theirs),
        (claim(OTHER, devices=[entry(DRIVER)]), theirs),
        (theirs, claim(OTHER, devices=[entry(OTHER)])),
    ):
        assert judged(new, old, user), (new, old)
    assert judged(free, theirs, ADMIN) == []


@pytest.mark.parametrize("user", BOTH)
def test_f64_of_our_claims_they_change_our_part(user: str) -> None:
    """F64: of a claim with our devices they change our reservation under its node's name, what is
    said of our devices, and the allocation once no pod is reserved; nobody else's part of it."""
    ours, mixed = claim(DRIVER), claim(DRIVER, OTHER)
    for new, old in (
        (claim(DRIVER, reservedFor=[HOLD], devices=[entry(DRIVER)]), ours),
        (ours, claim(DRIVER, reservedFor=[HOLD])),
        (claim(), claim(DRIVER, reservedFor=[HOLD], devices=[entry(DRIVER)])),
        (claim(DRIVER, OTHER, devices=[entry(DRIVER)]), mixed),
        (claim(OTHER), claim(OTHER, reservedFor=[HOLD])),
    ):
        assert judged(new, old, user) == [], (new, old)
    for new, old in (
        (claim(), claim(DRIVER, reservedFor=[HOLD, POD])),
        (claim(DRIVER, reservedFor=[POD]), ours),
        (claim(DRIVER, reservedFor=[HOLD | {"name": "elsewhere"}]), ours),
        (claim(DRIVER, reservedFor=[HOLD | {"uid": "of-a-pod"}]), ours),
        (claim(DRIVER, OTHER, devices=[entry(OTHER)]), mixed),
    ):
        assert judged(new, old, user), (new, old)


@pytest.mark.parametrize("user", BOTH)
def test_f64_of_a_claims_metadata_they_change_our_finalizer_alone(user: str) -> None:
    """F64: no label, annotation, owner or other finalizer of any claim; ours goes from any claim,
    and the coordinator puts it on where a device of ours is allocated; none is made
    or deleted."""
    for key, value in (
        ("labels", {"a": "b"}),
        ("annotations", {"a": "b"}),
        ("ownerReferences", [{"kind": "Pod", "name": "p", "uid": "p"}]),
        ("finalizers", ["example.com/own"]),
    ):
        for drivers in ((DRIVER,), (OTHER,), ()):
            old, new = claim(*drivers), claim(*drivers)
            new["metadata"][key] = value
            assert any("but our finalizer" in one for one in judged(new, old, user, CLAIMS_))
            assert judged(old, new, user, CLAIMS_)
    for drivers in ((DRIVER,), (OTHER,), ()):
        bare, full = claim(*drivers), claim(*drivers)
        full["metadata"]["finalizers"] = [MARKS.finalizer]
        assert judged(bare, full, user, CLAIMS_) == []
        put = judged(full, bare, user, CLAIMS_)
        assert bool(put) is (drivers != (DRIVER,) or user == UNINSTALL)
    for operation, new_, old_ in (("CREATE", claim(), None), ("DELETE", None, claim(DRIVER))):
        told = refused(Review(operation, CLAIMS_, user, NODE, new_, old_), POLICIES)
        assert any("neither creates nor deletes" in one for one in told)


@pytest.fixture(scope="module")
def node() -> Recorded:
    """A node's condition as the coordinator writes it."""
    with bench(Profile.STRICT) as site, recording(site, COORDINATOR) as cluster:
        test_coordinator.told(cluster)
    return Recorded(cluster.recorded.of(NODE_STATUS))


def _ready(found: Object) -> None:
    found["status"]["conditions"].append({"type": "Ready", "status": "False"})


def _capacity(found: Object) -> None:
    found["status"]["capacity"] = {"cpu": "0"}


def _new_field(found: Object) -> None:
    found["status"]["fieldOfLaterVersions"] = {"a": 1}


def _label(found: Object) -> None:
    found["metadata"].setdefault("labels", {})["pool"] = "a"


def _annotation(found: Object) -> None:
    found["metadata"].setdefault("annotations", {})["a"] = "b"


def _finalizer(found: Object) -> None:
    found["metadata"]["finalizers"] = ["example.com/own"]


def _owner(found: Object) -> None:
    found["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "p", "uid": "p"}]


def _taint(found: Object) -> None:
    found["spec"] = {"taints": [{"key": "a", "effect": "NoExecute"}]}


@pytest.mark.parametrize("user", BOTH)
@pytest.mark.parametrize(
    "forge",
    [_ready, _capacity, _new_field, _label, _annotation, _finalizer, _owner, _taint],
)
def test_f64_of_a_node_they_change_our_conditions_alone(
    node: Recorded, user: str, forge: Callable[[Object], None]
) -> None:
    """F64: of a node coordinator and uninstall change the conditions of our driver; no other
    condition, no field of its status, label, taint or anything else is added, changed or taken."""
    (review, *_) = node.reviews
    assert refused(review.by(user), POLICIES) == []
    back = Review("UPDATE", NODE_STATUS, user, "", review.old, review.new)
    assert refused(back, POLICIES) == []
    forged = review.changed(forge).by(user)
    assert refused(forged, POLICIES)
    assert refused(forged.by("system:node:n1"), POLICIES) == []
    taken = Review("UPDATE", NODE_STATUS, user, "", review.new, forged.new)
    assert refused(taken, POLICIES)
    kept = deepcopy(forged.new)
    assert refused(Review("UPDATE", NODE_STATUS, user, "", kept, kept), POLICIES) == []
    for operation, new, old in (("CREATE", review.new, None), ("DELETE", None, review.new)):
        (told,) = refused(Review(operation, "nodes", user, "", new, old), POLICIES)
        assert "neither creates nor deletes" in told
