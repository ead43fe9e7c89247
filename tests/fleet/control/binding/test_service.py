"""The life of claims under the coordinator, with every write counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet.control.binding.claim_facts import Rules
from fleet.control.binding.claim_judge import MARGIN_S, UNUSED_S, WATCHED_S
from fleet.control.binding.decisions import Undo, Wait
from fleet.control.binding.service import LET_GO_SHARE, RESYNC_S, WAIT_TOLD_S, words
from fleet.control.binding.snapshot import Case
from fleet.control.binding.tracking import Track
from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.messages import Outcome
from fleet.core.model import Holder, HolderKind, UnitId
from fleet.kube.base import CLAIMS, PODS, SLICES, Name, Object
from fleet.kube.claim_holds import Holds
from fleet.plugin.configuration import API_VERSION, KIND
from tests.fleet.control.binding import scenes
from tests.fleet.control.binding.benches import BARE, BUILTIN, MARKS, SPACE, STEP_S, Bench
from tests.lab.apiserver.engine import Target

LATE_S = 600.0 - MARGIN_S


def written(bench: Bench) -> list[str]:
    """What the coordinator sent to change something, in order."""
    return [f"{call.verb} {call.resource.plural}/{call.subresource}" for call in
            bench.cluster.writes()]  # fmt: skip


def bound(bench: Bench, name: str = "c") -> bool:
    """Whether the scheduler would go on: every condition True, under the claim's own lease."""
    reading = bench.reading(name)
    lease = bench.lease(reading.uid)
    tokens = {reading.receipt(one, "token") for one in reading.holding}
    return reading.gated and reading.bound and lease is not None and tokens == {str(lease.token)}


# --- a claim's whole life -------------------------------------------------------------------------


def test_the_whole_life_of_a_named_claim() -> None:
    """B1, B3, D3: two writes to bind a claim of two devices, two to let it go, and none besides."""
    bench = Bench()
    uid = bench.given("c", "a", "b")
    bench.run(3.0)
    assert bound(bench)
    assert written(bench) == ["apply resourceclaims/status", "patch resourceclaims/"]
    assert (bench.reading().held, bench.reading().finalizer) == (True, True)
    assert [order.device for order in bench.nodes.orders] == [bench.uuid("a"), bench.uuid("b")]
    bench.bind("c-pod")
    bench.prepare("c")
    bench.run(60.0, wait_s=5.0)
    bench.unprepare("c")
    bench.reserve("c")
    bench.run(10.0)
    assert bench.reading().held
    bench.bury("c")
    bench.nodes.by_name["n1"].owed.clear()
    bench.run(UNUSED_S + 4.0)
    assert written(bench)[2:] == ["patch resourceclaims/status", "patch resourceclaims/"]
    reading = bench.reading()
    assert (reading.allocated, reading.marked, bench.lease(uid)) == (False, False, None)
    assert bench.binder.open_claims == 0


def test_a_template_claim_ends_with_its_pod() -> None:
    """D3: hold, then finalizer leave a Terminating claim; the builtin one is not ours."""
    bench = Bench()
    bench.given("c", "a")
    bench.run(3.0)
    bench.prepare("c")
    bench.delete("c")
    bench.unprepare("c")
    bench.reserve("c")
    bench.run(2.0)
    assert bench.reading().held
    bench.bury("c", owes=False)
    bench.run(UNUSED_S + 2.0)
    assert len(bench.cluster.writes()) == 4
    assert bench.raw()["metadata"]["finalizers"] == [BUILTIN]
    assert bench.reserved() == []


def test_the_plugin_pays_first() -> None:
    """D6: while its node lets a claim go the coordinator waits; later it does it itself."""
    bench = Bench()
    bench.given("c", "a")
    bench.run(3.0)
    bench.prepare("c")
    bench.unprepare("c")
    bench.bury("c")
    bench.reserve("c")
    bench.run(UNUSED_S - 1.0)
    assert bench.reading().held
    bench.run(3.0)
    assert not bench.reading().marked


def test_conditions_are_not_said_before_the_wipe_is_proven() -> None:
    """B2, promise 1, invariant 35: nothing is written during a wipe; the pool is asked once."""
    bench = Bench()
    bench.given("c", "a", "b")
    bench.run(20.0, work=False)
    assert written(bench) == []
    assert len(bench.nodes.orders) == 2


def test_a_claim_that_waits_long_is_told_for_what() -> None:
    """Neither a condition nor the scheduler says so: each new cause once, in words for its owner,
    and telling keeps nobody from his device."""
    bench = Bench()
    bench.told.broken = True
    bench.given("c", "a")
    bench.run(WAIT_TOLD_S - 2.0, work=False)
    assert bench.told.waits == []
    bench.run(10.0, work=False)
    assert bench.told.waits == [(f"{SPACE}/c", "a is wiped and checked")]
    bench.nodes.silent.add("n1")
    bench.run(10.0, work=False)
    assert bench.told.waits[1:] == [(f"{SPACE}/c", "its node does not answer")]
    bench.nodes.silent.clear()
    bench.run(30.0)
    assert bound(bench)
    told = len(bench.told.waits)
    bench.run(60.0, wait_s=5.0)
    assert len(bench.told.waits) == told


def test_a_device_whose_last_user_is_unknown_is_told_as_such() -> None:
    """HELD is no state that a pod's owner can wait out: the event says who decides."""
    bench = Bench()
    bench.change("a", state="HELD")
    bench.given("c", "a")
    bench.run(WAIT_TOLD_S + 6.0)
    ((_, why),) = bench.told.waits
    assert why == "who used a before is not known; whoever runs its node proves it free"


@pytest.mark.parametrize("spent_s", [0.0, 3600.0])
def test_a_named_claim_is_used_again(spent_s: float) -> None:
    """B7: its conditions go False at teardown, and True again under a new token, however old the
    allocation is.
    """
    bench = Bench()
    uid = bench.given("c", "a")
    bench.run(3.0)
    first = bench.lease(uid)
    bench.bind("c-pod")
    bench.prepare("c")
    bench.clock.advance(spent_s)
    bench.run(2.0)
    bench.unprepare("c")
    bench.admin.delete(PODS, Name("c-pod", SPACE))
    bench.reserve("c", bench.pod("next"))
    bench.binder.touch([uid], bench.clock.now())
    bench.run(2.0)
    assert bench.words() == [("a", "False")]
    bench.bury("c", state="DIRTY")
    bench.bind("next")
    bench.run(5.0)
    assert bench.words() == [("a", "False")]
    bench.nodes.by_name["n1"].owed.clear()
    bench.run(5.0)
    second = bench.lease(uid)
    assert bound(bench)
    assert first is not None
    assert second is not None
    assert second.token > first.token
    assert bench.nodes.orders[-1].token == str(second.token)


# --- work that was abandoned ----------------------------------------------------------------------


@pytest.mark.parametrize("work", [False, True])
def test_a_claim_that_was_deallocated_leaves_nothing(work: bool) -> None:
    """B5, invariant 36: allocation gone, mid-wait or bound: token closed, lease, marks gone."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.run(2.0, work=work)
    lease = bench.lease(uid)
    assert lease is not None
    assert bench.reading().marked is work
    bench.deallocate("c")
    bench.run(3.0)
    assert bench.lease(uid) is None
    assert (bench.device("a").floor, bench.device("a").closed) == (str(lease.token), True)
    assert not bench.reading().marked
    assert bench.binder.open_claims == 0


@pytest.mark.parametrize("work", [False, True])
def test_a_pod_that_vanishes_frees_its_claim(work: bool) -> None:
    """B5: nobody reserved and no record: after a moment everything is given back."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.run(2.0, work=work)
    bench.reserve("c")
    bench.run(UNUSED_S - 1.0, work=work)
    assert bench.lease(uid) is not None
    bench.run(6.0)
    assert bench.lease(uid) is None
    assert not bench.reading().marked


def test_a_pod_that_comes_back_finds_its_work_done() -> None:
    """The scheduler drops a pod's entry for a moment; the wipe goes on and counts."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.run(1.0, work=False)
    entries = [one for one in bench.reserved() if not MARKS.is_hold(one)]
    bench.reserve("c")
    bench.run(2.0, work=False)
    bench.reserve("c", *entries)
    bench.run(2.0)
    assert bound(bench)
    assert bench.lease(uid) is not None
    assert len(bench.nodes.orders) == 1


def test_a_deleted_claim_is_bound_without_marks() -> None:
    """Measured: a claim deleted during the wait is bound and used; it takes no hold any more."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.run(1.0, work=False)
    bench.delete("c")
    bench.run(3.0)
    assert bound(bench)
    assert not bench.reading().marked
    assert written(bench) == ["apply resourceclaims/status"]
    bench.reserve("c")
    bench.run(3.0)
    assert bench.lease(uid) is None


def test_a_claim_that_is_gone_is_forgotten() -> None:
    """No claim is remembered after it has ended."""
    bench = Bench()
    for number in range(6):
        name = f"c{number}"
        bench.given(name, "a")
        bench.run(1.5)
        bench.deallocate(name)
        bench.run(2.0)
        bench.write(name)
        found = bench.raw(name)
        found["metadata"]["finalizers"] = []
        bench.admin.replace(CLAIMS, found)
        bench.delete(name)
    bench.run(1.0)
    assert bench.binder.open_claims == 0
    assert bench.binder.look.tracks == {}
    assert bench.store.leases() == []


# --- failures -------------------------------------------------------------------------------------


def failing(bench: Bench) -> str:
    """A claim of two devices, of which b does not come clean; its UID."""
    bench.nodes.outcomes[bench.uuid("b")] = Outcome.QUARANTINED
    uid = bench.given("c", "a", "b")
    bench.run(3.0)
    return uid


def undone(bench: Bench, uid: str) -> bool:
    """Whether the claim has failed and left nothing behind."""
    reading = bench.reading()
    failures = [reading.is_true(one, MARKS.failed) for one in reading.devices]
    return all(failures) and not reading.held and bench.lease(uid) is None


def test_nothing_is_said_before_the_quarantine_can_be_seen() -> None:
    """B6, promise 6: else the scheduler chooses the same device again."""
    bench = Bench()
    uid = failing(bench)
    assert written(bench) == []
    assert bench.lease(uid) is not None
    bench.publish("n1")
    bench.run(3.0)
    assert undone(bench, uid)
    assert written(bench) == ["apply resourceclaims/status"]
    assert not bench.device("a").reasons


def test_a_pool_that_nobody_publishes_is_taken_over() -> None:
    """B6: ten seconds on, the coordinator shows the quarantine itself, before it says so."""
    bench = Bench()
    uid = failing(bench)
    bench.run(6.0)
    assert written(bench) == []
    bench.run(5.0)
    assert undone(bench, uid)
    assert written(bench) == ["replace resourceslices/", "apply resourceclaims/status"]


def test_a_wipe_that_never_ends_fails_in_time() -> None:
    """B6, invariant 36: before the scheduler's own timeout; the device is out of service then."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.run(LATE_S - 10.0, wait_s=2.0, work=False)
    assert not bench.reading().failed
    bench.run(25.0, work=False)
    assert undone(bench, uid)
    assert [one.code for one in bench.device("a").reasons] == ["timed-out"]
    assert written(bench)[-2:] == ["replace resourceslices/", "apply resourceclaims/status"]


def test_a_device_that_is_held_costs_nobody_its_service() -> None:
    """B6: a device that another holder kept is not at fault when time is up."""
    bench = Bench()
    holder = Holder(HolderKind.CAMPAIGN, "r")
    unit = UnitId(bench.device("a").units[0])
    bench.store.acquire([AcquireRequest(frozenset({unit}), holder, ttl_s=9999.0)])
    uid = bench.given("c", "a")
    bench.run(5.0)
    assert "campaign:r" in bench.binder.why(uid)
    bench.run(LATE_S, wait_s=5.0)
    assert undone(bench, uid)
    assert not bench.device("a").reasons
    assert "campaign" not in str(bench.raw()["status"]["devices"])
    assert bench.nodes.orders == []


def test_a_silent_node_is_given_up_and_another_one_serves() -> None:
    """B6: the pool is taken over at once when time is up; the lease left on the silent node is
    in nobody's way, and given back when the node answers.
    """
    bench = Bench()
    uid = bench.given("c", "a")
    bench.run(1.0, work=False)
    first = bench.lease(uid)
    bench.nodes.silent.add("n1")
    bench.run(LATE_S + 3.0, wait_s=2.0)
    assert bench.reading().failed
    assert bench.lease(uid) == first
    assert written(bench) == ["replace resourceslices/", "apply resourceclaims/status"]
    bench.deallocate("c")
    bench.allocate("c", "a", node="n2")
    bench.reserve("c", bench.pod("again"))
    bench.run(3.0)
    assert bench.reading().bound
    assert len(bench.store.leases()) == 2
    bench.nodes.silent.clear()
    bench.survey()
    bench.run(RESYNC_S + 2.0, wait_s=1.0)
    (left,) = bench.store.leases()
    assert first is not None
    assert left.token > first.token
    assert bound(bench)


def test_a_wipe_that_comes_to_nothing_is_tried_again_in_peace() -> None:
    """A wipe refused at once is not ordered again and again at the pace of the steps."""
    bench = Bench()
    bench.nodes.outcomes[bench.uuid("a")] = Outcome.BUSY
    bench.given("c", "a")
    bench.run(10.0)
    assert 3 <= len(bench.nodes.orders) <= 12
    assert len({order.operation for order in bench.nodes.orders}) == len(bench.nodes.orders)
    bench.nodes.outcomes.clear()
    bench.run(3.0)
    assert bound(bench)


def test_three_wipes_that_fail_are_a_fault() -> None:
    """B6: a device that never comes clean goes out of service, by the coordinator's word."""
    bench = Bench()
    bench.nodes.outcomes[bench.uuid("a")] = Outcome.FAILED
    uid = bench.given("c", "a")
    bench.run(6.0)
    assert len(bench.nodes.orders) == 3
    assert [one.code for one in bench.device("a").reasons] == ["backend-failed"]
    bench.publish("n1")
    bench.run(3.0)
    assert undone(bench, uid)


def test_a_device_that_fails_after_it_was_said_ready() -> None:
    """B6: bound conditions are taken back by a failure, the hold with them."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.run(3.0)
    bench.change("a", state="QUARANTINED")
    bench.publish("n1")
    bench.binder.touch([uid], bench.clock.now())
    bench.run(3.0)
    assert undone(bench, uid)


def test_a_device_that_is_lost_while_it_is_wiped() -> None:
    """B6: its claim fails by it, once nobody can choose it, and only then is the lease given back:
    the node closes the token for units that it knows, and does not show any more.
    """
    bench = Bench()
    uid = bench.given("c", "a")
    bench.run(1.0, work=False)
    lease = bench.lease(uid)
    assert lease is not None
    bench.lose("a")
    bench.run(8.0, work=False)
    assert bench.lease(uid) == lease
    assert not bench.reading().failed
    bench.run(5.0, work=False)
    assert undone(bench, uid)
    assert bench.binder.look.around.visible.hidden("n1", ["a"]) == frozenset()
    (lost,) = bench.nodes.by_name["n1"].lost.values()
    assert (lost.floor, lost.closed) == (str(lease.token), True)
    assert bench.nodes.by_name["n1"].working == {}


def test_a_device_is_lost_while_no_coordinator_looks() -> None:
    """B6, B42: one that has never seen the device closes the token all the same."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.run(1.0, work=False)
    bench.lose("a")
    bench.restart()
    bench.run(14.0, work=False)
    assert undone(bench, uid)


@pytest.mark.parametrize("how", ["deallocated", "unused"])
def test_a_claim_given_up_while_its_device_fails(how: str) -> None:
    """B5, promise 6: its lease goes when the scheduler can see the device out of service."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.survey()
    bench.run(1.0, work=False)
    bench.nodes.outcomes[bench.uuid("a")] = Outcome.QUARANTINED
    bench.nodes.work()
    if how == "deallocated":
        bench.deallocate("c")
    else:
        bench.reserve("c")
    bench.run(UNUSED_S + 3.0)
    assert bench.lease(uid) is not None
    assert bench.device("a").closed
    bench.publish("n1")
    bench.run(2.0)
    assert bench.lease(uid) is None


def test_a_clock_that_leaps_costs_no_device_its_service() -> None:
    """B6: our clock goes ten minutes ahead while wipes have run for a second."""
    bench = Bench()
    uids = [bench.given("c", "a"), bench.given("d", "b")]
    bench.run(1.0, work=False)
    ahead = bench.clock.now() + 600.0
    for number in range(40):
        bench.claims.refresh()
        bench.binder.step(ahead + number)
    assert not [reason for name in "ab" for reason in bench.device(name).reasons]
    assert [bench.reading(name).failed for name in "cd"] == [False, False]
    bench.nodes.work()
    bench.change("a", checked_at=bench.clock.now())
    bench.binder.touch(uids, ahead + 40.0)
    bench.binder.step(ahead + 40.0)
    assert [bench.reading(name).bound for name in "cd"] == [True, True]


def test_a_late_claim_is_watched_before_it_is_failed() -> None:
    """B6, B42: a coordinator that begins anew gives a claim past its time a moment more."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.run(1.0, work=False)
    bench.clock.advance(LATE_S + 10.0)
    bench.restart()
    bench.run(WATCHED_S - 2.0, wait_s=1.0, work=False)
    assert not bench.reading().failed
    assert not bench.device("a").reasons
    bench.run(16.0, wait_s=1.0, work=False)
    assert undone(bench, uid)
    assert [one.code for one in bench.device("a").reasons] == ["timed-out"]


def test_a_node_that_is_gone_for_good_keeps_no_claim() -> None:
    """B6: the fleet does not name the node any more; the lease left there is in nobody's way."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.survey()
    bench.run(1.0, work=False)
    del bench.nodes.by_name["n1"]
    bench.deallocate("c")
    bench.allocate("c", "a", node="n2")
    bench.reserve("c", bench.pod("again"))
    bench.survey()
    bench.run(3.0)
    assert bench.reading().bound
    assert len(bench.store.leases(Holder(HolderKind.CLAIM, uid))) == 2


# --- whose claims ---------------------------------------------------------------------------------


def test_two_claims_of_one_device() -> None:
    """B5: an allocator wrote one device into two claims: one has it, the other fails at once, and
    the device stays in service.
    """
    bench = Bench()
    bench.given("c", "a")
    bench.given("d", "a")
    bench.run(4.0)
    assert sorted([bound(bench, "c"), bound(bench, "d")]) == [False, True]
    loser = "d" if bound(bench, "c") else "c"
    assert bench.reading(loser).failed
    assert not bench.reading(loser).held
    assert not bench.device("a").reasons
    assert len(bench.store.leases()) == 1


def test_a_device_in_use_is_not_given_twice() -> None:
    """B5: the second claim of a prepared device fails at once, not when its time is up."""
    bench = Bench()
    bench.given("c", "a")
    bench.run(3.0)
    bench.prepare("c")
    bench.given("d", "a")
    bench.run(3.0)
    assert bench.reading("d").failed
    assert bench.device("a").claim == bench.reading("c").uid
    assert not bench.device("a").reasons


def test_admin_access_takes_nothing() -> None:
    """B35: a claim that only looks in is bound at once, with neither lease nor wipe nor hold."""
    bench = Bench()
    bench.given("c", "a")
    bench.run(3.0)
    bench.prepare("c")
    uid = bench.create("look")
    bench.allocate("look", "a", request="look", adminAccess=True)
    bench.reserve("look", bench.pod("p"))
    before = len(bench.nodes.orders)
    bench.run(1.0)
    reading = bench.reading("look")
    assert (reading.bound, reading.marked, bench.lease(uid)) == (True, False, None)
    assert len(bench.nodes.orders) == before


def test_f60_a_claim_that_may_not_look_is_failed_and_never_bound() -> None:
    """F60: a claim with adminAccess of a namespace that may not look into devices hears so from its
    conditions; nothing is leased or wiped for it, also where it holds another device."""
    rules = Rules(MARKS, binding_timeout_s=600.0, fresh_s=60.0, admins=frozenset({"ops"}))
    bench = Bench(rules=rules)
    uid = bench.create("look")
    bench.allocate("look", "a", request="look", adminAccess=True)
    bench.reserve("look", bench.pod("p"))
    bench.run(3.0)
    reading = bench.reading("look")
    assert (reading.failed, reading.bound, reading.marked) == (True, False, False)
    assert (bench.lease(uid), bench.nodes.orders) == (None, [])
    (entry,) = bench.reading("look").raw["status"]["devices"]
    assert "may not look into devices (adminAccess)" in entry["conditions"][0]["message"]


def test_f66_a_namespace_full_of_marks_delays_no_other() -> None:
    """F66: whoever puts our finalizer on hundreds of claims of his own waits for them himself; a
    stranger's claim is bound in as many steps, behind few requests more."""
    quiet = Bench()
    quiet.given("c", "a")
    steps = 0
    while not bound(quiet):
        quiet.step()
        quiet.nodes.work()
        steps += 1
    bench = Bench()
    for number in range(200):
        made = scenes.claim(scenes.request(), name=f"flood-{number}")
        made["metadata"] |= {"namespace": "flood", "finalizers": [MARKS.finalizer]}
        bench.admin.create(CLAIMS, made)
    bench.given("c", "a")
    for _ in range(steps):
        before = len(bench.cluster.writes())
        bench.step()
        bench.nodes.work()
        assert len(bench.cluster.writes()) - before <= LET_GO_SHARE + 2
    assert bound(bench)
    bench.run(200.0, wait_s=1.0)
    left = [one for one in bench.admin.list(CLAIMS).items if one["metadata"].get("finalizers")]
    assert [one["metadata"]["name"] for one in left] == ["c"]


CANONICAL = {"apiVersion": API_VERSION, "coverageFloor": 0.999, "kind": KIND, "profile": "strict"}
REORDERED = {key: CANONICAL[key] for key in ("kind", "profile", "apiVersion", "coverageFloor")}


@pytest.mark.parametrize("parameters", [CANONICAL, REORDERED], ids=["canonical", "reordered"])
def test_f61_a_claim_is_bound_however_the_keys_of_its_parameters_are_ordered(
    parameters: Object,
) -> None:
    """F61: a claim whose opaque parameters have their keys in another order than the API server
    writes them is bound, held and let go like any other, and what others wrote in its status stays.
    """
    bench = Bench()
    uid = bench.create("c", parameters=parameters)
    bench.allocate("c", "a")
    bench.reserve("c", bench.pod("c-pod"))
    bench.run(3.0)
    reading = bench.reading("c")
    assert (reading.bound, reading.held, reading.finalizer) == (True, True, True)
    (config,) = reading.raw["status"]["allocation"]["devices"]["config"]
    assert list(config["opaque"]["parameters"]) == list(parameters)
    (entry,) = reading.raw["status"]["devices"]
    theirs = {"type": "x.example.com/Net", "status": "True", "reason": "Up", "message": ""}
    theirs["lastTransitionTime"] = entry["conditions"][0]["lastTransitionTime"]
    entry = {**entry, "conditions": [*entry["conditions"], theirs]}
    bench.write("c", devices=[entry])
    bench.bind("c-pod")
    bench.prepare("c")
    bench.run(1.0)
    assert bench.lease(uid) is not None
    Holds(bench.cluster, MARKS, bench.clock).ensure(bench.reading("c"))
    (entry,) = bench.reading("c").raw["status"]["devices"]
    assert theirs in entry["conditions"]


def test_f61_a_claim_that_cannot_be_written_is_told_so_and_leaves_its_device_free() -> None:
    """F61: where the server keeps no word of ours (parameters sent as JSON with spaces), the owner
    hears why at once; no lease is kept, and no device wiped for it again."""
    bench = Bench()
    uid = bench.create("c", parameters=REORDERED)
    bench.engine.keep_spaces(Target(CLAIMS, Name("c", SPACE)))
    bench.allocate("c", "a")
    bench.reserve("c", bench.pod("c-pod"))
    bench.run(3.0)
    assert (bench.lease(uid), bench.reading("c").bound) == (None, False)
    ((_, event),) = bench.told.claims
    assert event.startswith("ParametersRespelled: ")
    assert "spaces" in event
    assert "json.dumps" in event
    wipes = len(bench.nodes.orders)
    for _ in range(3):  # the scheduler gives up, and allocates it anew
        bench.run(700.0, wait_s=10.0)
        entries = bench.reserved("c")
        bench.write("c", allocation=None, devices=None, reservedFor=None)
        bench.run(1.0)
        bench.allocate("c", "a")
        bench.reserve("c", *entries)
        bench.run(3.0)
    assert len(bench.nodes.orders) == wipes
    assert bench.lease(uid) is None
    bench.given("d", "a")
    bench.run(3.0)
    assert bench.reading("d").bound


def test_claims_of_others_are_left_alone() -> None:
    """B37: a claim of another driver is neither read live nor written, and no node is asked."""
    bench = Bench()
    bench.create("c")
    bench.allocate("c", "a", driver="x.example.com")
    bench.reserve("c", bench.pod("p"))
    bench.run(40.0, wait_s=1.0)
    assert {call.verb for call in bench.cluster.calls} == {"list"}
    assert bench.nodes.looks == []


def test_a_claim_without_conditions_is_the_nodes_own() -> None:
    """`fast`: where nobody waits for conditions nothing is wiped or written ahead."""
    bench = Bench()
    uid = bench.given("c", "a", gated=False)
    bench.run(3.0)
    assert written(bench) == []
    assert bench.lease(uid) is None


def test_a_malformed_claim_stops_no_other() -> None:
    """B19: what cannot be understood is passed over, lease and all; its neighbours are served."""
    bench = Bench()
    uid = bench.given("bad", "b")
    bench.run(3.0)
    bench.given("c", "a")
    bench.claims.refresh()
    bad = bench.raw("bad")
    bad["metadata"]["resourceVersion"] = "999999"
    bad["status"]["reservedFor"] = "nobody"
    bench.claims.learn(bad)
    for _ in range(60):
        bench.binder.step(bench.clock.now())
        bench.clock.advance(1.0)
        bench.nodes.work()
    assert bound(bench)
    assert bench.lease(uid) is not None
    assert bench.reading("bad").held


# --- more than one coordinator --------------------------------------------------------------------


def play(bench: Bench, between: Callable[[int], None]) -> tuple[object, ...]:
    """Two claims, one of which fails, through bind, use and end; what is left."""
    bench.nodes.outcomes[bench.uuid("b")] = Outcome.QUARANTINED
    uids = [bench.given("c", "a"), bench.given("d", "b")]
    seen: list[object] = []
    for number in range(64):
        if number == 8:
            bench.publish("n1")
        if number == 24:
            seen += [bound(bench), bench.reading("d").failed, bench.reading().marked]
            bench.prepare("c")
        if number == 28:
            bench.unprepare("c")
            bench.reserve("c")
        if number == 32:
            bench.bury("c", owes=False)
        between(number)
        bench.step(wait_s=0.5)
        bench.nodes.work()
    operations = sorted(order.operation.rpartition("/")[2] for order in bench.nodes.orders)
    seen += [set(operations), [bench.lease(uid) for uid in uids]]
    reading = bench.reading()
    return (*seen, reading.allocated, reading.marked, bench.reading("d").held)


GOOD_END = (True, True, True, {"0"}, [None, None], False, False, False)


@pytest.mark.parametrize("at", range(0, 34, 3))
def test_a_coordinator_that_dies_is_replaced_anywhere(at: int) -> None:
    """B42: whenever it is replaced, the new one comes to the same end and repeats no wipe."""
    bench = Bench()
    assert play(bench, lambda number: bench.restart() if number == at else None) == GOOD_END


def test_a_coordinator_that_dies_all_the_time() -> None:
    """B42: even one that never lives for two steps gets there, but for what takes time to see."""
    bench = Bench()
    bench.given("c", "a")
    for _ in range(8):
        bench.restart()
        bench.step()
        bench.nodes.work()
    assert bound(bench)
    assert bench.reading().finalizer
    assert len({order.operation for order in bench.nodes.orders}) == 1


def test_two_coordinators_do_no_harm() -> None:
    """B4, B04: both look at everything in turn, and it ends as with one."""
    bench = Bench()
    first, second = (bench.claims, bench.binder), bench.begin()

    def swap(number: int) -> None:
        bench.claims, bench.binder = (first, second)[number % 2]
        bench.claims.refresh()
        bench.binder.touch([*bench.claims.items], bench.clock.now())

    assert play(bench, swap) == GOOD_END


# --- what is away ---------------------------------------------------------------------------------


def test_a_store_that_is_away_loses_nothing() -> None:
    """E5: nothing is done meanwhile, and all of it afterwards though no claim has changed."""
    bench = Bench()
    bench.given("c", "a")
    bench.store.away = True
    for _ in range(8):
        with pytest.raises(errors.StoreUnavailable):
            bench.step()
        bench.clock.advance(2.0)
    assert written(bench) == []
    assert bench.nodes.orders == []
    bench.store.away = False
    bench.run(4.0)
    assert bound(bench)


def test_a_store_behind_grants_nothing() -> None:
    """Promise 2: a node that has seen newer tokens stops every grant until an operator decides."""
    bench = Bench()
    epoch = bench.store.newest().epoch
    bench.change("b", floor=f"{epoch}.99")
    uid = bench.given("c", "b")
    bench.given("d", "a")
    bench.run(5.0)
    assert bench.store.leases() == []
    assert written(bench) == []
    assert "issued only up to" in bench.binder.why(uid)


def test_an_incomplete_cache_moves_nothing() -> None:
    """A coordinator that has not heard everything yet gives nothing back."""
    bench = Bench()
    bench.given("c", "a")
    bench.run(2.0)
    bench.claims, bench.binder = bench.begin()
    assert bench.binder.step(bench.clock.now()) == 0
    assert len(bench.store.leases()) == 1


def test_a_missing_right_is_learnt_once() -> None:
    """Without the binding right claims are bound by conditions alone, with one refusal in all."""
    bench = Bench(rights=BARE)
    bench.given("c", "a")
    bench.given("d", "b")
    bench.run(40.0, wait_s=1.0)
    assert bound(bench, "c")
    assert bound(bench, "d")
    assert not bench.reading("c").marked
    assert written(bench) == ["apply resourceclaims/status"] * 3
    assert list(bench.binder.performer.writer.troubles) == ["holds"]


# --- time and words -------------------------------------------------------------------------------


def test_a_clock_that_goes_back_stops_nobody() -> None:
    """A clock set back by a day costs no claim its turn."""
    bench = Bench()
    bench.given("c", "a")
    bench.run(0.5, work=False)
    bench.nodes.work()
    bench.claims.refresh()
    day_ago = bench.clock.now() - 86400.0
    bench.change("a", checked_at=bench.clock.now())
    for number in range(6):
        bench.binder.step(day_ago + number)
    assert bound(bench)


def test_a_claim_at_rest_is_left_in_peace() -> None:
    """A bound claim is looked at every half minute, a waiting one no more than once a second."""
    bench = Bench()
    bench.given("c", "a")
    bench.run(3.0)
    before = bench.binder.looked_at
    bench.run(60.0)
    assert bench.binder.looked_at - before <= 3
    bench.nodes.silent.add("n2")
    bench.given("d", "a", node="n2")
    bench.run(1.0)
    before = bench.binder.looked_at
    bench.run(20.0)
    assert bench.binder.looked_at - before <= 22


def test_a_step_asks_each_node_once() -> None:
    """However many claims are due, a step is one look at each node."""
    bench = Bench()
    for name, device, node in (("c", "a", "n1"), ("d", "b", "n1"), ("e", "a", "n2")):
        bench.given(name, device, node=node)
    bench.step()
    assert [sorted(asked) for asked in bench.nodes.looks] == [["n1", "n2"]]


def test_a_hold_that_outlives_its_use_is_told() -> None:
    """D3: after the limit its owner hears what is missing, in words that do not change."""
    bench = Bench()
    bench.given("c", "a")
    bench.run(3.0)
    bench.prepare("c")
    bench.unprepare("c")
    bench.reserve("c")
    bench.run(890.0, wait_s=5.0)
    assert bench.told.claims == []
    bench.run(60.0, wait_s=5.0)
    assert len(bench.told.claims) > 2
    ((name, message),) = set(bench.told.claims)
    assert name == f"{SPACE}/c"
    assert "UNPREPARING" in message
    assert "fleet claim show" in message


def test_the_owner_reads_what_was_decided_and_not_what_nodes_answered() -> None:
    """T12: nodes and store name other claims and their operations to operators; an event that the
    owner of a claim reads has our own decision only."""
    bench = Bench()
    bench.given("c", "a")
    track = Track(why="nobody is reserved for it; claim/secret/1.2/u/0 under 1.3 has not ended yet")
    case = Case(bench.reading(), track, decision=Undo((), "nobody is reserved for it"))
    assert words(case) == "nobody is reserved for it"
    case.decision = Wait("a device is held by claim:secret", told="a device is held by somebody")
    assert words(case) == "a device is held by somebody"
    case.decision = Wait("it waits")
    assert words(case) == "it waits"


def test_events_that_cannot_be_told_stop_nothing() -> None:
    """An owner who cannot be told keeps nobody's claim from being looked at again."""
    bench = Bench(hold_event_after_s=0.5)
    bench.given("c", "a")
    bench.run(3.0)
    bench.told.broken = True
    bench.prepare("c")
    bench.reserve("c")
    bench.run(15.0)
    assert len(bench.told.claims) > 1
    bench.bury("c", owes=False)
    bench.run(12.0)
    assert not bench.reading().marked


def test_a_decision_is_told_in_words() -> None:
    """`fleet claim show`: why a claim stands where it stands."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.step()
    bench.step()
    assert "wiped" in bench.binder.why(uid)
    assert bench.binder.why("nobody") == ""


def test_a_view_that_comes_by_hastens_what_it_is_about() -> None:
    """A survey that sees a teardown end has the claim looked at, not half a minute later."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.run(3.0)
    bench.bind("c-pod")
    bench.prepare("c")
    bench.run(1.0)
    bench.unprepare("c")
    before = bench.binder.looked_at
    bench.run(2.0)
    assert bench.binder.looked_at == before
    bench.survey()
    bench.step()
    assert bench.binder.looked_at == before + 1
    assert uid in bench.binder.look.tracks
    bench.survey()
    bench.step()
    assert bench.binder.looked_at == before + 1, "what is as it was wakes nobody"


def test_nothing_is_proven_for_a_pod_that_is_leaving() -> None:
    """DESIGN 5: between burial and the pod's end its entry is still there: no lease and no wipe for
    it; a pod that stays gets both.
    """
    bench = Bench()
    uid = bench.given("c", "a")
    bench.run(3.0)
    bench.bind("c-pod")
    bench.prepare("c")
    bench.change_pod("c-pod", {"metadata": {"finalizers": ["kubelet.example.com/x"]}})
    bench.admin.delete(PODS, Name("c-pod", SPACE))
    bench.unprepare("c")
    bench.survey()
    bench.run(1.0)
    bench.bury("c")
    wiped = len(bench.nodes.orders)
    bench.nodes.by_name["n1"].owed.clear()
    bench.survey()
    bench.run(8.0)
    assert (len(bench.nodes.orders), bench.lease(uid)) == (wiped, None)
    entries = [one for one in bench.reserved() if not MARKS.is_hold(one)]
    bench.reserve("c", *entries, bench.pod("next"))
    bench.run(8.0)
    assert len(bench.nodes.orders) == wiped + 1
    assert bench.lease(uid) is not None


def test_slices_are_only_written_where_a_node_does_not() -> None:
    """The normal life of claims costs no write to any slice."""
    bench = Bench()
    bench.given("c", "a")
    bench.run(3.0 + STEP_S)
    assert not [call for call in bench.cluster.writes() if call.resource == SLICES]
