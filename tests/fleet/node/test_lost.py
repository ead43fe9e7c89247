"""A node that was declared lost begins as with a lost journal, restarted or not."""

from __future__ import annotations

import pytest

from fleet.control.repair.lost_nodes import Parting, forget
from fleet.core import errors
from fleet.core.claim_states import ClaimState
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind, Lease, OperationId, State
from fleet.node.lost import LOOK_PERIOD_S, MARK_TTL_S, lost_unit
from fleet.node.registry import Work
from tests.fleet.control.repair.conftest import MARKS
from tests.fleet.node.conftest import Lab, wait_for


def declare(lab: Lab) -> Lease:
    """An operator declares the node lost."""
    request = AcquireRequest(
        frozenset({lost_unit("n1")}), Holder(HolderKind.OPERATOR, "me"), ttl_s=MARK_TTL_S
    )
    (lease,) = lab.coordinator.acquire([request])
    assert isinstance(lease, Lease)
    return lease


def marked(lab: Lab) -> bool:
    """Whether the mark is still there."""
    return any(lost_unit("n1") in lease.units for lease in lab.coordinator.leases())


def look(lab: Lab) -> None:
    """The next look of a running node is due."""
    lab.node._lost._looked_at = float("-inf")
    lab.node.tick(0.0)


def test_a_restarted_node_starts_held(lab: Lab) -> None:
    """DESIGN 4: nothing is CLEAN, every token issued so far is closed, no spec is trusted."""
    lab.free()
    lab.scrub()
    lab.let_go()
    lab.node.prepare(lab.claim("u", "gpu-0"))
    assert lab.specs
    newest = lab.newer_token()
    declare(lab)
    lab.restart()
    view = lab.node.view()
    assert {device.state for device in view.devices} == {"HELD"}
    assert all(device.closed and device.floor >= str(newest) for device in view.devices)
    assert not any(device.certificate for device in view.devices)
    assert lab.specs == []
    assert not marked(lab)


def test_a_node_that_was_only_cut_off_begins_anew_too(lab: Lab) -> None:
    """DESIGN 4: a running node notices within its look; what it does then is the same."""
    lab.free()
    lab.scrub()
    assert lab.device().state == "CLEAN"
    declare(lab)
    lab.node.tick(0.0)
    assert lab.device().state == "CLEAN", "it looks on a period, not with every step"
    lab.node._lost._looked_at -= LOOK_PERIOD_S
    lab.node._follow()
    assert lab.device().state == "HELD"
    assert not marked(lab)
    acts = lab.node._registry.journal.acts()
    assert ("declared lost", "me") in {(act["act"], act["operator"]) for act in acts}


def test_old_tokens_are_refused_and_new_ones_serve(lab: Lab) -> None:
    """Promise 2: what was granted before the node was given up is worth nothing there."""
    lab.free()
    order = lab.order()
    lab.let_go()
    declare(lab)
    look(lab)
    (acceptance,) = lab.node.scrub([order])
    assert acceptance.kind == "TokenStale"
    wait_for(lambda: lab.device().state in ("HELD", "DIRTY"))
    lab.node.adopt(operator="me")
    assert lab.scrub().outcome == "certified"


def test_the_claim_that_was_there_is_freed_by_its_teardown_only(lab: Lab) -> None:
    """Promise 4: its tenant may still run: the units stay HELD under its record."""
    lab.free()
    lab.node.prepare(lab.claim("u", "gpu-0"))
    declare(lab)
    look(lab)
    lab.node.tick(0.0)
    record = lab.node._registry.journal.claims
    assert {uid: claim.state for uid, claim in record.items()} == {"u": ClaimState.PREPARING}
    assert lab.device().state == State.HELD
    with lab.tenant(), pytest.raises(errors.DeviceBusy):
        lab.node.unprepare("u", budget_s=0.3)
    wait_for(lambda: lab.node._parts.holding.flights.get("u") is None)  # type: ignore[arg-type]
    lab.node.unprepare("u")
    assert lab.device().state == State.CLEAN


def test_reasons_survive(lab: Lab) -> None:
    """Promise 5: a quarantined device is quarantined again once it is proven free."""
    lab.free()
    lab.node.quarantine_add("gpu-0", detail="smells", operator="me")
    declare(lab)
    look(lab)
    lab.node.tick(0.0)
    device = lab.device()
    assert device.state == State.QUARANTINED
    assert device.reasons[0].detail == "smells"


def test_work_in_hand_ends_before_anything_is_given_up(lab: Lab) -> None:
    """Promise 7: a wipe in work is cancelled and joined first; meanwhile no order is taken."""
    lab.free()
    registry = lab.node._registry
    work = Work(OperationId("w"), registry.device("gpu-0"), idle=False)
    assert registry.reserve(work) is None
    declare(lab)
    look(lab)
    assert work.cancel.is_set()
    assert marked(lab)
    with pytest.raises(errors.StoreUnavailable, match="declared lost by me"):
        lab.node.prepare(lab.bare("u", "gpu-1"))
    registry.unreserve(work)
    look(lab)
    assert not marked(lab)


def test_a_store_that_is_away_says_nothing(lab: Lab) -> None:
    """Promise 7: without the store nobody knows; the node goes on and looks again."""
    lab.free()
    with lab.store_away():
        look(lab)
        assert lab.node._follow()
    declare(lab)
    look(lab)
    assert not marked(lab)


def test_a_forgotten_node_is_of_one_mind_with_the_store_again(lab: Lab) -> None:
    """Promise 2: after `forget` and the return no lease and no exposure contradict each other."""
    lab.free()
    lab.node.prepare(lab.claim("u", "gpu-0"))
    accelerator = lab.device().accelerator
    parting = Parting(marks=MARKS, coordinator=lab.coordinator, devices=frozenset({accelerator}))
    assert forget("n1", parting, operator="me").leases == ("claim:u",)
    look(lab)
    lab.node.unprepare("u")
    lab.node.tick(0.0)
    assert lab.leases_of("u") == []
    assert lab.node.prepare(lab.claim("v", "gpu-0")).state == ClaimState.PREPARED
