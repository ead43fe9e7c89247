"""What is answered at the door, beyond what kubelet's side asks: operators' decisions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.core import errors
from fleet.core.leases import ClosedBy, Closure
from fleet.core.messages import DeviceView, Outcome
from fleet.core.model import Holder, HolderKind, NodeName
from fleet.rpc.client import DoorNode
from fleet.wiring import adapters
from tests.fleet.node.conftest import Lab


@pytest.fixture
def door(lab: Lab) -> Iterator[DoorNode]:
    """The lab's node from outside."""
    found = adapters.open_door(lab.plan)
    yield found
    found.close()


def device(door: DoorNode) -> DeviceView:
    """gpu-0 as the door shows it."""
    return next(d for d in door.view().devices if d.name == "gpu-0")


def test_an_operator_decides_whoever_owns_the_node(lab: Lab, door: DoorNode) -> None:
    """E1: quarantine, its end and adoption work without Ray and without taking the journal."""
    added = door.quarantine_add("gpu-0", detail="smells of smoke", operator="me")
    assert [reason.detail for reason in added.reasons] == ["smells of smoke"]
    assert device(door).reasons == lab.device().reasons
    cleared = door.quarantine_clear("gpu-0", codes=("operator",), operator="me")
    assert cleared.reasons == ()
    door.adopt(devices=("gpu-0",), operator="me")
    acts = [act["act"] for act in lab.node._registry.journal.acts()]
    assert acts[:2] == ["quarantine add", "quarantine clear"]
    assert acts[-1] == "adopt"


def test_errors_of_decisions_cross_as_what_they_are(door: DoorNode) -> None:
    """The other side of the door knows one tree of errors."""
    with pytest.raises(errors.DeviceUnknown):
        door.quarantine_add("gpu-9", detail="x", operator="me")
    with pytest.raises(errors.InputInvalid, match="no reason"):
        door.quarantine_clear("gpu-0", codes=("unheard-of",), operator="me")
    with pytest.raises(errors.EpochForeign):
        door.follow_epoch(0, operator="me")


def test_health_is_read_at_the_door(door: DoorNode) -> None:
    """A1: a sweep asked for at the door reads every accelerator and tells what it found."""
    swept = door.sweep()
    assert {seen.device for seen in swept} == {d.name for d in door.view().devices if not d.profile}
    assert not any(seen.failing for seen in swept)


def test_results_of_operations_cross(lab: Lab, door: DoorNode) -> None:
    """A scrub ordered elsewhere can be followed at the door by its operation id."""
    order = lab.order()
    lab.node.scrub([order])
    lab.result(order.operation)
    (result,) = door.view([order.operation]).results
    assert result.operation == order.operation


def test_a_coordinator_scrubs_and_abandons_at_the_door(lab: Lab, door: DoorNode) -> None:
    """DESIGN 5, Pre-bind: orders, their results and the closure of a token cross the door."""
    claim = Holder(HolderKind.CLAIM, "claim-a")
    lease = lab.lease("gpu-0", holder=claim)
    order = lab.order(lease=lease)
    (accepted,) = door.scrub([order])
    assert (accepted.operation, accepted.accepted) == (order.operation, True)
    lab.result(order.operation)
    assert door.view([order.operation]).results[0].outcome is Outcome.CERTIFIED
    astray = order.model_copy(update={"operation": "astray", "node": "another"})
    (refused,) = door.scrub([astray])
    assert (refused.accepted, refused.kind) == (False, "WrongNode")
    door.cancel([order.operation, "unheard-of"])
    closure = door.abandon("claim-a", str(lease.token), [order.device])
    assert closure == Closure(claim, lease.token, NodeName(order.node), ClosedBy.ABANDON)
    assert device(door).closed


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("scrub", {"orders": [{"operation": "x"}]}),
        ("cancel", {"operations": "x"}),
        ("abandon", {"uid": "a", "token": 7, "devices": []}),
        ("quarantine_add", {"device": "gpu-0"}),
        ("quarantine_clear", {"device": "gpu-0", "codes": "operator", "operator": "me"}),
        ("adopt", {"devices": [1], "operator": "me"}),
        ("partition", {"device": "gpu-0", "on": "yes", "operator": "me"}),
        ("follow_epoch", {"epoch": "7", "operator": "me"}),
        ("view", {"operations": {"a": 1}}),
    ],
)
def test_arguments_of_another_kind_are_named(
    door: DoorNode, name: str, given: dict[str, object]
) -> None:
    """Bad input gets an error that says which argument is wrong, and changes nothing."""
    before = door.view().devices
    with pytest.raises(errors.InputInvalid):
        door._call(name, given, 5.0)
    assert door.view().devices == before


def test_partitioning_is_asked_for_at_the_door(door: DoorNode) -> None:
    """gpus-8.26: the order reaches the node, whose own refusal comes back."""
    with pytest.raises(errors.InputInvalid, match="simulated back end has no partitioning"):
        door.partition("gpu-0", on=True, operator="me")
