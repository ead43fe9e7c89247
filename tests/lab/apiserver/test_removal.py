"""Rules of removal."""

from __future__ import annotations

import pytest

from fleet.kube.base import CLAIMS, NODES, PODS, SLICES, Object
from tests.lab.apiserver.gates import Features
from tests.lab.apiserver.kinds import table
from tests.lab.apiserver.refusal import Refusal
from tests.lab.apiserver.removal import Preconditions, after_delete, orphans
from tests.lab.apiserver.stored import Stored, stored

KINDS = table(Features())
NOW = 1_764_000_000.0


def entry(body: Object, uid: str = "u", **metadata: object) -> Stored:
    """A stored object."""
    meta = {"name": "a", "uid": uid, "resourceVersion": "7", **metadata}
    return stored({**body, "metadata": meta}, {}, CLAIMS)


@pytest.mark.parametrize("guard", [Preconditions(uid="v"), Preconditions(resource_version="6")])
def test_a_guard_that_does_not_hold_is_a_409(guard: Preconditions) -> None:
    """The right ones, and none, pass."""
    with pytest.raises(Refusal, match="in the precondition"):
        guard.check(entry({}), CLAIMS)
    Preconditions("u", "7").check(entry({}), CLAIMS)
    Preconditions().check(entry({}), CLAIMS)


def test_without_finalizers_nothing_stays() -> None:
    """A claim goes at once."""
    assert after_delete(KINDS[CLAIMS], entry({}), None, NOW) is None


def test_with_a_finalizer_the_object_is_dated_once() -> None:
    """B75: a second delete changes nothing."""
    live = entry({}, finalizers=["f"])
    found = after_delete(KINDS[CLAIMS], live, None, NOW)
    assert found is not None
    assert found["metadata"]["deletionTimestamp"] == "2025-11-24T16:00:00Z"
    again = stored(found, {}, CLAIMS)
    assert after_delete(KINDS[CLAIMS], again, None, NOW + 5) == again.object


def test_a_pod_on_a_node_gets_its_grace() -> None:
    """Its own, else 30 s; none when nobody runs it, when it has ended or when forced."""
    kind = KINDS[PODS]
    running = entry({"spec": {"nodeName": "n"}})
    found = after_delete(kind, running, None, NOW)
    assert found is not None
    assert found["metadata"]["deletionGracePeriodSeconds"] == 30
    assert found["metadata"]["deletionTimestamp"] == "2025-11-24T16:00:30Z"
    assert after_delete(kind, running, 0, NOW) is None
    assert after_delete(kind, stored(found, {}, PODS), 0, NOW) is None
    assert after_delete(kind, entry({"spec": {}}), None, NOW) is None
    ended = entry({"spec": {"nodeName": "n"}, "status": {"phase": "Succeeded"}})
    assert after_delete(kind, ended, None, NOW) is None


def test_orphans_have_owners_that_are_all_gone() -> None:
    """B34: a slice whose Node came back under another UID is one; a slice without owner not."""
    node = (KINDS[NODES], entry({}, uid="node-new"))
    gone = (KINDS[SLICES], entry({}, uid="s1", ownerReferences=[{"uid": "node-old"}]))
    kept = (
        KINDS[SLICES],
        entry({}, uid="s2", ownerReferences=[{"uid": "node-old"}, {"uid": "node-new"}]),
    )
    free = (KINDS[SLICES], entry({}, uid="s3"))
    dying = (
        KINDS[SLICES],
        entry({}, uid="s4", ownerReferences=[{"uid": "x"}], deletionTimestamp="t"),
    )
    assert list(orphans([node, gone, kept, free, dying])) == [gone]
