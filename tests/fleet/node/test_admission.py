"""Who is admitted to which device: the record comes first, an attachment excludes every wipe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleet.core import errors
from fleet.core.claim_states import Claim, ClaimState
from fleet.core.messages import Outcome
from fleet.core.model import ClaimUid, Digest, Holder, HolderKind, State, Uuid
from fleet.core.profiles import Profile
from fleet.core.settings import ResetPolicy, WipePolicy
from fleet.node.admission import demand_of
from tests.fleet.node.conftest import OPS, Lab, wait_for
from tests.fleet.node.trees import OTHER, POD

SEARCHED = (State.WIPING, State.CHECKING, State.CLEAN)
"""States no device may be in while an administrator can write to it."""


def record(lab: Lab, uid: str = "claim-a") -> Claim:
    return lab.node._registry.journal.claims[ClaimUid(uid)]


def test_consumers_of_repeated_prepares_are_all_remembered(lab: Lab) -> None:
    """Promise 4: every pod that ever used the claim must be proven gone, in whatever order."""
    order = lab.bare("claim-a", "gpu-0", namespace="team", name="job")
    lab.node.prepare(order)
    later = order.model_copy(update={"consumers": (OTHER,), "namespace": "", "name": ""})
    lab.node.prepare(later)
    lab.node.prepare(order)
    lab.restart()
    found = record(lab)
    assert (found.consumers, found.namespace, found.name) == ((POD, OTHER), "team", "job")


def test_the_callers_note_is_answered_every_time(lab: Lab) -> None:
    """What the plugin needs to answer without the API: kept, replaced by a newer, never lost."""
    order = lab.bare("claim-a", "gpu-0", note='{"requests": ["a/b"]}')
    assert lab.node.prepare(order).note == order.note
    assert lab.node.prepare(order.model_copy(update={"note": ""})).note == order.note
    newer = lab.node.prepare(order.model_copy(update={"note": "newer"}))
    lab.restart()
    (listed,) = lab.node.claims()
    assert (newer.note, listed.note) == ("newer", "newer")
    assert lab.node.unprepare("claim-a").note == "newer"


def handed_over(lab: Lab) -> int:
    """Leave gpu-0 clean with the certificate of a teardown, in profile fast; certificates."""
    lab.restart(settings=lab.settings.model_copy(update={"profile": Profile.FAST}))
    lab.node.prepare(lab.bare("claim-0", "gpu-0"))
    lab.node.unprepare("claim-0")
    lab.node.tick(0.0)
    assert lab.device().state == State.CLEAN
    return lab.ledger.count


def test_fast_exposes_on_the_teardown_certificate_unless_a_fresh_wipe_is_demanded(lab: Lab) -> None:
    """Promise 1, B3: `fresh` is honoured although the certificate before would do."""
    count = handed_over(lab)
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    assert lab.ledger.count == count
    lab.node.unprepare("claim-a")
    lab.node.tick(60.0)
    count = lab.ledger.count
    (certificate,) = lab.node.prepare(lab.bare("claim-b", "gpu-0", fresh=True)).certificates
    assert lab.ledger.count == count + 1
    (lease,) = lab.leases_of("claim-b")
    assert lab.ledger.certificate(Digest(certificate)).token == lease.token


def test_a_demand_of_a_stricter_wipe_is_a_wipe_under_that_policy(lab: Lab) -> None:
    """A claim may ask for more: wiped again, with a reset it asked for, recorded as done."""
    count = handed_over(lab)
    asked = WipePolicy(reset=ResetPolicy.ALWAYS)
    (certificate,) = lab.node.prepare(lab.bare("claim-a", "gpu-0", wipe=asked)).certificates
    assert lab.ledger.count == count + 1
    found = lab.ledger.certificate(Digest(certificate)).envelope.predicate
    assert found["reset"]["performed"] is True


def test_a_demand_never_loosens_the_nodes_own_policy(lab: Lab) -> None:
    """A claim may only ask for more sanitization; what it asks survives a restart."""
    lab.node.prepare(
        lab.bare("claim-a", "gpu-0", wipe=WipePolicy(coverage_floor=0.5, deadline_base_s=900.0))
    )
    lab.restart()
    own = lab.settings.wipe
    found = own.tightened_by(demand_of(record(lab)))
    assert (found.coverage_floor, found.deadline_base_s) == (
        own.coverage_floor,
        own.deadline_base_s,
    )
    lax = own.model_copy(update={"coverage_floor": 0.1})
    assert lax.tightened_by(demand_of(record(lab))).coverage_floor == 0.5


def test_a_demand_that_comes_with_the_second_prepare_counts(lab: Lab) -> None:
    """Until it is exposed a device is judged by all that was ever asked for the claim."""
    count = handed_over(lab)
    order = lab.bare("claim-a", "gpu-0")
    with lab.store_away(), pytest.raises(errors.StoreUnavailable):
        lab.node.prepare(order)
    lab.node.prepare(order.model_copy(update={"fresh": True}))
    assert lab.ledger.count == count + 1


def test_other_devices_under_the_same_uid_wait_for_the_teardown(lab: Lab) -> None:
    """B12: a new allocation of the uid is refused, retryable, and changes nothing."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    before = record(lab)
    for other in (lab.bare("claim-a", "gpu-1"), lab.bare("claim-a", "gpu-0", "gpu-1")):
        with pytest.raises(errors.DeviceBusy, match="earlier allocation") as refused:
            lab.node.prepare(other)
        assert refused.value.holder == "claim:claim-a"
    with pytest.raises(errors.DeviceBusy, match="earlier allocation"):
        lab.node.prepare(lab.attachment("claim-a", "gpu-1"))
    assert (record(lab), lab.device("gpu-1").claim) == (before, "")


# --- adminAccess (B35) ---


def test_an_attachment_needs_no_lease_and_gets_a_spec(lab: Lab) -> None:
    """B35: looked into, never held: no lease, no wipe, the device stays whoever's it is."""
    order = lab.attachment("admin", "gpu-0")
    with lab.store_away():
        answer = lab.node.prepare(order)
    assert (answer.state, answer.devices) == ("PREPARED", ())
    assert set(answer.cdi) == {lab.device().uuid}
    assert lab.specs == ["fleetscrub.dev-gpu_admin.json"]
    assert (lab.coordinator.leases(), lab.ledger.count) == ([], 0)
    assert (lab.device().claim, lab.device().attached) == ("", ("admin",))
    assert lab.node.prepare(order) == answer
    assert lab.node.unprepare("admin").state == "ABSENT"
    assert (lab.specs, lab.device().attached, lab.node.view().outbox) == ([], (), 0)


def test_an_attachment_is_refused_while_a_wipe_works(lab: Lab) -> None:
    """B35: nobody is let into memory that is being wiped; retryable, and no record is left."""
    lab.fault("hang")
    order = lab.order("gpu-0")
    lab.node.scrub([order])
    wait_for(lambda: lab.device().state == State.WIPING)
    with pytest.raises(errors.DeviceBusy, match="worked on by") as refused:
        lab.node.prepare(lab.attachment("admin", "gpu-0"))
    assert refused.value.holder == order.operation
    assert (lab.node.claims(), lab.specs) == ([], [])
    lab.backend.clear_fault(Uuid(lab.device().uuid), "hang")
    lab.node.cancel([order.operation])
    lab.result(order.operation)
    assert lab.node.prepare(lab.attachment("admin", "gpu-0")).state == "PREPARED"


def test_attaching_makes_a_clean_device_dirty_in_the_same_commit(lab: Lab) -> None:
    """Promise 1, B35: who looks may write; no crash can leave the certificate standing."""
    lab.scrub()
    lab.let_go()
    assert lab.device().state == State.CLEAN
    died = threading.Event()

    class Died(BaseException):
        pass

    before = lab.node._registry.commit

    def commit() -> object:
        if died.is_set():
            raise Died
        died.set()
        return before()

    lab.node._registry.commit = commit  # type: ignore[method-assign,assignment] # ends after one
    with pytest.raises(errors.FleetError, match="Died"):
        lab.node.prepare(lab.attachment("admin", "gpu-0"))
    lab.restart()
    assert lab.device().attached == ("admin",)
    assert (lab.device().state, lab.device().certificate) == (State.DIRTY, "")


def test_an_attachment_to_a_partition_concerns_what_shares_its_memory_only(lab: Lab) -> None:
    """Promise 9: the neighbour is wiped and exposed; the parent is not."""
    lab.node.prepare(lab.attachment("admin", "gpu-1-1g-0"))
    assert lab.node.prepare(lab.bare("claim-a", "gpu-1-1g-1")).state == "PREPARED"
    lab.node.unprepare("claim-a")
    lab.node.tick(0.0)
    with pytest.raises(errors.DeviceBusy, match="claim admin with adminAccess"):
        lab.node.prepare(lab.bare("claim-b", "gpu-1"))
    lab.node.unprepare("admin")
    assert lab.node.prepare(lab.bare("claim-b", "gpu-1")).state == "PREPARED"


def test_no_wipe_begins_while_somebody_is_attached(lab: Lab) -> None:
    """B35: neither by the node itself, nor for a campaign, a claim or its teardown."""
    lab.node.prepare(lab.attachment("admin", "gpu-0"))
    result = lab.scrub()
    assert (result.outcome, result.findings[0].detail) == (
        Outcome.BUSY,
        "in use by claim admin with adminAccess",
    )
    lab.let_go()
    eager = lab.settings.node.model_copy(update={"idle_delay_s": 0.0})
    lab.restart(settings=lab.settings.model_copy(update={"node": eager}))
    for _ in range(5):
        lab.node.tick(lab.units()[0].since + 100.0)
        wait_for(lambda: not lab.node._tasks)
    assert lab.device().state == State.DIRTY
    with pytest.raises(errors.DeviceBusy, match="claim admin"):
        lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    with pytest.raises(errors.DeviceBusy, match="claim admin"):
        lab.node.unprepare("claim-a")
    assert lab.device().state == State.DIRTY
    lab.node.unprepare("admin")
    assert lab.node.unprepare("claim-a").quarantined == ()


def test_an_attachment_survives_a_restart_and_still_keeps_wipes_away(lab: Lab) -> None:
    """B35, promise 7: the record is durable, the spec rebuilt, the answer the same."""
    answer = lab.node.prepare(lab.attachment("admin", "gpu-0"))
    (lab.directory / "cdi" / lab.specs[0]).unlink()
    lab.restart()
    assert lab.specs == ["fleetscrub.dev-gpu_admin.json"]
    assert lab.node.prepare(lab.attachment("admin", "gpu-0")) == answer
    assert lab.scrub().outcome is Outcome.BUSY


def test_a_claim_may_hold_one_device_and_look_into_another(lab: Lab) -> None:
    """B35: requests with and without adminAccess in one claim; only the held one has a lease."""
    uuid = lab.device("gpu-1").uuid
    answer = lab.node.prepare(lab.bare("claim-a", "gpu-0", attached=(uuid,), namespace=OPS))
    assert set(answer.cdi) == {lab.device().uuid, uuid}
    (lease,) = lab.leases_of("claim-a")
    assert lease.units == {unit.id for unit in lab.units()}
    assert (lab.device().attached, lab.device("gpu-1").attached) == ((), ("claim-a",))
    assert lab.node.unprepare("claim-a").quarantined == ()
    assert lab.device("gpu-1").attached == ()


def test_an_attachment_to_a_device_in_use_disturbs_nobody(lab: Lab) -> None:
    """B35: an administrator looks at a running tenant's device: that is what it is for."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    before = lab.units()
    lab.node.prepare(lab.attachment("admin", "gpu-0"))
    assert lab.units() == before
    assert lab.device().attached == ("admin",)


def both(first: Callable[[], object], second: Callable[[], object]) -> list[object]:
    """What two calls made at once answered, errors included."""
    barrier = threading.Barrier(2)

    def call(wanted: Callable[[], object]) -> object:
        barrier.wait(10.0)
        try:
            return wanted()
        except errors.FleetError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(call, (first, second)))


@pytest.mark.parametrize("rival", ["campaign", "claim"])
def test_a_race_of_attachment_and_wipe_has_one_winner(lab: Lab, rival: str) -> None:
    """B35: attached and being wiped, checked or clean at once never happens, 12 rounds each."""
    won = set()
    for number in range(12):
        lab.node.tick(number * 60.0)
        attachment = lab.attachment(f"admin-{number}", "gpu-0")

        def attach(order: object = attachment, number: int = number) -> object:
            lab.node.prepare(order, budget_s=10.0)  # type: ignore[arg-type] # bound early
            states = {unit.state for unit in lab.units()}
            assert not states.intersection(SEARCHED), states
            return f"attached {number}"

        if rival == "campaign":
            order = lab.order("gpu-0")
            answers = both(attach, lambda order=order: lab.node.scrub([order]))  # type: ignore[misc]
            outcome: object = lab.result(order.operation).outcome
            lab.let_go()
        else:
            claim = lab.bare(f"claim-{number}", "gpu-0")
            answers = both(attach, lambda claim=claim: lab.node.prepare(claim))  # type: ignore[misc]
            outcome = type(answers[1]).__name__
        attached = isinstance(answers[0], str)
        won.add((attached, str(outcome)))
        assert attached or isinstance(answers[0], errors.DeviceBusy)
        assert not attached or not {unit.state for unit in lab.units()}.intersection(SEARCHED)
        lab.node.unprepare(f"admin-{number}")
        lab.node.unprepare(f"claim-{number}")
    assert (True, "busy") in won or (True, "DeviceBusy") in won or (False, "certified") in won


def test_a_refused_attachment_leaves_no_record_of_the_devices_held(lab: Lab) -> None:
    """All or nothing: a claim that holds one device and may not look into the other gets none."""
    lab.fault("hang", device="gpu-1")
    order = lab.order("gpu-1")
    lab.node.scrub([order])
    wait_for(lambda: lab.device("gpu-1").state == State.WIPING)
    mixed = lab.bare("claim-a", "gpu-0", attached=(lab.device("gpu-1").uuid,), namespace=OPS)
    with pytest.raises(errors.DeviceBusy):
        lab.node.prepare(mixed)
    assert (lab.node.claims(), lab.device("gpu-0").claim) == ([], "")
    lab.node.cancel([order.operation])
    lab.result(order.operation)


def test_the_state_of_a_record_is_preparing_until_the_spec_is_there(lab: Lab) -> None:
    """DESIGN 5: record first; PREPARED only with the spec written."""
    with lab.store_away(), pytest.raises(errors.StoreUnavailable):
        lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    assert (record(lab).state, lab.specs) == (ClaimState.PREPARING, [])


def test_an_attachment_waits_for_a_worker_that_outlived_its_kill(lab: Lab) -> None:
    """Promise 4: a survivor may still write, and who is attached counts as a tenant."""
    lab.fault("wedge", seconds="60")
    assert lab.scrub().outcome is Outcome.QUARANTINED
    with pytest.raises(errors.DeviceBusy, match="still lives"):
        lab.node.prepare(lab.attachment("admin", "gpu-0"))
    assert lab.node.claims() == []
    lab.backend.clear_fault(Uuid(lab.device().uuid), "wedge")

    def attached() -> bool:
        try:
            return lab.node.prepare(lab.attachment("admin", "gpu-0")).state == "PREPARED"
        except errors.DeviceBusy:
            return False

    wait_for(attached)


def _held(lab: Lab) -> None:
    lab.node.prepare(lab.bare("secret", "gpu-0"))


def _watched(lab: Lab) -> None:
    lab.node.prepare(lab.attachment("secret", "gpu-0"))


def _leased(lab: Lab) -> None:
    lab.scrub()
    lab.let_go()
    lab.lease("gpu-0", holder=Holder(HolderKind.CLAIM, "secret"))


def _worked_on(lab: Lab) -> None:
    lab.fault("hang")
    order = lab.order("gpu-0").model_copy(update={"operation": "claim/secret/1.1/gpu-0/0"})
    lab.node.scrub([order])
    wait_for(lambda: lab.device().state == State.WIPING)
    lab.let_go()


@pytest.mark.parametrize("before", [_held, _watched, _leased, _worked_on])
def test_a_refusal_tells_the_owner_of_a_claim_nothing_of_others(
    lab: Lab, before: Callable[[Lab], None]
) -> None:
    """T8: what kubelet makes an event of the pod names no other claim; operators read it."""
    before(lab)
    with pytest.raises(errors.FleetError) as refused:
        lab.node.prepare(lab.bare("claim-b", "gpu-0"))
    assert "secret" in refused.value.detail
    assert "secret" not in refused.value.told


def test_a_refusal_tells_the_owner_of_a_claim_no_process_of_others(lab: Lab) -> None:
    """T8: neither before the wipe nor just before the exposure: name and pid are for operators."""
    with lab.tenant() as pid:
        with pytest.raises(errors.DeviceBusy, match=f"pid {pid}") as refused:
            lab.node.prepare(lab.bare("claim-b", "gpu-0"))
        assert str(pid) not in refused.value.told
        assert "a process outside this claim" in refused.value.told
    with lab.tenant() as pid:
        exposer = lab.node._parts.holding.exposer
        with pytest.raises(errors.DeviceBusy, match=f"pid {pid}") as refused:
            exposer._read_again(lab.node._registry.device("gpu-0"))
        assert str(pid) not in refused.value.told
