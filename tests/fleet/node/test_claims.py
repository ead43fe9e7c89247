"""A claim's prepare and unprepare: one at a time, all or nothing, resumable (DESIGN 5)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from fleet.core import errors
from fleet.core.claim_states import ClaimEvent, ClaimState
from fleet.core.leases import ClosedBy, Closure
from fleet.core.messages import ClaimOrder, Outcome
from fleet.core.model import (
    NO_TOKEN,
    Digest,
    Holder,
    HolderKind,
    Lease,
    NodeName,
    State,
    Token,
    UnitId,
    Uuid,
)
from fleet.core.profiles import Profile
from fleet.devices.simulated import clients
from fleet.node.claims import Holding
from fleet.node.flights import Flight
from tests.fleet.node.conftest import Lab, wait_for
from tests.fleet.node.parting import parting

SPEC = "fleetscrub.dev-gpu_claim-a.json"


def holding(lab: Lab) -> Holding:
    return lab.node._parts.holding


def snapshot(lab: Lab) -> object:
    """Everything durable about units and claims, and the specs with their content."""
    registry = lab.node._registry
    directory = lab.directory / "cdi"
    specs = {name: (directory / name).read_text() for name in lab.specs}
    return dict(registry.journal.units), dict(registry.journal.claims), specs


def token_of(lab: Lab, digest: str) -> str:
    return str(lab.ledger.certificate(Digest(digest)).envelope.predicate["token"])


def test_a_prepared_device_was_wiped_under_the_token_it_is_exposed_with(lab: Lab) -> None:
    """Promise 1, B3: strict wipes for the claim; certificate and exposure carry one token."""
    order = lab.claim("claim-a", "gpu-0")
    lab.memory().write_bytes(b"\xa5" * lab.device().memory_bytes)
    answer = lab.node.prepare(order)
    assert (answer.state, answer.spec, answer.devices) == ("PREPARED", SPEC, order.devices)
    (certificate,) = answer.certificates
    assert token_of(lab, certificate) == order.token
    (unit,) = lab.units()
    assert (unit.state, unit.token, unit.claim) == (
        State.IN_USE,
        Token.parse(order.token),
        "claim-a",
    )
    assert not any(lab.memory().read_bytes())
    assert lab.specs == [SPEC]


def test_a_device_wiped_before_binding_is_not_wiped_again(lab: Lab) -> None:
    """B3: pre-bind under the claim's own token is the wipe; another token's is not."""
    lease = lab.lease("gpu-0", holder=Holder(HolderKind.CLAIM, "claim-a"))
    first = lab.scrub(lease=lease)
    answer = lab.node.prepare(lab.claim("claim-a", "gpu-0", lease=lease))
    assert answer.certificates == (first.certificate,)
    lab.scrub("gpu-1")
    lab.let_go()
    count = lab.ledger.count
    lab.node.prepare(lab.claim("claim-b", "gpu-1"))
    assert lab.ledger.count == count + 1


def test_prepare_is_idempotent_and_rebuilds_a_missing_spec(lab: Lab) -> None:
    """A4: same answer, same ids, no second wipe under a running tenant, spec rebuilt."""
    order = lab.claim("claim-a", "gpu-0")
    first = lab.node.prepare(order)
    before = snapshot(lab)
    with lab.tenant():
        assert lab.node.prepare(order) == first
        (lab.directory / "cdi" / SPEC).unlink()
        assert lab.node.prepare(order) == first
    assert snapshot(lab) == before
    lab.restart()
    assert lab.node.prepare(order) == first
    assert lab.ledger.count == 1


def test_another_claims_device_is_refused_naming_the_holder(lab: Lab) -> None:
    """B01: exclusivity is by device, survives a restart, is retryable, and takes nothing."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    lease = Lease(frozenset(), Holder(HolderKind.CLAIM, "claim-b"), _next(lab))
    rival = lab.claim("claim-b", "gpu-1", "gpu-0", lease=lease)
    before = snapshot(lab)
    for _ in range(2):
        with pytest.raises(errors.DeviceBusy) as refused:
            lab.node.prepare(rival)
        assert refused.value.fields["holder"] == "claim:claim-a"
        assert snapshot(lab) == before
        lab.restart()
    lab.node.unprepare("claim-a")
    with pytest.raises(errors.LeaseLost, match="no lease"):
        lab.node.prepare(rival)
    lab.node.tick(0.0)
    assert lab.node.prepare(lab.claim("claim-b", "gpu-1", "gpu-0")).state == "PREPARED"


def _next(lab: Lab) -> Token:
    return lab.newer_token()


def test_parent_and_overlapping_children_exclude_each_other(lab: Lab) -> None:
    """Promise 2: whoever has a slice excludes everything that overlaps it, and nothing else."""
    lab.node.prepare(lab.claim("claim-a", "gpu-1-1g-0"))
    newer = Lease(frozenset(), Holder(HolderKind.CLAIM, "x"), _next(lab))
    for name in ("gpu-1", "gpu-1-2g-0", "gpu-1-3g-0"):
        with pytest.raises(errors.DeviceBusy, match="claim-a"):
            lab.node.prepare(lab.claim("claim-b", name, lease=newer))
    assert lab.node.prepare(lab.claim("claim-c", "gpu-1-1g-1")).state == "PREPARED"
    with lab.tenant("gpu-1-1g-0"):
        lab.node.unprepare("claim-c")
    lab.node.unprepare("claim-a")
    lab.node.tick(0.0)
    lab.node.prepare(lab.claim("claim-d", "gpu-1"))
    newer = Lease(frozenset(), Holder(HolderKind.CLAIM, "x"), _next(lab))
    with pytest.raises(errors.DeviceBusy, match="claim-d"):
        lab.node.prepare(lab.claim("claim-e", "gpu-1-1g-5", lease=newer))


def test_a_neighbours_tenant_does_not_stop_a_prepare(lab: Lab) -> None:
    """Promise 9: a partition is wiped and exposed while its neighbour runs."""
    lab.node.prepare(lab.claim("claim-a", "gpu-1-1g-0"))
    with lab.tenant("gpu-1-1g-0"):
        assert lab.node.prepare(lab.claim("claim-b", "gpu-1-1g-1")).state == "PREPARED"
        assert lab.node.unprepare("claim-b").quarantined == ()


def test_a_claim_of_overlapping_devices_is_refused(lab: Lab) -> None:
    """A claim that names a parent and its child asks for the same memory twice."""
    lease = lab.lease("gpu-1", holder=Holder(HolderKind.CLAIM, "claim-a"))
    with pytest.raises(errors.InputInvalid, match="overlap"):
        lab.node.prepare(lab.claim("claim-a", "gpu-1", "gpu-1-1g-0", lease=lease))
    order = lab.claim("claim-a", "gpu-1", "gpu-1", lease=lease)
    assert len(lab.node.prepare(order).devices) == 1


def test_several_devices_are_prepared_all_or_none(lab: Lab) -> None:
    """B4: one bad device leaves no other half taken, and the teardown frees both."""
    lab.fault("dirty-word", device="gpu-1")
    order = lab.claim("claim-a", "gpu-0", "gpu-1")
    with pytest.raises(errors.DeviceUnfit, match="gpu-1"):
        lab.node.prepare(order)
    assert lab.specs == []
    assert lab.device("gpu-0").state == State.CLEAN
    assert lab.device("gpu-1").state == State.QUARANTINED
    with pytest.raises(errors.DeviceUnfit):
        lab.node.prepare(order)
    answer = lab.node.unprepare("claim-a")
    assert answer.quarantined == (lab.device("gpu-1").uuid,)
    assert {lab.device(n).claim for n in ("gpu-0", "gpu-1")} == {""}


def test_stale_and_foreign_tokens_are_refused_and_change_nothing(lab: Lab) -> None:
    """V5: the answer names the floor; a refused act never raises it."""
    lab.scrub()
    lab.let_go()
    order = lab.claim("claim-a", "gpu-0")
    newest = Token.parse(str(order.token))
    before = snapshot(lab)
    stale = order.model_copy(update={"token": f"{newest.epoch}.0"})
    foreign = order.model_copy(update={"token": f"{newest.epoch + 5}.1"})
    with pytest.raises(errors.TokenStale) as refused:
        lab.node.prepare(stale)
    assert refused.value.fields["floor"] == Token.parse(lab.device().floor) < newest
    with pytest.raises(errors.EpochForeign):
        lab.node.prepare(foreign)
    with pytest.raises(errors.WrongNode):
        lab.node.prepare(order.model_copy(update={"node": "n2"}))
    with pytest.raises(errors.DeviceUnknown):
        lab.node.prepare(order.model_copy(update={"devices": (*order.devices, "gpu-9")}))
    with pytest.raises(errors.InputInvalid):
        lab.node.prepare(order.model_copy(update={"uid": "../evil"}))
    assert snapshot(lab) == before


def test_teardown_ends_clean_closed_and_released(lab: Lab) -> None:
    """D6: spec gone, wiped, certified, record to tombstone, token closed, lease released."""
    order = lab.claim("claim-a", "gpu-0")
    lab.node.prepare(order)
    lab.memory().write_bytes(b"\x5a" * lab.device().memory_bytes)
    answer = lab.node.unprepare("claim-a")
    assert (answer.state, answer.quarantined, len(answer.certificates)) == ("ABSENT", (), 1)
    assert not any(lab.memory().read_bytes())
    (unit,) = lab.units()
    assert (unit.state, unit.claim, unit.last_holder) == (State.CLEAN, None, "claim:claim-a")
    assert (unit.floor, unit.closed) == (Token.parse(str(order.token)), True)
    assert lab.specs == []
    assert lab.node.unprepare("claim-a").state == lab.node.unprepare("never").state == "ABSENT"
    assert lab.node.view().outbox == 1
    lab.node.tick(0.0)
    assert lab.node.view().outbox == 0
    assert lab.coordinator.leases() == []


def test_a_late_prepare_is_refused_and_a_legitimate_one_works(lab: Lab) -> None:
    """B12: tombstone and closed token outlive a restart; a new lease and a live pod do it."""
    order = lab.claim("claim-a", "gpu-0")
    lab.node.prepare(order)
    lab.node.unprepare("claim-a")
    lab.restart()
    lab.node.tick(0.0)
    with pytest.raises(errors.TokenStale):
        lab.node.prepare(order)
    renewed = lab.claim("claim-a", "gpu-0")
    with pytest.raises(errors.IllegalTransition, match="live pod consumer"):
        lab.node.prepare(renewed.model_copy(update={"consumers": ()}))
    assert lab.specs == []
    assert list(lab.node.claims()) == []
    assert lab.node.prepare(renewed).state == "PREPARED"


def test_repeated_prepares_join_one_wipe(lab: Lab) -> None:
    """B03: one run per claim and device, whatever the number of calls; never success early."""
    order = lab.claim("claim-a", "gpu-0")
    with pytest.raises(errors.DeviceBusy, match="longer than"):
        lab.node.prepare(order, budget_s=0.0)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: lab.node.prepare(order), range(4)))
    assert len({answer.model_dump_json() for answer in answers}) == 1
    assert lab.ledger.count == 1


def test_unprepare_cancels_and_joins_a_running_prepare(lab: Lab) -> None:
    """V1: no spec is written after the teardown; the waiting prepare gets an error."""
    lab.fault("hang", device="gpu-0")
    order = lab.claim("claim-a", "gpu-0")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lab.node.prepare, order)
        wait_for(lambda: lab.device().state == State.WIPING)
        lab.backend.clear_fault(Uuid(lab.device().uuid), "hang")
        answer = lab.node.unprepare("claim-a")
        with pytest.raises(errors.DeviceBusy):
            waiting.result(30)
    assert (answer.state, lab.specs, lab.device().state) == ("ABSENT", [], State.CLEAN)
    assert list(lab.node.claims()) == []


def test_prepares_and_unprepares_at_once_never_leave_a_spec_without_record(lab: Lab) -> None:
    """V1, promise 3: in whatever order they come, spec and record agree in the end."""
    holder = Holder(HolderKind.CLAIM, "claim-a")
    for round_ in range(3):
        lab.node.tick(float(round_))
        wait_for(lambda: lab.node.view().outbox == 0)
        order = lab.claim("claim-a", "gpu-0", lease=lab.lease("gpu-0", holder=holder))

        def call(number: int, order: ClaimOrder = order) -> None:
            try:
                lab.node.unprepare("claim-a") if number % 2 else lab.node.prepare(order)
            except errors.FleetError:
                return

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(call, range(6)))
        assert bool(lab.specs) == bool(lab.node.claims())
        lab.node.unprepare("claim-a")
        assert lab.specs == []


def test_a_prepare_during_a_teardown_is_refused_and_retryable(lab: Lab) -> None:
    """DESIGN 4: UNPREPARING refuses, whether a call is in work or only the record is left."""
    order = lab.claim("claim-a", "gpu-0")
    lab.node.prepare(order)
    with lab.tenant():
        with pytest.raises(errors.DeviceBusy, match="still has gpu-0"):
            lab.node.unprepare("claim-a")
        with pytest.raises(errors.DeviceBusy, match="torn down"):
            lab.node.prepare(order)
    assert lab.specs == []


def test_a_lingering_process_delays_the_teardown_which_then_ends_by_itself(lab: Lab) -> None:
    """D1, promise 4: nobody is killed or wiped under; retryable meanwhile; no call is needed."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    with lab.tenant():
        for now in (1.0, 2.0):
            with pytest.raises(errors.DeviceBusy, match="still has gpu-0"):
                lab.node.unprepare("claim-a")
            lab.node.tick(now)
        assert (lab.device().state, lab.specs) == (State.IN_USE, [])

    def over() -> bool:
        lab.node.tick(10.0)
        return not lab.node.claims()

    wait_for(over)
    assert lab.device().state == State.CLEAN


def test_no_record_is_buried_while_a_unit_is_not_at_rest(lab: Lab) -> None:
    """D6: the commit that closes the record asks for itself whether all units are settled."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    with lab.tenant(), pytest.raises(errors.DeviceBusy):
        lab.node.unprepare("claim-a")
    (claim,) = lab.node._registry.journal.claims.values()
    before = snapshot(lab)
    with pytest.raises(errors.IllegalTransition):
        holding(lab).teardown._bury(claim)
    assert snapshot(lab) == before


def test_a_process_that_never_leaves_quarantines_after_the_deadline(lab: Lab) -> None:
    """No state is a trap: after the deadline the claim is let go, the device is not."""
    holding(lab).teardown.holder_deadline_s = 0.0
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    with lab.tenant():
        answer = lab.node.unprepare("claim-a")
        assert answer.quarantined == (lab.device().uuid,)
        assert {reason.code for reason in lab.device().reasons} == {"tenant-not-gone"}
        lab.node.tick(0.0)
        assert lab.coordinator.leases() == []
        assert lab.scrub().outcome is Outcome.BUSY
    assert lab.scrub().outcome is Outcome.CERTIFIED


@pytest.mark.parametrize("fault", ["dirty-word", "hang", "remap-failed"])
def test_a_teardown_that_fails_quarantines_and_succeeds(lab: Lab, fault: str) -> None:
    """D4: the claim is let go, the device is out of service with its reason, never CLEAN."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    lab.fault(fault)
    answer = lab.node.unprepare("claim-a")
    assert (answer.state, answer.quarantined) == ("ABSENT", (lab.device().uuid,))
    assert lab.device().state == State.QUARANTINED
    assert lab.device().reasons
    assert lab.node.view().outbox == 1


def test_a_teardown_that_could_not_be_done_is_tried_again(lab: Lab) -> None:
    """B02: interrupted is neither success nor quarantine; the repeated call wipes anew."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    lab.fault("worker-crash")
    with pytest.raises(errors.DeviceBusy, match="interrupted"):
        lab.node.unprepare("claim-a")
    assert [claim.state for claim in lab.node.claims()] == [ClaimState.UNPREPARING]
    assert lab.node.unprepare("claim-a").quarantined == ()


def test_abandon_closes_tokens_of_claims_without_a_record_only(lab: Lab) -> None:
    """V4: refused while a record or a call exists; afterwards the token is void for good."""
    order = lab.claim("claim-a", "gpu-0")
    lab.node.prepare(order)
    before = snapshot(lab)
    with pytest.raises(errors.IllegalTransition):
        lab.node.abandon("claim-a", str(order.token), order.devices)
    assert snapshot(lab) == before
    other = lab.claim("claim-b", "gpu-1")
    closure = lab.node.abandon("claim-b", str(other.token), other.devices)
    assert (str(closure.holder), closure.by) == ("claim:claim-b", ClosedBy.ABANDON)
    with pytest.raises(errors.TokenStale):
        lab.node.prepare(other)
    assert lab.node.abandon("claim-b", str(other.token), other.devices) == closure
    lab.coordinator.release(closure.holder, closure.token, closure)


def test_abandon_of_a_foreign_token_is_refused(lab: Lab) -> None:
    """V10: closing a token of another store would refuse every token of ours for ever."""
    epoch = lab.coordinator.newest().epoch
    before = snapshot(lab)
    with pytest.raises(errors.EpochForeign):
        lab.node.abandon("claim-a", f"{epoch + 7}.1", [lab.device().uuid])
    assert snapshot(lab) == before


def test_a_token_that_an_adopt_put_behind_is_closed_already(lab: Lab) -> None:
    """Promise 7: the lease of a claim that went before the store was adopted can be given back;
    nothing is closed that was not, and what has a record still waits for its teardown."""
    order = lab.claim("claim-a", "gpu-0")
    used = lab.claim("claim-b", "gpu-1")
    lab.node.prepare(used)
    adopted = lab.coordinator._leases.adopt(NO_TOKEN, "ops")
    lab.node.follow_epoch(adopted.epoch, operator="ops")
    before = snapshot(lab)
    with pytest.raises(errors.IllegalTransition):
        lab.node.abandon("claim-b", str(used.token), used.devices)
    closure = lab.node.abandon("claim-a", str(order.token), order.devices)
    assert (str(closure.holder), str(closure.token)) == ("claim:claim-a", order.token)
    assert snapshot(lab) == before
    lab.coordinator.release(closure.holder, closure.token, closure)
    assert lab.leases_of("claim-a") == []
    lab.node.unprepare("claim-b")
    lab.node.tick(lab.node.view().at)
    assert lab.leases_of("claim-b") == []


def test_abandon_stops_the_wipe_before_binding(lab: Lab) -> None:
    """DESIGN 4: a pre-bind wipe under the closed token is cancelled and joined, a newer is not."""
    lab.fault("hang")
    order = lab.order(lease=lab.lease("gpu-0", holder=Holder(HolderKind.CLAIM, "claim-a")))
    lab.node.scrub([order])
    wait_for(lambda: lab.device().state == State.WIPING)
    lab.node.abandon("claim-a", order.token, [lab.device().uuid])
    assert lab.device().operation == ""
    assert lab.result(order.operation).outcome is Outcome.INTERRUPTED


def test_abandon_by_units_needs_no_device(lab: Lab) -> None:
    """B6: the journal closes the token, and stops the wipe, of a device that is not there now."""
    lab.fault("hang")
    order = lab.order(lease=lab.lease("gpu-0", holder=Holder(HolderKind.CLAIM, "claim-a")))
    units = lab.device().units
    lab.node.scrub([order])
    wait_for(lambda: lab.device().state == State.WIPING)
    devices = lab.node._registry.devices
    lost = devices.pop(Uuid(lab.device().uuid))
    with pytest.raises(errors.DeviceUnknown):
        lab.node.abandon("claim-a", order.token, [lost.uuid])
    closure = lab.node.abandon("claim-a", order.token, units)
    assert str(closure.token) == order.token
    devices[lost.uuid] = lost
    assert lab.result(order.operation).outcome is Outcome.INTERRUPTED
    assert (lab.device().floor, lab.device().closed) == (order.token, True)


def test_abandon_signs_nothing_for_nothing(lab: Lab) -> None:
    """Promise 1: a closure releases a lease; units that are not known here are not ours to close,
    and then none of the others is either.
    """
    order = lab.claim("claim-a", "gpu-0")
    before = snapshot(lab)
    for named in ([], ["GPU-never/all"], [*lab.device().units, "GPU-never/all"]):
        with pytest.raises(errors.DeviceUnknown):
            lab.node.abandon("claim-a", str(order.token), named)
    assert snapshot(lab) == before


def test_a_repeated_prepare_for_other_devices_waits_for_the_teardown(lab: Lab) -> None:
    """One record per claim: devices of a newer allocation come after the older are given back."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    newer = Lease(frozenset(), Holder(HolderKind.CLAIM, "claim-a"), _next(lab))
    with pytest.raises(errors.DeviceBusy, match="earlier allocation"):
        lab.node.prepare(lab.claim("claim-a", "gpu-1", lease=newer))
    assert lab.device("gpu-1").claim == ""


def test_a_repeated_prepare_adopts_a_newer_token_before_exposure_only(lab: Lab) -> None:
    """Promise 2: the lease of an exposed device has the token the device was wiped under."""
    order = lab.claim("claim-a", "gpu-0")
    lab.fault("worker-crash")
    with pytest.raises(errors.DeviceBusy):
        lab.node.prepare(order)
    holder, token = Holder(HolderKind.CLAIM, "claim-a"), Token.parse(str(order.token))
    closure = Closure(holder, token, NodeName("n1"), ClosedBy.ABANDON)
    lab.coordinator.release(holder, token, closure)
    newer = lab.claim("claim-a", "gpu-0")
    assert newer.token != order.token
    answer = lab.node.prepare(newer)
    assert token_of(lab, answer.certificates[0]) == newer.token
    assert lab.node.prepare(order) == answer
    assert str(lab.units()[0].token) == newer.token


def test_a_quarantined_or_held_device_is_not_prepared(lab: Lab) -> None:
    """Promise 6: whatever the scheduler does, an unfit device is never exposed."""
    order = lab.claim("claim-a", "gpu-0")
    lab.node.quarantine_add("gpu-0", detail="x", operator="ada")
    with pytest.raises(errors.DeviceUnfit):
        lab.node.prepare(order)
    assert list(lab.node.claims()) == []
    lab.leave(State.HELD)
    with pytest.raises(errors.DeviceBusy, match="node adopt"):
        lab.node.prepare(order)
    assert list(lab.node.claims()) == []


def test_a_scrub_never_touches_a_claims_device(lab: Lab) -> None:
    """E2, promise 4: a campaign leaves a claim's devices alone, also with a newer token."""
    order = lab.claim("claim-a", "gpu-0")
    lab.node.prepare(order)
    newer = Lease(frozenset(), Holder(HolderKind.OPERATOR, "x"), _next(lab))
    before = snapshot(lab)
    assert lab.scrub(lease=newer).outcome is Outcome.IN_USE
    assert snapshot(lab) == before
    lab.node.unprepare("claim-a")
    assert lab.node.view().outbox == 1


def test_a_spec_directory_that_fails_holds_nothing_back(lab: Lab) -> None:
    """B67: intent first, file second, prepared last; the retry goes on without another wipe."""
    directory = lab.directory / "cdi"
    directory.write_text("in the way")
    order = lab.claim("claim-a", "gpu-0")
    with pytest.raises(errors.SpecUnavailable):
        lab.node.prepare(order)
    assert [claim.state for claim in lab.node.claims()] == [ClaimState.PREPARING]
    directory.unlink()
    assert lab.node.prepare(order).state == "PREPARED"
    assert lab.ledger.count == 1
    (lab.directory / "cdi" / SPEC).unlink()
    (lab.directory / "cdi" / SPEC).mkdir()
    with pytest.raises(errors.SpecUnavailable):
        lab.node.unprepare("claim-a")
    assert lab.device().state == State.IN_USE
    (lab.directory / "cdi" / SPEC).rmdir()
    assert lab.node.unprepare("claim-a").quarantined == ()


def test_hardware_that_vanished_does_not_keep_its_claim(lab: Lab) -> None:
    """A3: a missing device is written off as lost; the claim is let go."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0", "gpu-1-1g-0"))
    uuid = lab.device().uuid
    unit = UnitId(lab.device().units[0])
    lab.node.close()
    lab.take_out()
    lab.open()
    answer = lab.node.unprepare("claim-a")
    assert answer.quarantined == (uuid,)
    left = lab.node._registry.journal.units[unit]
    assert (left.state, left.claim) == (State.QUARANTINED, None)
    assert lab.device("gpu-1-1g-0").state == State.CLEAN


def test_a_tenant_of_before_is_found_at_exposure(lab: Lab) -> None:
    """Promise 1: a process seen at exposure voids the wipe, also once it has left."""
    lease = lab.lease("gpu-0", holder=Holder(HolderKind.CLAIM, "claim-a"))
    lab.scrub(lease=lease)
    order = lab.claim("claim-a", "gpu-0", lease=lease)
    with lab.tenant(), pytest.raises(errors.DeviceBusy, match="tenant"):
        lab.node.prepare(order)
    assert (lab.device().state, lab.device().certificate) == (State.DIRTY, "")
    lab.node.prepare(order)
    assert lab.ledger.count == 2


def test_the_record_of_a_prepare_says_why_it_failed(lab: Lab) -> None:
    """A person who looks at a stuck claim sees the last failure."""
    lab.fault("worker-crash")
    with pytest.raises(errors.DeviceBusy):
        lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    (claim,) = lab.node._registry.journal.claims.values()
    assert "interrupted" in claim.error


def test_an_error_of_any_kind_reaches_the_caller_and_leaves_a_way_out(lab: Lab) -> None:
    """B03: nothing hangs on a defect; the claim can still be torn down."""
    registers = lab.backend.registers(Uuid(lab.device().uuid))
    registers.path.write_text('{"values": 3}')
    with pytest.raises(errors.FleetError):
        lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    registers.path.unlink()
    assert lab.node.unprepare("claim-a").state == "ABSENT"
    assert holding(lab).flights.flying() == []
    assert clients.alive(registers.read(), lab.device().units) == []


def test_fast_takes_the_teardown_certificate_of_the_holder_before(lab: Lab) -> None:
    """Promise 1, fast: no second wipe, unless somebody or something came in between."""
    lab.restart(settings=lab.settings.model_copy(update={"profile": Profile.FAST}))

    def handed_over(uid: str) -> int:
        lab.node.prepare(lab.claim(uid, "gpu-0"))
        lab.node.unprepare(uid)
        lab.node.tick(0.0)
        return lab.ledger.count

    assert handed_over("claim-a") == 2
    assert handed_over("claim-b") == 3
    with lab.tenant():
        lab.node.sweep()
    assert handed_over("claim-c") == 5
    lab.node.close()
    lab.backend.reboot()
    lab.open()
    assert handed_over("claim-d") == 7


def test_a_cancelled_prepare_writes_no_spec_however_late_it_wakes(lab: Lab) -> None:
    """V1, promise 3: a thread its owner gave up on must not write under the next owner."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    (name,) = lab.specs
    (lab.directory / "cdi" / name).unlink()
    holding = lab.node._parts.holding
    (claim,) = lab.node._registry.journal.claims.values()
    late = Flight(ClaimEvent.PREPARE)
    late.stop()
    for known in (claim, replace(claim, state=ClaimState.PREPARING)):
        with pytest.raises(errors.DeviceBusy, match="was cancelled"):
            holding._prepare(known, late)
    assert lab.specs == []


def test_whoever_joins_a_prepare_must_be_gone_too(lab: Lab) -> None:
    """Promise 4: a second pod of the claim that joins the work is remembered with the first."""
    first = lab.claim("claim-a", "gpu-0")
    second = first.model_copy(update={"consumers": ("pod-2",)})
    with pytest.raises(errors.DeviceBusy, match="longer than"):
        lab.node.prepare(first, budget_s=0.0)
    assert lab.node.prepare(second).state == "PREPARED"
    (claim,) = lab.node._registry.journal.claims.values()
    assert claim.consumers == ("pod-1", "pod-2")
    assert claim.state is ClaimState.PREPARED


def test_a_call_for_other_devices_does_not_join(lab: Lab) -> None:
    """B12: an allocation that changed meanwhile is not answered with the devices of the old one."""
    lab.fault("hang", device="gpu-0")
    order = lab.claim("claim-a", "gpu-0")
    other = order.model_copy(update={"devices": (lab.device("gpu-1").uuid,)})
    with pytest.raises(errors.DeviceBusy, match="longer than"):
        lab.node.prepare(order, budget_s=0.1)
    with pytest.raises(errors.DeviceBusy, match="earlier allocation"):
        lab.node.prepare(other)
    lab.node.unprepare("claim-a")


def test_a_spec_that_somebody_removed_is_written_again(lab: Lab) -> None:
    """Invariant 27: a container that restarts hours later finds its spec, whoever cleaned up."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    (name,) = lab.specs
    (lab.directory / "cdi" / name).unlink()
    lab.node.tick(1000.0)
    wait_for(lambda: lab.specs == [name])
    assert lab.node.claims()[0].state == ClaimState.PREPARED


def test_b79_a_spec_with_dead_paths_is_written_again(lab: Lab) -> None:
    """B79: what mounts files the host does not have any more is made anew, kubelet unasked."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    path = lab.directory / "cdi" / lab.specs[0]
    good = path.read_text()
    memory = json.loads(good)["devices"][0]["containerEdits"]["mounts"][0]["hostPath"]
    path.write_text(good.replace(memory, "/usr/lib/libgpu.so.1.0"))
    lab.node.tick(1000.0)
    wait_for(lambda: path.read_text() == good)


def test_b79_specs_follow_the_driver(lab: Lab) -> None:
    """B79: once another driver is loaded every spec says what containers need with that one."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    path = lab.directory / "cdi" / lab.specs[0]
    good = path.read_text()
    for at, version in ((1000.0, "1.0"), (2000.0, "1.0"), (3000.0, "2.0")):
        former = path.read_text().replace('"FLEETSIM_DEVICE=', '"FLEETSIM_FORMER=')
        path.write_text(former)
        with lab.node._registry.commit() as commit:
            commit.set_meta("driver:gpu", version)
        lab.node.tick(at)
        if version == "1.0":
            assert path.read_text() == former
    wait_for(lambda: path.read_text() == good)


def test_an_instance_lives_from_the_wipe_of_a_prepare_to_that_of_the_teardown(lab: Lab) -> None:
    """Promise 7, DESIGN 5: made once for wipe and containers, gone before the record is."""
    backend = parting(lab)
    lab.node.prepare(lab.claim("claim-a", "gpu-1-1g-0"))
    assert [instance.uuid for instance in backend.there] == ["MIG-1"]
    lab.node.prepare(lab.claim("claim-b", "gpu-1-1g-1"))
    lab.node.unprepare("claim-a")
    assert [instance.uuid for instance in backend.there] == ["MIG-2"]
    lab.node.unprepare("claim-b")
    made, removed = "made gpu-1-1g-{}", "removed gpu-1-1g-{}"
    assert backend.log == [made.format(0), made.format(1), removed.format(0), removed.format(1)]


def test_a_wipe_before_the_binding_leaves_no_instance_and_the_prepare_makes_one(lab: Lab) -> None:
    """Invariant: between the wipe at pre-bind and the prepare no record of the claim is here."""
    backend = parting(lab)
    lease = lab.lease("gpu-1-1g-0", holder=Holder(HolderKind.CLAIM, "claim-a"))
    order = lab.order("gpu-1-1g-0", lease=lease)
    prebind = order.model_copy(update={"operation": f"claim/claim-a/{order.token}/x/0"})
    lab.node.scrub([prebind])
    certificate = lab.result(prebind.operation).certificate
    assert (backend.there, len(backend.log)) == ([], 2)
    answer = lab.node.prepare(lab.claim("claim-a", "gpu-1-1g-0", lease=lease))
    assert answer.certificates == (certificate,), "it is not wiped twice"
    assert [instance.uuid for instance in backend.there] == ["MIG-2"]
    lab.node.unprepare("claim-a")
    assert backend.there == []


def test_a_prepare_that_cannot_have_its_instance_is_tried_again(lab: Lab) -> None:
    """No state is a trap: the driver refuses for a while, then the repeated call goes through."""
    backend = parting(lab)
    order = lab.claim("claim-a", "gpu-1-1g-0")
    backend.refuses = "no room for it"
    with pytest.raises(errors.Retryable, match="no room for it"):
        lab.node.prepare(order)
    backend.refuses = ""
    assert lab.node.prepare(order).state == "PREPARED"
    lab.node.unprepare("claim-a")
    assert backend.there == []


def test_8_33_the_spec_of_a_claim_whose_instance_was_removed_is_taken_away(lab: Lab) -> None:
    """gpus-8.33, promise 3: no further container gets nodes that may be somebody else's by then."""
    backend = parting(lab)
    order = lab.claim("claim-a", "gpu-1-1g-0")
    lab.node.prepare(order)
    backend.there.clear()
    lab.node._parts.sweep.look(lab.node._registry.device("gpu-1"))
    lab.node.tick(1000.0)
    wait_for(lambda: lab.specs == [])
    with pytest.raises(errors.DeviceUnfit, match="removed from outside"):
        lab.node.prepare(order)
    assert (lab.specs, backend.there) == ([], [])
    lab.node.unprepare("claim-a")
    assert lab.device("gpu-1-1g-0").state == State.QUARANTINED, "it is tested before its next use"
