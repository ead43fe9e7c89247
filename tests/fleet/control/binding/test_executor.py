"""Decisions carried out: what goes wrong with one write stays with its claim."""

from __future__ import annotations

import pytest

from fleet.control.binding.claim_judge import UNUSED_S
from fleet.control.binding.executor import REFUSED_S
from fleet.control.binding.lease_return import UNDONE_NODE_MAX
from fleet.core import errors
from fleet.core.messages import Acceptance
from fleet.core.settings import Unexposed
from fleet.kube.base import CLAIMS, PODS
from tests.fleet.control.binding import scenes
from tests.fleet.control.binding.benches import MARKS, Bench


def proven(name: str = "c", **terms: object) -> Bench:
    """A claim whose next step is to be bound."""
    bench = Bench(**terms)  # type: ignore[arg-type]
    bench.given(name, "a")
    bench.step()
    bench.nodes.work()
    return bench


def applies(bench: Bench) -> int:
    """Writes to claims so far."""
    return sum(1 for call in bench.cluster.writes() if call.verb in ("apply", "patch"))


def test_a_stale_reading_is_read_and_decided_anew() -> None:
    """B5, B16: the claim was given another device right before the write: nothing is said of it
    that was found out about the first.
    """
    bench = proven()

    def reallocate() -> None:
        entries = [one for one in bench.reserved() if not MARKS.is_hold(one)]
        bench.deallocate("c")
        bench.allocate("c", "b")
        bench.reserve("c", *entries)

    bench.cluster.faults.before_next("apply", reallocate)
    bench.step()
    assert applies(bench) == 1
    assert bench.words() == []
    bench.run(3.0)
    reading = bench.reading()
    lease = bench.lease(reading.uid)
    assert lease is not None
    assert lease.units == set(bench.device("b").units)
    assert reading.receipt(reading.holding[0], "certificate") == bench.device("b").certificate
    assert len(bench.store.leases()) == 1


def test_a_lost_answer_is_settled_by_reading() -> None:
    """B5, B27: a write whose answer was lost is looked up, not sent again."""
    bench = proven()
    bench.cluster.faults.lose_answer_next("apply")
    bench.step()
    assert applies(bench) == 1
    assert [call.verb for call in bench.cluster.calls][-1] == "get"
    bench.run(3.0)
    assert bench.reading().bound
    assert bench.reading().finalizer
    assert applies(bench) == 2


@pytest.mark.parametrize(
    "error",
    [
        errors.ApiFailed("unable to convert", status=500),
        errors.ApiInvalid("status.devices[0].conditions: Too many", status=422),
        errors.ApiForbidden("cannot patch", status=403),
    ],
)
def test_a_body_that_is_refused_is_not_sent_at_once_again(error: errors.FleetError) -> None:
    """Measured: 500 is the answer to a malformed body; it is tried again a minute later only."""
    bench = proven()
    bench.cluster.faults.fail_next("apply", error)
    bench.run(REFUSED_S - 5.0, wait_s=1.0)
    assert applies(bench) == 1
    bench.run(7.0, wait_s=1.0)
    assert bench.reading().bound


def test_f71_a_right_that_is_granted_is_used_at_once() -> None:
    """F71: once a right that was missing is granted, what was refused for want of it is tried with
    the next step, and nothing is said to be missing any more."""
    bench = proven()
    bench.cluster.faults.fail_next("apply", errors.ApiForbidden("cannot patch", status=403))
    bench.run(5.0, wait_s=1.0)
    assert not bench.reading().bound
    bench.binder.performer.writer.troubles["holds"] = "claims cannot be held after use"
    bench.binder.granted(bench.clock.now())
    bench.run(1.0)
    assert bench.reading().bound
    assert bench.binder.troubles == {}


def test_a_refusal_of_what_has_changed_is_decided_anew() -> None:
    """422 of a claim that was deallocated meanwhile is no fault of the body."""
    bench = proven()
    bench.cluster.faults.before_next("apply", lambda: bench.deallocate("c"))
    bench.cluster.faults.fail_next("apply", errors.ApiInvalid("must be an allocated device"))
    bench.run(5.0)
    assert bench.store.leases() == []


def test_a_claim_that_is_gone_is_buried_at_once() -> None:
    """404 on a write: the claim is forgotten though the watch has not said so yet."""
    bench = proven()
    found = bench.raw()
    found["metadata"]["finalizers"] = []
    bench.claims.refresh()
    bench.admin.replace(CLAIMS, found)
    bench.delete("c")
    for _ in range(3):
        bench.binder.step(bench.clock.now())
        bench.clock.advance(2.0)
    assert bench.claims.get(found["metadata"]["uid"]) is None
    assert bench.binder.open_claims == 0


def test_storms_of_conflicts_end() -> None:
    """B5, B16: each conflict costs one read and one more try."""
    bench = proven()
    bench.cluster.faults.fail_next("apply", errors.ApiConflict("changed"), times=5)
    bench.run(4.0)
    assert bench.reading().bound
    assert applies(bench) == 7


def test_one_claims_trouble_is_its_own() -> None:
    """The first write of a step that fails in any way keeps no other from being made."""
    bench = Bench()
    bench.given("c", "a")
    bench.given("d", "b")
    bench.step()
    bench.nodes.work()
    bench.cluster.faults.fail_next("apply", errors.ApiFailed("broken", status=500))
    bench.step()
    assert sorted([bench.reading("c").bound, bench.reading("d").bound]) == [False, True]


def test_a_hold_is_kept_for_who_came_meanwhile() -> None:
    """D3: a pod that was reserved after the last look keeps the hold of its claim."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.run(3.0)
    bench.reserve("c")
    bench.run(UNUSED_S, wait_s=1.0)
    bench.step()
    if bench.lease(uid) is not None:
        bench.step()
    assert bench.lease(uid) is None
    assert bench.reading().held
    entry = bench.pod("late")
    bench.claims.refresh()
    bench.reserve("c", entry)
    before = len(bench.cluster.writes())
    bench.binder.step(bench.clock.now())
    assert bench.reading().held
    assert len(bench.cluster.writes()) == before


def test_an_answer_to_nothing_asked_is_passed_over() -> None:
    """A node that answers an order it was not given stops no step."""
    bench = Bench()
    bench.nodes.chatter = (Acceptance(operation="claim/x", accepted=True),)
    bench.given("c", "a")
    bench.run(3.0)
    assert bench.reading().bound


def test_orders_go_out_as_the_claim_demands() -> None:
    """The order is for the claim's own token, and its name says which claim it is for (gate)."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.step()
    (order,) = bench.nodes.orders
    lease = bench.lease(uid)
    assert lease is not None
    assert order.operation == f"claim/{uid}/{lease.token}/{bench.uuid('a')}/0"
    assert order.token == str(lease.token)


def test_a_lease_under_a_closed_token_is_renewed_without_a_detour() -> None:
    """A token that the node has closed is replaced, and nothing is abandoned for it."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.run(1.0, work=False)
    first = bench.lease(uid)
    assert first is not None
    bench.nodes.close(bench.nodes.by_name["n1"], bench.uuid("a"), str(first.token))
    bench.nodes.by_name["n1"].working.clear()
    bench.change("a", state="DIRTY", operation="")
    bench.run(3.0)
    second = bench.lease(uid)
    assert second is not None
    assert second.token > first.token
    assert bench.reading().bound
    assert bench.nodes.abandoned == []


@pytest.mark.parametrize("policy", list(Unexposed))
def test_a_pod_bound_to_a_device_that_failed(policy: Unexposed) -> None:
    """D4: its owner is told, and the pod is deleted where the policy says so."""
    bench = proven(unexposed=policy)
    bench.run(2.0)
    bench.bind("c-pod")
    bench.change("a", state="QUARANTINED")
    bench.run(40.0, wait_s=1.0)
    assert not bench.reading().failed
    assert bench.reading().held
    ((name, message),) = set(bench.told.pods)
    assert name.endswith("/c-pod")
    assert "a device that failed" in message
    (pod,) = bench.admin.list(PODS).items
    assert ("deletionTimestamp" in pod["metadata"]) is (policy is Unexposed.DELETE)
    deletions = [call for call in bench.cluster.writes() if call.verb == "delete"]
    assert len(deletions) == (1 if policy is Unexposed.DELETE else 0)


def test_a_node_that_refuses_our_word_is_asked_again_soon() -> None:
    """A quarantine that a node could not take in now is no reason to wait a minute."""
    bench = Bench()
    bench.given("c", "a")
    bench.run(1.0, work=False)
    bench.run(568.0, wait_s=8.0, work=False)
    bench.nodes.busy = 1
    bench.run(8.0, wait_s=1.0, work=False)
    assert bench.nodes.busy == 0
    assert bench.device("a").reasons


# --- giving back ----------------------------------------------------------------------------------


def leaving(bench: Bench, count: int = 1) -> list[str]:
    """Claims with leases that the scheduler has given up; their UIDs."""
    for number in range(count):
        added = scenes.device(f"x{number}", node=f"n{number % 2 + 1}")
        bench.nodes.by_name[f"n{number % 2 + 1}"].devices[added.uuid] = added
    uids = [bench.given(f"c{n}", f"x{n}", node=f"n{n % 2 + 1}") for n in range(count)]
    bench.survey()
    bench.run(1.0, work=False)
    for number in range(count):
        bench.deallocate(f"c{number}")
    return uids


def test_a_claim_that_is_wanted_again_keeps_its_lease() -> None:
    """B5: a pod was reserved after the last look: the claim is read live, and decided anew."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.run(3.0)
    bench.reserve("c")
    bench.run(UNUSED_S, wait_s=1.0)
    bench.claims.refresh()
    bench.clock.advance(0.5)
    bench.reserve("c", bench.pod("late"))
    bench.binder.step(bench.clock.now())
    assert bench.cluster.calls[-1].verb == "get"
    assert bench.nodes.abandoned == []
    bench.run(3.0)
    assert bench.lease(uid) is not None
    assert not bench.device("a").closed
    assert bench.reading().bound


def test_what_is_given_back_in_one_step_is_one_batch() -> None:
    """However many claims: one call to the nodes, one transaction, a bounded part at a time."""
    bench = Bench()
    leaving(bench, 20)
    bench.step()
    assert bench.nodes.batches == [2 * UNDONE_NODE_MAX]
    assert len(bench.store.leases()) == 20 - 2 * UNDONE_NODE_MAX
    bench.step()
    assert bench.store.leases() == []
    assert bench.nodes.batches == [2 * UNDONE_NODE_MAX, 20 - 2 * UNDONE_NODE_MAX]


def test_a_server_that_is_away_is_asked_once_in_a_step() -> None:
    """A time-out for each claim would hold up all the others; nothing is given back meanwhile."""
    bench = Bench()
    leaving(bench, 6)
    bench.claims.refresh()
    bench.cluster.faults.fail_next("get", errors.ApiUnavailable("away"), times=2)
    before = sum(1 for call in bench.cluster.calls if call.verb == "get")
    bench.binder.step(bench.clock.now())
    assert sum(1 for call in bench.cluster.calls if call.verb == "get") == before + 1
    assert bench.nodes.abandoned == []
    bench.run(4.0)
    assert bench.store.leases() == []


def test_a_node_that_does_not_answer_costs_no_reading() -> None:
    """What cannot be given back now anyway is not asked about again and again."""
    bench = Bench()
    leaving(bench, 1)
    bench.nodes.silent.add("n1")
    bench.survey()
    bench.run(20.0, wait_s=1.0)
    assert "get" not in {call.verb for call in bench.cluster.calls}
    assert "does not answer" in bench.binder.why(bench.reading("c0").uid)
    bench.nodes.silent.clear()
    bench.survey()
    bench.run(10.0, wait_s=1.0)
    assert bench.store.leases() == []


def test_a_lease_that_waits_elsewhere_holds_up_nobody() -> None:
    """B5: a wipe that does not stop on one node keeps the claim from no other, and is seen to."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.survey()
    bench.run(1.0, work=False)
    close = bench.nodes.abandon
    bench.nodes.abandon = lambda asked: [errors.DeviceBusy("has not ended yet") for _ in asked]  # type: ignore[method-assign]
    entries = [one for one in bench.reserved() if not MARKS.is_hold(one)]
    bench.deallocate("c")
    bench.allocate("c", "b", node="n2")
    bench.reserve("c", *entries)
    bench.run(3.0)
    assert bench.reading().bound
    assert len(bench.store.leases()) == 2
    bench.nodes.abandon = close  # type: ignore[method-assign]
    bench.run(60.0, wait_s=1.0)
    (left,) = bench.store.leases()
    assert left == bench.lease(uid)
    assert left.units == set(bench.device("b", "n2").units)
