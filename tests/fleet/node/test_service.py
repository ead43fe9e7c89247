"""The face of a node: orders are idempotent, refused without effect, and always answered."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.messages import Outcome, ScrubOrder
from fleet.core.model import Holder, HolderKind, Lease, OperationId, State, Token, UnitId, Uuid
from fleet.core.unit_states import close_floor
from fleet.node.registry import Work
from fleet.wiring import adapters
from fleet.wiring.adapters import SimulatedNode
from tests.fleet.node.conftest import Lab, wait_for


def test_a_replayed_order_does_nothing_twice(lab: Lab) -> None:
    """B43: the recorded answer comes back, no second wipe, also after a restart."""
    order = lab.order()
    lab.node.scrub([order])
    first = lab.result(order.operation)
    memory = lab.memory()
    memory.write_bytes(b"\x11" * memory.size_bytes)
    for _ in range(2):
        (again,) = lab.node.scrub([order])
        assert again.accepted
        assert lab.node._registry.works() == []
        assert lab.result(order.operation) == first
        lab.restart()
    assert set(memory.read_bytes()) == {0x11}
    assert lab.ledger.count == 1


def test_concurrent_copies_of_an_order_are_one_wipe(lab: Lab) -> None:
    """B43: two deliveries at the same moment are one operation."""
    order = lab.order()
    threads = [threading.Thread(target=lab.node.scrub, args=([order],)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lab.result(order.operation).outcome is Outcome.CERTIFIED
    assert lab.ledger.count == 1


def test_an_order_for_another_node_touches_nothing(lab: Lab) -> None:
    """B54: a command that went astray is refused by name before anything is looked at."""
    order = lab.order().model_copy(update={"node": "n2"})
    (refused,) = lab.node.scrub([order])
    assert (refused.accepted, refused.kind) == (False, "WrongNode")
    assert lab.device().state == State.DIRTY
    assert lab.node.view([order.operation]).results == ()


def test_refused_tokens_raise_no_floor(lab: Lab) -> None:
    """V5: stale or foreign, the answer names the floor and nothing changes."""
    lab.scrub()
    (unit,) = lab.units()
    sequence = lab.node._registry.journal.sequence
    floor = unit.floor
    for token, kind in (
        (Token(floor.epoch, floor.counter - 1), "TokenStale"),
        (Token(floor.epoch + 1, 1), "EpochForeign"),
    ):
        order = lab.order().model_copy(update={"token": str(token)})
        (refused,) = lab.node.scrub([order])
        assert refused.kind == kind
        assert str(floor) in refused.fields.values() or kind == "EpochForeign"
    assert lab.units() == [unit]
    assert lab.node._registry.journal.sequence == sequence


def test_the_floor_rises_with_an_act_carried_out_not_with_one_that_was_not(lab: Lab) -> None:
    """V5: an order that ends as in use, held, busy or quarantined leaves the floor where it was."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    newer = lab.newer_token()
    lease = Lease(frozenset(), Holder(HolderKind.OPERATOR, "x"), newer)
    before = lab.units()
    assert lab.scrub(lease=lease).outcome is Outcome.IN_USE
    assert lab.units() == before
    lab.node.quarantine_add("gpu-1", detail="x", operator="ada")
    assert lab.scrub("gpu-1", lease=lease).outcome is Outcome.QUARANTINED
    assert newer not in {unit.floor for unit in lab.units("gpu-1")}
    lab.node.quarantine_clear("gpu-1", operator="ada")
    assert lab.scrub("gpu-1", lease=lease).outcome is Outcome.CERTIFIED
    assert {unit.floor for unit in lab.units("gpu-1")} == {newer}


def test_an_older_order_that_waited_is_refused_when_its_turn_comes(lab: Lab) -> None:
    """Promise 2: the token is judged in the commit that starts the wipe, not only on arrival."""
    slots = [lab.node._parts.wiper._slots.acquire() for _ in range(8)]
    order = lab.order()
    lab.node.scrub([order])
    wait_for(lambda: lab.device().operation == order.operation)
    newest = Token.parse(order.token)
    with lab.node._registry.commit() as commit:
        for unit in lab.device().units:
            commit.put_unit(close_floor(commit.unit(UnitId(unit)), newest))
    for _ in slots:
        lab.node._parts.wiper._slots.release()
    result = lab.result(order.operation)
    assert (result.outcome, result.state) == (Outcome.REFUSED, State.DIRTY)
    assert "TokenStale" in {found.check for found in result.findings}


def test_two_orders_on_one_device_are_one_wipe_and_one_busy(lab: Lab) -> None:
    """One operation at a time per unit; the second is told who has it."""
    lab.fault("hang")
    first = lab.order()
    lab.node.scrub([first])
    wait_for(lambda: lab.device().state == State.WIPING)
    second = lab.order()
    lab.node.scrub([second])
    busy = lab.result(second.operation)
    assert busy.outcome is Outcome.BUSY
    assert first.operation in busy.findings[0].detail
    lab.node.cancel([first.operation])
    assert lab.result(first.operation).outcome is Outcome.INTERRUPTED


def test_an_order_can_follow_a_result_at_once(lab: Lab) -> None:
    """Who has read a result can order again: the device is free before the answer is."""
    for _ in range(5):
        assert lab.scrub().outcome is Outcome.CERTIFIED


def test_idle_cleaning_gives_way_to_an_order(lab: Lab) -> None:
    """The node's own initiative never makes anybody wait."""
    lab.fault("hang")
    lab.node.tick(lab.node.view().at + 100.0)
    wait_for(lambda: lab.device().state == State.WIPING)
    assert lab.device().operation.startswith("idle/")
    lab.backend.clear_fault(Uuid(lab.device().uuid), "hang")
    assert lab.scrub().outcome is Outcome.CERTIFIED


def test_no_more_wipes_at_once_than_allowed_whoever_asked(lab: Lab) -> None:
    """NodeSettings.max_parallel counts orders, idle cleaning and claims alike."""
    node = lab.settings.node.model_copy(update={"max_parallel": 1})
    lab.restart(settings=lab.settings.model_copy(update={"node": node}))
    lab.fault("hang", times=1)
    first = lab.order()
    lab.node.scrub([first])
    wait_for(lambda: lab.device().state == State.WIPING)
    second = lab.order("gpu-1")
    lab.node.scrub([second])
    wait_for(lambda: lab.device("gpu-1").operation == second.operation)
    assert lab.device("gpu-1").state == State.DIRTY
    lab.node.cancel([first.operation])
    assert lab.result(second.operation).outcome is Outcome.CERTIFIED


def test_what_waits_for_a_slot_can_be_cancelled(lab: Lab) -> None:
    """A cancelled order that never began has touched nothing."""
    for _ in range(8):
        lab.node._parts.wiper._slots.acquire()
    order = lab.order()
    lab.node.scrub([order])
    lab.node.cancel([order.operation, "unknown"])
    result = lab.result(order.operation)
    assert (result.outcome, result.state) == (Outcome.INTERRUPTED, State.DIRTY)
    assert lab.ledger.count == 0
    for _ in range(8):
        lab.node._parts.wiper._slots.release()


def test_drain_leaves_dirty_and_the_next_owner_serves(lab: Lab) -> None:
    """B50: the old owner cancels, joins, unlocks; the newcomer finds nothing in work."""
    lab.fault("hang", times=2)
    lab.fault("hang", device="gpu-1")
    orders = [lab.order("gpu-0"), lab.order("gpu-1")]
    lab.node.scrub(orders)
    wait_for(lambda: {lab.device(f"gpu-{n}").state for n in (0, 1)} == {State.WIPING})
    old = lab.node
    claim = lab.claim("claim-a", "gpu-1", lease=lab.lease("gpu-1"))
    old.drain()
    assert {lab.device(f"gpu-{n}").state for n in (0, 1)} == {State.DIRTY}
    (refused,) = old.scrub([lab.order()])
    assert refused.kind == "NotOwner"
    for call in (
        lambda: old.prepare(claim),
        lambda: old.unprepare("claim-a"),
        lambda: old.abandon("claim-a", "1.1", []),
        old.sweep,
    ):
        with pytest.raises(errors.NotOwner):
            call()
    old.tick(1e12)
    with pytest.raises(errors.NotOwner):
        adapters.open_node(lab.plan)
    old.close()
    lab.open()
    assert [r.outcome for r in lab.node.view([o.operation for o in orders]).results] == [
        Outcome.INTERRUPTED
    ] * 2
    assert lab.node._registry.journal.workers() == []


def test_drain_ends_a_prepare_whose_record_the_next_owner_carries_on(lab: Lab) -> None:
    """Promise 7: a hand-over in the middle of a prepare loses nothing."""
    lab.fault("hang")
    order = lab.claim("claim-a", "gpu-0")
    with pytest.raises(errors.DeviceBusy):
        lab.node.prepare(order, budget_s=0.3)
    lab.node.close()
    lab.backend.clear_fault(lab.backend.inventory()[0].uuid, "hang")
    lab.open()
    assert lab.device().state == State.DIRTY
    assert lab.node.prepare(order).state == "PREPARED"


def test_close_while_everything_runs(lab: Lab) -> None:
    """Promise 7: close at any moment; the next start finds no worker, no spec and no lock left."""
    orders = [lab.order("gpu-0"), lab.order("gpu-1")]
    for moment in (0.0, 0.05, 0.15, 0.3):
        lab.node.scrub(
            [o.model_copy(update={"operation": f"{o.operation}/{moment}"}) for o in orders]
        )
        lab.node.tick(lab.node.view().at + 1000.0)
        threading.Event().wait(moment)
        lab.restart()
        assert lab.node._registry.journal.workers() == []
        assert lab.node._registry.journal.unfinished() == []
        for name in ("gpu-0", "gpu-1"):
            state, certificate = lab.device(name).state, lab.device(name).certificate
            assert (state == State.CLEAN) == bool(certificate)
            assert state in (State.CLEAN, State.DIRTY)


def test_a_journal_that_cannot_be_written_leaves_no_trap(lab: Lab) -> None:
    """Promise 7: a full disk in the middle of a wipe is over when the disk is not full any more."""
    database = lab.node._registry.journal._database
    order = lab.order()
    lab.fault("hang")
    lab.node.scrub([order])
    wait_for(lambda: lab.device().state == State.WIPING)
    database.execute("PRAGMA query_only=ON")
    lab.node.cancel([order.operation])
    wait_for(lambda: lab.device().operation == "")
    assert lab.node.view([order.operation]).results == ()
    assert lab.device().state == State.WIPING
    database.execute("PRAGMA query_only=OFF")
    lab.node.tick(0.0)
    assert lab.device().state == State.DIRTY
    assert lab.result(order.operation).outcome in (Outcome.FAILED, Outcome.INTERRUPTED)
    assert lab.node._registry.journal.workers() == []


def test_a_defect_in_a_wipe_answers_its_operation_and_frees_its_units(lab: Lab) -> None:
    """B03: an error nobody foresaw leaves neither an open operation nor a unit in work."""
    key = lab.node._parts.certifier
    object.__setattr__(key, "key", None)
    result = lab.scrub()
    assert (result.outcome, result.state) == (Outcome.QUARANTINED, State.QUARANTINED)
    assert any("unexpectedly" in found.detail for found in result.findings)
    assert all(reason.liftable for reason in lab.device().reasons)
    assert lab.node._registry.works() == []


def test_a_claim_and_a_scrub_at_the_same_moment(lab: Lab) -> None:
    """Promise 4: whoever commits first has the device; nothing is wiped once it is exposed."""
    lease = lab.lease("gpu-0", holder=Holder(HolderKind.CLAIM, "claim-a"))
    lab.scrub(lease=lease)
    claim = lab.claim("claim-a", "gpu-0", lease=lease)
    newer = Lease(frozenset(), Holder(HolderKind.OPERATOR, "x"), lease.token)
    order = lab.order(lease=newer)
    lab.node.scrub([order])
    try:
        answer = lab.node.prepare(claim)
    except errors.DeviceBusy:
        lab.result(order.operation)
        answer = lab.node.prepare(claim)
    assert answer.state == "PREPARED"
    lab.result(order.operation)
    assert lab.device().state == State.IN_USE
    assert lab.device().certificate in answer.certificates


def test_a_batch_is_answered_order_by_order(lab: Lab) -> None:
    """One bad order refuses itself, not its neighbours."""
    good, bad = lab.order(), lab.order("gpu-1").model_copy(update={"device": "gpu-7"})
    accepted, refused = lab.node.scrub([good, bad])
    assert (accepted.accepted, refused.kind) == (True, "DeviceUnknown")
    assert lab.result(good.operation).outcome is Outcome.CERTIFIED


def test_an_unknown_operation_has_no_result_and_a_new_service_a_new_name(lab: Lab) -> None:
    """An answer of an older incarnation is stale; an operation never heard of has no answer."""
    first = lab.node.view(["nothing"])
    assert first.results == ()
    lab.restart()
    assert lab.node.view().incarnation != first.incarnation
    assert lab.node.head().count == lab.ledger.count


def test_an_operation_is_open_until_it_is_recorded(lab: Lab) -> None:
    """A reader never sees an operation as lost that is still being worked on."""
    lab.fault("hang")
    order = lab.order()
    lab.node.scrub([order])
    wait_for(lambda: lab.device().state == State.WIPING)
    for now in (0.0, 1.0, 2.0):
        lab.node.tick(now)
        assert lab.node.view([order.operation]).results == ()
    lab.node.cancel([order.operation])
    lab.result(order.operation)


def test_work_of_somebody_else_is_not_settled(lab: Lab) -> None:
    """Settling takes only what nobody has: a reserved unit is somebody's."""
    registry = lab.node._registry
    device = registry.device("gpu-0")
    work = Work(OperationId("mine"), device, idle=False)
    registry.reserve(work)
    with registry.commit() as commit:
        commit.put_unit(replace(commit.unit(device.units[0]), state=State.WIPING))
    lab.node.tick(0.0)
    assert lab.device().state == State.WIPING
    registry.unreserve(work)
    lab.node.tick(1.0)
    assert lab.device().state == State.DIRTY


def test_one_shot_of_many_devices(lab: Lab) -> None:
    """Partitions of one parent are wiped in parallel, each with its own certificate."""
    names = [f"gpu-1-1g-{number}" for number in range(3)]
    orders: list[ScrubOrder] = [lab.order(name) for name in names]
    lab.node.scrub(orders)
    results = [lab.result(order.operation) for order in orders]
    assert {result.outcome for result in results} == {Outcome.CERTIFIED}
    assert len({result.certificate for result in results}) == 3
    assert isinstance(lab.plan.simulated, SimulatedNode)
    units = frozenset(UnitId(u) for n in names for u in lab.device(n).units)
    (held,) = lab.coordinator.acquire([AcquireRequest(units, Holder(HolderKind.CLAIM, "c"))])
    assert isinstance(held, errors.LeaseHeld)


def test_an_answer_that_is_kept_already_is_no_trouble(lab: Lab) -> None:
    """Promise 7: the wipe's own thread and the step may both come to keep one answer."""
    order = lab.order()
    lab.node.scrub([order])
    result = lab.result(order.operation)
    lab.node._record(OperationId(order.operation))
    assert lab.node.view([order.operation]).results == (result,)
