"""A claim's story: what is missing, and the command that decides."""

from __future__ import annotations

import pytest

from fleet.control.binding import pledge
from fleet.control.binding.claim_facts import Rules
from fleet.control.binding.claim_judge import ATTEMPTS_MAX
from fleet.control.binding.explanation import ClaimStory, explain, operations
from fleet.control.binding.pledge import Pledge
from fleet.core.messages import ClaimBrief, DeviceResult, NodeView, Outcome
from fleet.core.model import Holder, HolderKind, Lease, Token, UnitId
from fleet.kube.base import Object
from fleet.kube.claim import read
from fleet.kube.marks import Marks
from tests.fleet.control.binding.scenes import (
    DRIVER,
    NOW,
    allocated,
    claim,
    device,
    reason,
    result,
    view,
)

MARKS = Marks(DRIVER)
RULES = Rules(MARKS, 600.0, 60.0)
GATED = {
    **result("gpu-0"),
    "bindingConditions": [MARKS.sanitized],
    "bindingFailureConditions": [MARKS.failed],
}


def story(found: Object, seen: NodeView | None, *leases: Lease) -> ClaimStory:
    """The claim's story."""
    return explain(read(found, MARKS), seen, leases, (), rules=RULES, now=NOW)


def awaited() -> Object:
    """A claim that a pod waits for in PreBind."""
    found = allocated(GATED)
    found["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "uid-p"}]
    return found


def lease() -> Lease:
    """The claim's lease of gpu-0."""
    units = frozenset({UnitId("GPU-n1-gpu-0/all")})
    return Lease(units, Holder(HolderKind.CLAIM, "uid-other"), Token(1, 7))


def unallocated(**metadata: object) -> Object:
    """A claim that nobody has allocated."""
    found = claim()
    found["metadata"] |= {"uid": "u", "resourceVersion": "1", **metadata}
    return found


def test_an_unallocated_claim_names_the_verb_that_allocates_it() -> None:
    """E7: what is to be done is a command; while somebody does it, it is to wait."""
    found = story(unallocated(), None)
    assert "fleet claim bind tenant/c" in found.missing[0].remedy
    body = pledge.body(unallocated(), MARKS, Pledge("me", NOW + 30))
    annotations = body["metadata"]["annotations"]
    right = Lease(frozenset({pledge.unit("u")}), pledge.holder("me"), Token(1, 8), NOW + 30)
    own = story(unallocated(annotations=annotations), None, lease())
    assert own.allocating_until is None  # T3: the owner's own word alone is none
    busy = story(unallocated(annotations=annotations), None, lease(), right)
    assert busy.leases == ("1.7",)
    assert busy.allocating_until == NOW + 30
    assert busy.coordinator == "it is being allocated by us"
    assert "wait" in busy.missing[0].remedy


def test_a_pledge_that_is_over_leaves_its_lease_to_the_coordinator() -> None:
    """Whoever died in mid-work: its lease is given back by the coordinator."""
    body = pledge.body(unallocated(), MARKS, Pledge("dead", NOW - 1))
    found = story(unallocated(annotations=body["metadata"]["annotations"]), None, lease())
    assert found.allocating_until is None
    assert "not allocated" in found.coordinator


@pytest.mark.parametrize(
    ("fields", "told", "command"),
    [
        ({"state": "QUARANTINED", "reasons": (reason("ecc"),)}, "ecc", "fleet quarantine clear"),
        ({"state": "HELD"}, "unknown", "fleet node adopt --node n1 --device gpu-0"),
        ({"claim": "uid-x", "state": "IN_USE"}, "held by claim uid-x", "wait"),
        ({"state": "WIPING"}, "WIPING", "wait"),
        ({"name": "gpu-7"}, "no such device", "fleet devices"),
    ],
)
def test_what_a_device_is_lacking_comes_with_its_remedy(
    fields: dict[str, object], told: str, command: str
) -> None:
    """E7: each thing missing says what it is and who or what ends it."""
    seen = device("gpu-0").model_copy(update=fields)
    found = story(allocated(GATED), view(seen), lease())
    missing = {one.check: one for one in found.missing}
    assert told in missing["gpu-0"].detail
    assert command in missing["gpu-0"].remedy


def test_a_silent_node_is_the_first_thing_missing() -> None:
    """Nothing is said of devices whose node does not answer."""
    found = story(allocated(GATED), None, lease())
    assert [one.check for one in found.missing] == ["node"]
    assert "fleet node forget" in found.missing[0].remedy
    assert found.devices[0].state == ""


def test_a_claim_in_use_lacks_nothing() -> None:
    """The node's record is shown; a claim that is served asks for nothing."""
    seen = view(
        device("gpu-0", state="IN_USE", claim="uid-other", certified_under="1.7"),
        claims=(ClaimBrief(uid="uid-other", state="PREPARED"),),
    )
    found = story(allocated(result("gpu-0")), seen, lease())
    assert found.record == "PREPARED"
    assert found.missing == ()
    assert found.leases == ("1.7",)
    assert (found.devices[0].holder, found.devices[0].certified_under) == ("uid-other", "1.7")


def test_conditions_that_are_pending_are_said() -> None:
    """A pod waits in PreBind: what it waits for, and that a lease is missing."""
    found = story(allocated(GATED), view(device("gpu-0")))
    assert {"lease", "conditions"} <= {one.check for one in found.missing}
    assert found.gated
    assert not found.bound


@pytest.mark.parametrize(
    ("holder", "command"),
    [
        (Holder(HolderKind.CLAIM, "uid-x"), "fleet reconcile"),
        (Holder(HolderKind.QUARANTINE, "GPU-n1-gpu-0"), "fleet quarantine clear gpu-0"),
        (Holder(HolderKind.CAMPAIGN, "r1"), "fleet runs r1"),
        (Holder(HolderKind.OPERATOR, "me"), "ask me"),
    ],
)
def test_who_has_a_device_leased_is_named(holder: Holder, command: str) -> None:
    """E7: "why does it stand" is answered with the holder, and with what decides."""
    theirs = Lease(frozenset({UnitId("GPU-n1-gpu-0/all")}), holder, Token(1, 6))
    found = story(awaited(), view(device("gpu-0")), theirs)
    assert found.leases == ()
    (one,) = [one for one in found.missing if "store" in one.detail]
    assert str(holder) in one.detail
    assert command in one.remedy
    assert str(holder) in found.coordinator


def test_the_reason_is_the_coordinators_own() -> None:
    """E7: what was ordered and what became of it is the node's to tell, and is in the reason."""
    reading = read(awaited(), MARKS)
    seen = view(device("gpu-0", state="WIPING"))
    found = story(awaited(), seen, lease())
    assert found.coordinator == "gpu-0 is wiped and checked"
    asked = operations(reading, seen, [lease()])
    assert len(asked) == ATTEMPTS_MAX
    results = tuple(
        DeviceResult(
            operation=name,
            node="n1",
            device="gpu-0",
            uuid=seen.devices[0].uuid,
            outcome=Outcome.FAILED,
            state="DIRTY",
        )
        for name in asked
    )
    dirty = view(device("gpu-0", state="DIRTY")).model_copy(update={"results": results})
    assert "its wipe was not proven" in str(story(awaited(), dirty, lease()).coordinator)
    assert operations(reading, seen, []) == ()
