"""What a node owes to others."""

from __future__ import annotations

import time

from fleet.core.messages import ClaimOrder, Owed
from fleet.core.model import NO_TOKEN, Holder, HolderKind, Lease
from fleet.node.outbox import RELEASE
from tests.fleet.node.conftest import Lab


def test_a_lease_owed_is_given_back_when_the_next_claim_asks(lab: Lab) -> None:
    """D6: the next claim of a device does not wait for the node's next step."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    lab.node.unprepare("claim-a")
    assert lab.node.view().outbox == 1
    order = ClaimOrder(uid="claim-b", node="n1", devices=("gpu-0",), consumers=("pod-2",))
    assert lab.node.prepare(order).state == "PREPARED"
    assert lab.node.view().outbox == 0
    assert [str(lease.holder) for lease in lab.coordinator.leases()] == ["claim:claim-b"]


def test_what_cannot_be_given_back_now_stays_owed(lab: Lab) -> None:
    """Promise 7: nothing is forgotten while the store is away, and it is tried again."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    lab.node.unprepare("claim-a")
    outbox, now = lab.node._tending.outbox, time.time()
    with lab.store_away():
        outbox.drain(now)
        assert lab.node.view().outbox == 1
    outbox.drain(now + 0.5)
    assert lab.node.view().outbox == 1, "it waits before it tries again"
    outbox.drain(now + 120.0)
    assert lab.node.view().outbox == 0
    assert lab.coordinator.leases() == []


def test_two_at_once_do_not_do_it_twice(lab: Lab) -> None:
    """Whoever comes second leaves it to the first, and waits for nobody."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    lab.node.unprepare("claim-a")
    outbox = lab.node._tending.outbox
    with outbox._turn:
        outbox.drain(time.time())
        assert lab.node.view().outbox == 1
    outbox.drain(time.time())
    assert lab.node.view().outbox == 0


def held(lab: Lab, uid: str, device: str = "gpu-0") -> ClaimOrder:
    """A claim that our reservation is on."""
    return lab.bare(uid, device, namespace="team", name="job", held=True)


def drained(lab: Lab) -> None:
    lab.node._tending.outbox.drain(time.time())


def test_a_held_claim_is_owed_once_its_lease_was_given_back(lab: Lab) -> None:
    """D6: lease, then hold and finalizer; the word survives a restart and ends when it is paid."""
    lab.node.prepare(held(lab, "claim-a"))
    lab.node.unprepare("claim-a")
    view = lab.node.view()
    assert (view.outbox, view.owed, view.claims) == (1, (), ())
    drained(lab)
    lab.restart()
    (owed,) = lab.node.view().owed
    assert owed == Owed(uid="claim-a", namespace="team", name="job", devices=(lab.device().uuid,))
    assert lab.node.view().outbox == 0
    drained(lab)
    lab.node.paid(["claim-b"])
    assert len(lab.node.view().owed) == 1
    for _ in range(2):
        lab.node.paid(["claim-a", "claim-b"])
    assert lab.node.view().owed == ()


def test_a_claim_without_a_hold_owes_nothing(lab: Lab) -> None:
    """DESIGN 5, Profiles: in `lab`, or where the right is missing, nothing is taken off."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0", namespace="team", name="job"))
    lab.node.unprepare("claim-a")
    drained(lab)
    assert lab.node.view().owed == ()
    assert lab.node._registry.journal.outbox() == []


def test_a_claim_in_use_again_is_not_owed(lab: Lab) -> None:
    """B5: a named claim comes back under the same UID: its next burial owes its marks, once."""
    lab.node.prepare(held(lab, "claim-a"))
    lab.node.unprepare("claim-a")
    drained(lab)
    lab.node.prepare(held(lab, "claim-a"))
    assert lab.node.view().owed == ()
    lab.node.unprepare("claim-a")
    assert lab.node.view().owed == ()
    drained(lab)
    assert [one.uid for one in lab.node.view().owed] == ["claim-a"]
    lab.node.paid(["claim-a"])
    assert lab.node._registry.journal.outbox() == []


def test_marks_that_no_burial_owes_are_owed_once_and_survive(lab: Lab) -> None:
    """Promise 7: told of a claim without a record, or of one whose record does not know of them."""
    owed = Owed(uid="claim-a", namespace="team", name="job")
    for _ in range(2):
        lab.node.owe(owed)
    lab.restart()
    assert lab.node.view().owed == (owed,)
    lab.node.prepare(lab.bare("claim-a", "gpu-0", namespace="team", name="job"))
    assert lab.node.view().owed == ()
    lab.node.paid(["claim-a"])
    lab.node.unprepare("claim-a")
    drained(lab)
    assert lab.node.view().owed == (owed,), "what was let go was not this use"
    lab.node.paid(["claim-a"])
    assert lab.node._registry.journal.outbox() == []


def _owe(lab: Lab, lease: Lease, now: float) -> None:
    with lab.node._registry.commit() as commit:
        commit.enqueue(RELEASE, {"holder": str(lease.holder), "token": ""}, now)


def test_a_lease_the_record_never_learned_of_goes_under_whatever_epoch(lab: Lab) -> None:
    """Promise 7: one of an epoch put behind needs no closing; one of a store that the node does not
    follow yet waits until it does."""
    old = lab.lease("gpu-0", holder=Holder(HolderKind.CLAIM, "old"))
    adopted = lab.coordinator._leases.adopt(NO_TOKEN, "ops")
    new = lab.lease("gpu-1", holder=Holder(HolderKind.CLAIM, "new"))
    outbox, now = lab.node._tending.outbox, time.time()
    _owe(lab, new, now)
    outbox.drain(now)
    assert lab.coordinator.leases() == [old, new], "the node does not follow that store"
    lab.node.follow_epoch(adopted.epoch, operator="ops")
    _owe(lab, old, now)
    floor = lab.device("gpu-0").floor
    outbox.drain(now + 120.0)
    assert lab.coordinator.leases() == []
    assert lab.device("gpu-0").floor == floor
    assert lab.device("gpu-1").floor == str(new.token)
