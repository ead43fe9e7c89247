"""Teardown: nothing is let go before its quarantine is seen, nobody is wiped under."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from fleet.core import errors
from fleet.core.claim_states import ClaimState
from fleet.core.messages import ClaimAnswer, Outcome, Published, TeardownOrder
from fleet.core.model import State, UnitId, Uuid
from fleet.node.teardown import Visibility
from tests.fleet.node.conftest import Lab, wait_for
from tests.fleet.node.parting import parting
from tests.fleet.node.trees import OTHER, POD, Tree, checkpoint_text

DEVICE = Uuid("GPU-1")


def published(lab: Lab, **quarantined: float) -> None:
    lab.node.published(Published(quarantined=quarantined))


def settled(lab: Lab) -> bool:
    lab.node.tick(0.0)
    return lab.node.view().outbox == 0


@pytest.fixture
def tree(lab: Lab) -> Iterator[Tree]:
    """The lab's node as kubelet's: the cgroups of its pods."""
    yield lab.serve()
    # A teardown that still waits to be seen must not hold the closing up.
    lab.node._parts.holding.flights.close()


# --- visibility (promise 6) ---


def test_what_was_not_read_back_is_not_visible() -> None:
    """Nothing published is nothing seen; without a scheduler there is nothing to see."""
    assert not Visibility(required=True).covers(DEVICE, 0.0)
    assert not Visibility(required=True).covers_unlisted(0.0)
    assert Visibility(required=False).covers(DEVICE, 1.0)
    assert Visibility(required=False).covers_unlisted(1.0)


def test_an_earlier_quarantine_never_stands_for_a_later_one() -> None:
    """B82: `since` of what was read back must not be before the quarantine waited for."""
    seen = Visibility(required=True)
    seen.published(Published(quarantined={DEVICE: 10.0}))
    assert (seen.covers(DEVICE, 10.0), seen.covers(DEVICE, 10.1)) == (True, False)
    assert not seen.covers(Uuid("GPU-2"), 0.0)
    seen.published(Published())
    assert not seen.covers(DEVICE, 10.0)


def test_a_device_no_view_lists_is_out_of_sight_once_a_later_view_was_read_back() -> None:
    """B10, B24: hardware that is gone has no entry of its own to wait for."""
    seen = Visibility(required=True)
    seen.published(Published(quarantined={DEVICE: 99.0}, unlisted_at=10.0))
    assert (seen.covers_unlisted(10.0), seen.covers_unlisted(10.1)) == (True, False)


@contextmanager
def failing(lab: Lab) -> Iterator[Callable[[], ClaimAnswer]]:
    """A prepared claim whose teardown wipe fails; call it to tear the claim down."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    lab.fault("dirty-word")
    yield lambda: lab.node.unprepare("claim-a", budget_s=0.2)


@pytest.mark.usefixtures("tree")
def test_a_failed_teardown_keeps_everything_until_its_quarantine_is_read_back(lab: Lab) -> None:
    """Promise 6: no answer, hold, lease or record is let go before; retryable meanwhile."""
    with failing(lab) as teardown:
        with pytest.raises(errors.DeviceBusy):
            teardown()
        wait_for(lambda: lab.device().state == State.QUARANTINED)
        device = lab.device()
        for since in (None, device.since - 0.001):
            if since is not None:
                published(lab, **{device.uuid: since})
            with pytest.raises(errors.DeviceBusy) as waited:
                teardown()
            assert isinstance(waited.value, errors.Retryable)
            assert [claim.state for claim in lab.node.claims()] == [ClaimState.UNPREPARING]
            assert len(lab.leases_of("claim-a")) == 1
            assert (lab.node.view().outbox, lab.device().claim) == (0, "claim-a")
        published(lab, **{lab.device("gpu-1").uuid: device.since})
        with pytest.raises(errors.DeviceBusy):
            teardown()
        published(lab, **{device.uuid: device.since})
        answer = lab.node.unprepare("claim-a")
    assert (answer.state, answer.quarantined) == ("ABSENT", (device.uuid,))
    wait_for(lambda: settled(lab))
    assert (lab.node.claims(), lab.coordinator.leases()) == ([], [])
    assert lab.device().state == State.QUARANTINED


@pytest.mark.usefixtures("tree")
def test_what_was_read_back_before_a_restart_counts_no_more(lab: Lab) -> None:
    """Promise 6: only what this owner was told counts, and the wipe is not repeated."""
    with failing(lab) as teardown:
        with pytest.raises(errors.DeviceBusy):
            teardown()
        wait_for(lambda: lab.device().state == State.QUARANTINED)
        device = lab.device()
        lab.restart()
        with pytest.raises(errors.DeviceBusy):
            teardown()
        published(lab, **{device.uuid: device.since})
        assert lab.node.unprepare("claim-a").quarantined == (device.uuid,)


@pytest.mark.usefixtures("tree")
def test_a_clean_teardown_waits_for_no_slice(lab: Lab) -> None:
    """DESIGN 5: API server away, a clean teardown answers success all the same."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    assert lab.node.unprepare("claim-a").quarantined == ()


@pytest.mark.usefixtures("tree")
def test_a_quarantine_cleared_while_it_is_waited_for_leads_to_a_wipe(lab: Lab) -> None:
    """No state is a trap: an operator's decision goes on with the teardown, under a wipe."""
    with failing(lab), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lab.node.unprepare, "claim-a")
        wait_for(lambda: lab.device().state == State.QUARANTINED)
        lab.backend.clear_fault(Uuid(lab.device().uuid), "dirty-word")
        lab.node.quarantine_clear("gpu-0", operator="tester")
        with pytest.raises(errors.DeviceBusy, match="wiped first"):
            waiting.result(30.0)
    assert lab.node.unprepare("claim-a").quarantined == ()
    assert lab.device().state == State.CLEAN


def lose_hardware(lab: Lab) -> None:
    """Take gpu-0 out of the machine while the node is down."""
    lab.node.close()
    lab.take_out()
    lab.open()


@pytest.mark.usefixtures("tree")
def test_hardware_that_is_gone_is_let_go_once_the_slices_say_so(lab: Lab) -> None:
    """B10, B24, promise 6: read back complete for a view without it, later than the teardown."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    uuid, unit = lab.device().uuid, UnitId(lab.device().units[0])
    earlier = lab.node.view().at
    lose_hardware(lab)
    with pytest.raises(errors.DeviceBusy):
        lab.node.unprepare("claim-a", budget_s=0.2)
    assert lab.node._registry.journal.units[unit].state is State.QUARANTINED
    for told in (
        Published(),
        Published(quarantined={uuid: lab.node.view().at}),
        Published(unlisted_at=earlier),
    ):
        lab.node.published(told)
        with pytest.raises(errors.DeviceBusy):
            lab.node.unprepare("claim-a", budget_s=0.2)
        assert len(lab.leases_of("claim-a")) == 1
    lab.node.published(Published(unlisted_at=lab.node.view().at))
    assert lab.node.unprepare("claim-a").quarantined == (uuid,)
    wait_for(lambda: settled(lab))
    assert lab.coordinator.leases() == []


# --- who is still there (promise 4) ---


def test_a_teardown_is_refused_while_another_pod_of_the_claim_runs(lab: Lab, tree: Tree) -> None:
    """Kubelet's defect 1.5 a: asked too early, nothing is changed; due once that pod has ended."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    specs = {name: (lab.directory / "cdi" / name).read_text() for name in lab.specs}
    journal = lab.node._registry.journal
    before = dict(journal.claims), dict(journal.units)
    other = tree.pod(OTHER)
    tree.enter(other)
    for _ in range(2):
        with pytest.raises(errors.DeviceBusy, match="in use by pod") as refused:
            lab.node.unprepare(TeardownOrder(uid="claim-a", reserved=(POD, OTHER)))
        assert refused.value.holder == f"pod:{OTHER}"
        assert "nothing was changed" in refused.value.remedy
    assert (dict(journal.claims), dict(journal.units)) == before
    assert {name: (lab.directory / "cdi" / name).read_text() for name in lab.specs} == specs
    tree.leave(other)
    assert lab.node.unprepare(TeardownOrder(uid="claim-a", reserved=(POD, OTHER))).state == "ABSENT"


def test_pods_named_at_the_teardown_must_be_gone_too(lab: Lab, tree: Tree) -> None:
    """Promise 4: further consumers count, are remembered, and survive a restart."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    other = tree.pod(OTHER)
    tree.enter(other)
    with pytest.raises(errors.DeviceBusy, match=OTHER):
        lab.node.unprepare(TeardownOrder(uid="claim-a", consumers=(OTHER,)))
    assert (lab.device().state, lab.specs) == (State.IN_USE, [])
    lab.restart()
    with pytest.raises(errors.DeviceBusy, match=OTHER):
        lab.node.unprepare("claim-a")
    tree.remove(other)
    assert lab.node.unprepare("claim-a").quarantined == ()


def test_a_pod_only_kubelet_knows_of_must_be_gone_too(lab: Lab, tree: Tree) -> None:
    """Kubelet's defect 1.5 b: the checkpoint names a consumer nobody told us of."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    (lab.state / "dra_manager_state").write_text(checkpoint_text({"claim-a": [OTHER]}))
    other = tree.pod(OTHER)
    tree.enter(other)
    with pytest.raises(errors.DeviceBusy, match=OTHER):
        lab.node.unprepare("claim-a")
    tree.leave(other)
    assert lab.node.unprepare("claim-a").quarantined == ()


def test_an_attachment_ends_only_when_its_pod_is_gone(lab: Lab, tree: Tree) -> None:
    """B35: detaching needs the consumer proof; until then nobody wipes, however long it takes."""
    lab.node._parts.holding.teardown.holder_deadline_s = 0.0
    lab.node.prepare(lab.attachment("admin", "gpu-0"))
    pod = tree.pod(POD)
    tree.enter(pod)
    with pytest.raises(errors.DeviceBusy, match="admin"):
        lab.node.unprepare("admin")
    assert (lab.specs, lab.device().attached) == ([], ("admin",))
    assert lab.scrub().outcome is Outcome.BUSY
    tree.leave(pod)
    assert lab.node.unprepare("admin").state == "ABSENT"
    assert lab.scrub().outcome is Outcome.CERTIFIED


def test_the_holders_teardown_waits_for_the_administrator_by_name(lab: Lab) -> None:
    """B35: attached counts as a tenant; retryable, naming the claim; then it ends by itself."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    lab.node.prepare(lab.attachment("admin", "gpu-0"))
    with pytest.raises(errors.DeviceBusy, match="claim admin is attached") as waited:
        lab.node.unprepare("claim-a")
    assert waited.value.holder == "claim:admin"
    assert (lab.device().state, lab.specs) == (State.IN_USE, ["fleetscrub.dev-gpu_admin.json"])
    lab.node.unprepare("admin")
    lab.node.tick(lab.node._registry.clock.now())
    wait_for(lambda: not lab.node.claims())
    assert lab.device().state == State.CLEAN


@pytest.mark.parametrize("exposed", [True, False])
def test_an_administrator_that_never_leaves_costs_the_device(lab: Lab, *, exposed: bool) -> None:
    """B35: after the deadline the claim is let go and the device is not: QUARANTINED(holder)."""
    if exposed:
        lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    lab.node.prepare(lab.attachment("admin", "gpu-0"))
    if not exposed:
        with pytest.raises(errors.DeviceBusy):
            lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    with pytest.raises(errors.DeviceBusy, match="admin"):
        lab.node.unprepare("claim-a")
    lab.node._parts.holding.teardown.holder_deadline_s = 0.0
    answer = lab.node.unprepare("claim-a")
    assert answer.quarantined == (lab.device().uuid,)
    (reason,) = lab.device().reasons
    assert reason.code == "tenant-not-gone"
    assert "admin" in reason.detail
    wait_for(lambda: settled(lab))
    assert lab.scrub().outcome is Outcome.BUSY
    lab.node.unprepare("admin")
    assert lab.scrub().outcome is Outcome.CERTIFIED


def test_a_process_that_comes_between_proof_and_wipe_costs_the_device_at_last(lab: Lab) -> None:
    """No state is a trap: a dirty device that is never free to be wiped is let go quarantined."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0", "gpu-1"))
    lab.leave(State.DIRTY, "gpu-0")
    lab.leave(State.DIRTY, "gpu-1")
    with lab.tenant():
        with pytest.raises(errors.DeviceBusy, match="tenant"):
            lab.node.unprepare("claim-a")
        lab.node._parts.holding.teardown.holder_deadline_s = 0.0
        answer = lab.node.unprepare("claim-a")
    assert answer.quarantined == (lab.device().uuid,)
    assert (lab.device("gpu-1").state, lab.node.claims()) == (State.CLEAN, [])


def test_a_closing_service_quarantines_nothing_for_being_late(lab: Lab) -> None:
    """Promise 7: a wipe cancelled by a hand-over is no failure, whatever the deadline says."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    lab.node._parts.holding.teardown.holder_deadline_s = 0.0
    lab.fault("hang")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lab.node.unprepare, "claim-a")
        wait_for(lambda: lab.device().state == State.WIPING)
        lab.node.drain()
        with pytest.raises(errors.FleetError):
            waiting.result(30.0)
    assert (lab.device().state, lab.device().reasons) == (State.DIRTY, ())
    lab.backend.clear_fault(Uuid(lab.device().uuid), "hang")
    lab.restart()
    assert lab.node.unprepare("claim-a").quarantined == ()


def test_an_unknown_claim_is_success_and_changes_nothing(lab: Lab) -> None:
    """DESIGN 4: kubelet may ask twice, late, or for a claim that never got here."""
    sequence = lab.node._registry.journal.sequence
    answer = lab.node.unprepare(TeardownOrder(uid="never", consumers=(POD,), reserved=(POD,)))
    assert (answer.state, answer.devices, answer.quarantined) == ("ABSENT", (), ())
    assert lab.node._registry.journal.sequence == sequence


def test_claims_come_and_go_while_others_look(lab: Lab) -> None:
    """Promise 9: a wipe that asks who is attached is not upset by another claim's record."""
    lab.node.prepare(lab.attachment("admin-0", "gpu-0"))
    journal = lab.node._registry.journal
    looking = iter(journal.claims.items())
    lab.node.prepare(lab.attachment("admin-1", "gpu-0"))
    assert [uid for uid, _ in looking] == ["admin-0"]
    looking = iter(journal.claims.items())
    lab.node.unprepare("admin-0")
    assert [uid for uid, _ in looking] == ["admin-0", "admin-1"]
    assert list(journal.claims) == ["admin-1"]


def test_a_claim_lost_with_the_journal_is_not_let_go_under_its_pod(lab: Lab, tree: Tree) -> None:
    """Promise 4, B35: told of success, kubelet would forget the one trace of who is attached."""
    pod = tree.pod(POD)
    tree.enter(pod)
    with pytest.raises(errors.DeviceBusy, match="in use by pod"):
        lab.node.unprepare(TeardownOrder(uid="forgotten", reserved=(POD,)))
    tree.leave(pod)
    assert lab.node.unprepare(TeardownOrder(uid="forgotten", reserved=(POD,))).state == "ABSENT"


def test_who_did_not_leave_keeps_the_device_after_the_claim_has_gone(lab: Lab, tree: Tree) -> None:
    """Promises 1 and 4: neither a retest by rule nor an operator's clearing wipes under a pod."""
    lab.node._parts.holding.teardown.holder_deadline_s = 0.0
    pod = tree.pod(POD)
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    tree.enter(pod)
    with pytest.raises(errors.DeviceBusy, match=r"longer than|not visible"):
        lab.node.unprepare("claim-a", budget_s=0.3)
    published(lab, **{lab.device().uuid: lab.device().since})
    assert lab.node.unprepare("claim-a").state == ClaimState.ABSENT
    assert {reason.code for reason in lab.device().reasons} == {"tenant-not-gone"}
    lab.node.quarantine_clear("gpu-0", operator="me")
    lab.node.tick(1.0)  # the claim's lease is given back
    refused = lab.scrub()
    assert refused.outcome is Outcome.BUSY
    assert POD in refused.findings[0].detail
    lab.restart()
    assert lab.scrub().outcome is Outcome.BUSY, "a restart forgets nobody"
    tree.leave(pod)
    assert lab.scrub().outcome is Outcome.CERTIFIED


# --- instances of partitions ---


def test_an_instance_in_use_keeps_the_record_and_names_its_user(lab: Lab) -> None:
    """gpus-8.29: wiped, then not removable: retryable, and no second wipe once it is free."""
    backend = parting(lab)
    lab.node.prepare(lab.claim("claim-a", "gpu-1-1g-0"))
    backend.user = "python (pid 7)"
    with pytest.raises(errors.Retryable, match=r"python \(pid 7\)"):
        lab.node.unprepare("claim-a")
    (claim,) = lab.node.claims()
    assert claim.state == ClaimState.UNPREPARING
    certificate = lab.device("gpu-1-1g-0").certificate
    assert certificate
    backend.user = ""
    assert lab.node.unprepare("claim-a").state == ClaimState.ABSENT
    assert lab.device("gpu-1-1g-0").certificate == certificate
    assert backend.there == []


def test_an_instance_in_use_past_the_deadline_is_quarantined_with_its_device(lab: Lab) -> None:
    """No state is a trap: the claim ends, its device is out, the node removes it once it can."""
    backend = parting(lab)
    lab.node._parts.holding.teardown.holder_deadline_s = 0.0
    lab.node.prepare(lab.claim("claim-a", "gpu-1-1g-0"))
    backend.user = "python (pid 7)"
    device = lab.device("gpu-1-1g-0")
    assert lab.node.unprepare("claim-a").quarantined == (device.uuid,)
    (reason,) = lab.device("gpu-1-1g-0").reasons
    assert (reason.code, "python (pid 7)" in reason.detail) == ("tenant-not-gone", True)
    assert lab.device("gpu-1-1g-1").state == State.DIRTY, "the neighbour is not concerned"
    assert len(backend.there) == 1
    backend.user = ""
    lab.node.tick(1.0)
    wait_for(lambda: not backend.there)
