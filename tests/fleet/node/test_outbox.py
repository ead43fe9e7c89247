"""What a node owes to others."""

from __future__ import annotations

import time

from fleet.messages import ClaimOrder
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
