"""Rules of the shelf of objects."""

from __future__ import annotations

import pytest

from fleet.core.clock import ManualClock
from fleet.kube.base import CLAIMS, LEASES, PODS, SLICES, Name, Object
from tests.lab.apiserver.apply import UPDATE, Owner
from tests.lab.apiserver.gates import Features
from tests.lab.apiserver.kinds import table
from tests.lab.apiserver.refusal import Refusal
from tests.lab.apiserver.shelf import Shelf

KINDS = table(Features())
OWNER = Owner("m", UPDATE)


def shelf(seed: str = "") -> Shelf:
    """An empty shelf."""
    return Shelf(KINDS.values(), ManualClock(1_764_000_000.0), seed, Features())


def lease(**metadata: object) -> Object:
    """A lease."""
    return {"metadata": dict(metadata), "spec": {"holderIdentity": "a"}}


def test_one_counter_gives_all_versions() -> None:
    """A write of any kind raises the version of everything that is written later."""
    found = shelf()
    first = found.created(KINDS[LEASES], Name("a", "x"), lease(name="a"), OWNER)
    second = found.created(KINDS[CLAIMS], Name("c", "x"), {"metadata": {"name": "c"}}, OWNER)
    assert int(second.version) == int(first.version) + 1


def test_uids_are_never_reused() -> None:
    """A name used again gets another UID; servers with other seeds have other UIDs."""
    found = shelf()
    first = found.created(KINDS[LEASES], Name("a", "x"), lease(name="a"), OWNER)
    found.removed(KINDS[LEASES], first)
    second = found.created(KINDS[LEASES], Name("a", "x"), lease(name="a"), OWNER)
    other = shelf("other").created(KINDS[LEASES], Name("a", "x"), lease(name="a"), OWNER)
    assert len({first.uid, second.uid, other.uid}) == 3


def test_what_the_server_writes_cannot_be_sent() -> None:
    """uid, creationTimestamp and deletionTimestamp in a new body are ignored."""
    sent = lease(name="a", uid="mine", creationTimestamp="x", deletionTimestamp="y")
    made = shelf().created(KINDS[LEASES], Name("a", "x"), sent, OWNER).object["metadata"]
    assert made["uid"] != "mine"
    assert made["creationTimestamp"] == "2025-11-24T16:00:00Z"
    assert "deletionTimestamp" not in made


def test_a_generated_name_is_cut_to_fit() -> None:
    """The base is cut at 58 characters before five more are added."""
    made = shelf().created(KINDS[LEASES], Name("", "x"), lease(generateName="n" * 70), OWNER)
    name = made.object["metadata"]["name"]
    assert len(name) == 63
    assert name.startswith("n" * 58)


def test_an_object_without_any_name_is_refused() -> None:
    """422 on metadata.name."""
    with pytest.raises(Refusal) as caught:
        shelf().created(KINDS[LEASES], Name("", "x"), lease(), OWNER)
    assert [cause.field for cause in caught.value.causes] == ["metadata.name"]


def test_objects_come_by_namespace_and_name() -> None:
    """The order of lists."""
    found = shelf()
    for name in (Name("b", "x"), Name("a", "y"), Name("a", "x")):
        found.created(KINDS[LEASES], name, lease(name=name.name), OWNER)
    order = [entry.object["metadata"] for entry in found.all(LEASES)]
    assert [(meta["namespace"], meta["name"]) for meta in order] == [
        ("x", "a"),
        ("x", "b"),
        ("y", "a"),
    ]


def test_a_seeded_object_keeps_what_it_says() -> None:
    """Status and uid are stored as given; seeding again replaces and keeps the uid."""
    found = shelf()
    pod = {"metadata": {"name": "p", "namespace": "x"}, "status": {"phase": "Running"}}
    first = found.seeded(KINDS[PODS], pod)
    assert first.object["status"] == {"phase": "Running"}
    second = found.seeded(KINDS[PODS], {**pod, "status": {"phase": "Failed"}})
    assert second.uid == first.uid
    assert int(second.version) > int(first.version)
    given = {"metadata": {"name": "q", "namespace": "x", "uid": "given"}}
    assert found.seeded(KINDS[PODS], given).uid == "given"


def test_a_removal_is_a_change_with_a_version_of_its_own() -> None:
    """Watches learn of it with a version newer than the object's last."""
    found = shelf()
    made = found.created(KINDS[LEASES], Name("a", "x"), lease(name="a"), OWNER)
    found.removed(KINDS[LEASES], made)
    (entry,) = found.since(LEASES, int(made.version))
    assert entry.deleted
    assert entry.version > int(made.version)
    assert found.find(LEASES, Name("a", "x")) is None
    assert found.since(SLICES, int(made.version)) == []
