"""Which devices a claim gets: the scheduler's rules, and only what its node shows clean, free."""

from __future__ import annotations

import pytest

from fleet.control.binding.device_choice import Choice, NoChoice, choose
from fleet.core import errors
from fleet.core.messages import NodeView
from tests.fleet.control.binding.scenes import (
    DRIVER,
    NOW,
    allocated,
    claim,
    device,
    device_class,
    entry,
    request,
    result,
    scene,
    slice_of,
    view,
)

NUMA = f'device.attributes["{DRIVER}"].numaNode'


def two_nodes() -> tuple[NodeView, NodeView]:
    """Two devices on n1, three on n2."""
    first = view(device("gpu-0"), device("gpu-1"))
    second = view(*(device(f"gpu-{number}", node="n2") for number in range(3)), node="n2")
    return first, second


def names(found: Choice | NoChoice) -> list[str]:
    """What was chosen, as ``request=device``."""
    assert isinstance(found, Choice), str(found)
    return [f"{pick.wish.name}={pick.offer.name}" for pick in found.picks]


def none(found: Choice | NoChoice) -> str:
    """Why nothing was."""
    assert isinstance(found, NoChoice)
    return str(found)


def test_one_node_serves_all_requests() -> None:
    """A claim's devices are all on one node: the first by name that has enough."""
    found = choose(claim(request(count=3)), scene(*two_nodes()))
    assert names(found) == ["gpu=gpu-0", "gpu=gpu-1", "gpu=gpu-2"]
    assert isinstance(found, Choice)
    assert found.node == "n2"
    assert found.devices == ("GPU-n2-gpu-0", "GPU-n2-gpu-1", "GPU-n2-gpu-2")


def test_the_same_facts_lead_to_the_same_choice() -> None:
    """Nothing depends on the order in which nodes, slices or claims are listed."""
    first, second = two_nodes()
    found = [choose(claim(), scene(*views)) for views in ((first, second), (second, first))]
    assert [names(one) for one in found] == [["gpu=gpu-0"]] * 2
    assert all(isinstance(one, Choice) and one.node == "n1" for one in found)


def test_each_request_gets_devices_of_its_own() -> None:
    """Two requests never share a device; selectors of class and request both count."""
    views = view(device("gpu-0", attributes={"numa": "1"}), device("gpu-1"))
    wanted = claim(request("any"), request("near", f"{NUMA} == 1"))
    assert names(choose(wanted, scene(views))) == ["any=gpu-1", "near=gpu-0"]


def test_the_first_alternative_that_can_be_served_is_taken() -> None:
    """firstAvailable: in order, and the allocation names request and alternative."""
    wanted = claim(
        {
            "name": "gpu",
            "firstAvailable": [
                {"name": "four", "deviceClassName": "gpu", "count": 4},
                {"name": "two", "deviceClassName": "gpu", "count": 2},
            ],
        }
    )
    assert names(choose(wanted, scene(*two_nodes()))) == ["gpu/two=gpu-0", "gpu/two=gpu-1"]


def test_all_means_every_device_or_none() -> None:
    """allocationMode All: one matching device that is not to be had fails the node."""
    wanted = claim(request(allocationMode="All"))
    assert names(choose(wanted, scene(*two_nodes()))) == ["gpu=gpu-0", "gpu=gpu-1"]
    broken = view(device("gpu-0"), device("gpu-1", state="DIRTY"))
    told = none(choose(wanted, scene(broken)))
    assert "lacks gpu-1, which request gpu asks for: not clean (DIRTY)" in told
    assert none(choose(claim(request("gpu", "false", allocationMode="All")), scene(broken)))


def test_all_of_another_driver_is_not_ours_to_give() -> None:
    """A request for all devices that another driver's match too is left to the scheduler."""
    around = scene(*two_nodes()[:1], classes={"gpu": device_class("gpu", "true")})
    foreign = slice_of({"name": "nic-0"}, driver="net.example.com")
    more = scene(
        *two_nodes()[:1],
        classes={"gpu": device_class("gpu", "true")},
        slices=[*around.slices, foreign],
    )
    wanted = claim(request(allocationMode="All"))
    assert len(names(choose(wanted, around))) == 2
    assert "another driver's" in none(choose(wanted, more))
    assert len(names(choose(claim(), more))) == 1


def test_constraints_hold_over_requests() -> None:
    """matchAttribute: all devices of the requests named have the same value, found by trying."""
    views = view(
        device("gpu-0", attributes={"numa": "0"}),
        device("gpu-1", attributes={"numa": "1"}),
        device("gpu-2", attributes={"numa": "1"}),
    )
    constraint = {"requests": ["a", "b"], "matchAttribute": f"{DRIVER}/numaNode"}
    wanted = claim(request("a"), request("b"), constraints=[constraint])
    assert names(choose(wanted, scene(views))) == ["a=gpu-1", "b=gpu-2"]
    missing = {"matchAttribute": "x.example.com/none"}
    told = none(choose(claim(constraints=[missing]), scene(views)))
    assert "3 devices not enough with the others" in told


def test_devices_that_share_memory_are_never_given_together() -> None:
    """A partition and its parent, or one that overlaps a device in use, are not to be had."""
    units = ("GPU-n1/0", "GPU-n1/1")
    views = view(
        device("whole", units=units), device("p0", units=units[:1]), device("p1", units=units[1:])
    )
    assert names(choose(claim(request(count=2)), scene(views))) == ["gpu=p0", "gpu=p1"]
    used = scene(views, claims=[allocated(result("p0"))])
    assert names(choose(claim(), used)) == ["gpu=p1"]
    told = none(choose(claim(request(count=2)), used))
    assert "1 device allocated to another claim" in told
    assert "1 device overlapping an allocated one" in told


def test_devices_that_consume_one_counter_are_never_given_together() -> None:
    """KEP-4815: what the scheduler would not allocate side by side we do not either, whatever the
    node's view says of their memory."""
    amounts = {"m0": {"value": "1"}}
    consumed = [{"counterSet": "a-memory", "counters": amounts}]
    views = view(device("a"), device("b"), device("c"))
    entries = [entry(one) for one in views.devices]
    for one in entries[:2]:
        one["consumesCounters"] = consumed
    sets = slice_of(count=2)
    del sets["spec"]["devices"]
    sets["spec"]["sharedCounters"] = [{"name": "a-memory", "counters": amounts}]
    both = scene(views, slices=[slice_of(*entries, count=2), sets])
    assert names(choose(claim(request(count=2)), both)) == ["gpu=a", "gpu=c"]
    assert "not enough with the others" in none(choose(claim(request(count=3)), both))
    alone = scene(views, slices=[slice_of(*entries, count=1)])
    assert "3 devices in an incomplete pool" in none(choose(claim(), alone))


def test_why_nothing_was_chosen_is_counted() -> None:
    """In the scheduler's manner: nodes, then devices by what is in their way."""
    views = view(
        device("gpu-0", state="WIPING"),
        device("gpu-1", claim="uid"),
        device("gpu-2", checked_at=NOW - 61),
        device("gpu-3"),
        device("gpu-4", attributes={"numa": "1"}),
    )
    found = choose(
        claim(request("gpu", f"{NUMA} == 0", count=3)), scene(views, barred={"GPU-n1-gpu-3"})
    )
    assert none(found) == (
        "0/1 nodes can serve the claim: 1 cannot allocate all requests (1 device held by a claim,"
        " 1 device not checked of late, 1 device not clean (WIPING), 1 device not selected,"
        " 1 device tried and not to be had)"
    )
    assert none(choose(claim(), scene())) == "0/0 nodes can serve the claim: there is none"


def test_taints_keep_off_who_does_not_tolerate_them() -> None:
    """B17: a foreign taint is tolerated as Kubernetes says; a quarantine never is."""
    tainted = {"key": "x.example.com/reserved", "value": "a", "effect": "NoSchedule"}
    found = device("gpu-0")
    slices = [slice_of(entry(found, taints=[tainted]))]
    around = scene(view(found), slices=slices)
    assert "tainted x.example.com/reserved" in none(choose(claim(), around))
    exact = {"key": "x.example.com/reserved", "operator": "Equal", "value": "a"}
    wanted = claim(request(tolerations=[exact]))
    assert names(choose(wanted, around)) == ["gpu=gpu-0"]
    everything = claim(request(tolerations=[{"operator": "Exists"}]))
    assert names(choose(everything, around)) == ["gpu=gpu-0"]
    other = claim(request(tolerations=[{**exact, "value": "b"}, {**exact, "effect": "NoExecute"}]))
    assert none(choose(other, around))
    unfit = scene(view(device("gpu-0", state="QUARANTINED")), slices=slices)
    assert "quarantined" in none(choose(everything, unfit))


def test_configuration_goes_with_the_choice() -> None:
    """Class entries for the requests served, then the claim's that concern them."""
    opaque = {"opaque": {"driver": DRIVER, "parameters": {"a": 1}}}
    mine = {"opaque": {"driver": DRIVER, "parameters": {"b": 2}}}
    around = scene(
        view(device("gpu-0")), classes={"gpu": device_class("gpu", "true", config=[opaque])}
    )
    wanted = claim(
        request(), config=[mine, {"requests": ["gpu"], **mine}, {"requests": ["x"], **mine}]
    )
    found = choose(wanted, around)
    assert isinstance(found, Choice)
    assert found.config == (
        {"source": "FromClass", "requests": ["gpu"], **opaque},
        {"source": "FromClaim", **mine},
        {"source": "FromClaim", "requests": ["gpu"], **mine},
    )


def test_only_what_was_secured_is_chosen_again() -> None:
    """Deciding anew over devices that we lease: nothing else, and our own stale taint is no word
    against what their node says now."""
    views = view(device("gpu-0"), device("gpu-1"))
    taint = {"key": f"{DRIVER}/not-clean", "effect": "NoSchedule"}
    slices = [slice_of(*(entry(found, taints=[taint]) for found in views.devices))]
    around = scene(views, slices=slices, only={"GPU-n1-gpu-1"})
    assert names(choose(claim(), around)) == ["gpu=gpu-1"]
    assert none(choose(claim(), scene(views, slices=slices)))


def test_the_search_is_bounded() -> None:
    """Constraints over many like devices end with an error, not with the session."""
    views = view(
        *(device(f"gpu-{number:02}", attributes={"numa": str(number)}) for number in range(40))
    )
    wanted = claim(request(count=8), constraints=[{"matchAttribute": f"{DRIVER}/productName"}])
    assert len(names(choose(wanted, scene(views)))) == 8
    apart = claim(request("a", count=16), request("b", "false"), constraints=[])
    with pytest.raises(errors.InputInvalid, match="too many combinations"):
        choose(apart, scene(views))
