"""What is written when we allocate, and who keeps a device that was given twice."""

from __future__ import annotations

import pytest

from fleet.control.binding import allocation
from fleet.control.binding.allocation import BUILTIN_FINALIZER
from fleet.control.binding.device_choice import Choice, choose
from fleet.core.profiles import RULES, Profile
from fleet.kube.base import Object
from fleet.kube.claim import ClaimReading, read
from fleet.kube.marks import Marks
from tests.fleet.control.binding.scenes import (
    DRIVER,
    NOW,
    allocated,
    claim,
    device,
    entry,
    request,
    result,
    scene,
    slice_of,
    view,
)

MARKS = Marks(DRIVER)
POD: Object = {"resource": "pods", "name": "p", "uid": "pod-uid"}


def chosen(wanted: Object | None = None, *, profile: Profile = Profile.STRICT) -> Choice:
    """A choice of the first device."""
    found = device("gpu-0")
    around = scene(view(found), slices=[slice_of(entry(found, profile=profile))])
    choice = choose(wanted or claim(), around)
    assert isinstance(choice, Choice)
    return choice


def ours(*reserved: Object) -> ClaimReading:
    """Our claim with gpu-0, reserved for these."""
    found = allocated(result("gpu-0"), name="ours")
    found["status"]["reservedFor"] = list(reserved)
    return read(found, MARKS)


def rival(*reserved: Object, **more: object) -> Object:
    """Another claim that was given gpu-0."""
    found = allocated({**result("gpu-0"), **more})
    return {**found, "status": {**found["status"], "reservedFor": list(reserved)}}


def test_tolerations_and_conditions_are_copied() -> None:
    """The allocation carries what is evaluated later: tolerations and both lists of conditions."""
    toleration = {"key": "a", "operator": "Exists"}
    given = allocation.allocation(chosen(claim(request(tolerations=[toleration]))), now=NOW)
    (one,) = given["devices"]["results"]
    assert one["tolerations"] == [toleration]
    assert one["bindingConditions"] == [MARKS.sanitized, MARKS.healthy]
    assert "config" not in given["devices"]
    plain = allocation.allocation(chosen(profile=Profile.FAST), now=NOW)
    assert plain["devices"]["results"] == [result("gpu-0")]


def test_an_allocation_is_told_from_another_of_the_same_devices() -> None:
    """Of one moment and of these devices: a later one of the same devices is not ours."""
    given = allocation.allocation(chosen(), now=NOW)
    later = allocation.allocation(chosen(), now=NOW + 1)
    found = allocation.with_allocation(claim(), given)
    assert allocation.is_given(found, given)
    assert not allocation.is_given(found, later)
    assert not allocation.is_given(claim(), given)
    assert "status" not in claim()


def test_the_builtin_finalizer_is_added_once_and_only_it_is_removed() -> None:
    """Finalizers of others stay, in their order."""
    found = claim()
    found["metadata"]["finalizers"] = ["x.example.com/a"]
    added = allocation.with_protection(found, present=True)
    assert added is not None
    assert added["metadata"]["finalizers"] == ["x.example.com/a", BUILTIN_FINALIZER]
    assert found["metadata"]["finalizers"] == ["x.example.com/a"]
    assert allocation.with_protection(added, present=True) is None
    removed = allocation.with_protection(added, present=False)
    assert removed is not None
    assert removed["metadata"]["finalizers"] == ["x.example.com/a"]
    assert allocation.with_protection(found, present=False) is None


@pytest.mark.parametrize("profile", list(Profile))
def test_the_rules_are_those_of_the_pools_profile(profile: Profile) -> None:
    """What the device publishes decides, not what this process was set up with."""
    assert allocation.rules_of(chosen(profile=profile)) == RULES[profile]


def test_a_profile_that_is_not_known_counts_as_strict() -> None:
    """D3: a pool of a later version is rather held than not."""
    found = device("gpu-0")
    shown = entry(found)
    shown["attributes"]["sanitizationProfile"] = {"string": "paranoid"}
    choice = choose(claim(), scene(view(found), slices=[slice_of(shown)]))
    assert isinstance(choice, Choice)
    assert allocation.rules_of(choice) == RULES[Profile.STRICT]


@pytest.mark.parametrize(
    ("mine", "theirs", "yields"),
    [
        (ours(), rival(POD), True),
        (ours(MARKS.hold(node="n1", uid="u")), rival(POD), True),
        (ours(POD), rival(POD), False),
        (ours(), rival(), False),
        (ours(), rival(POD, adminAccess=True), False),
        (ours(), rival(POD, device="gpu-1"), False),
        (ours(), rival(POD, pool="n2"), False),
        (ours(), rival(POD, driver="x.example.com"), False),
    ],
)
def test_we_give_way_to_a_waiting_pod_only(
    mine: ClaimReading, theirs: Object, yields: bool
) -> None:
    """At most one is exposed either way, for the lease is ours: it is about who has to wait."""
    found = allocation.rival(mine, [mine.raw, theirs], DRIVER)
    assert (found is theirs) is yields
    assert (found is None) is not yields
