"""Holds as the plugin handles them: on before exposure, off after burial, never in the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fleet.core import errors
from fleet.core.messages import DeviceView, NodeView, Owed
from fleet.core.model import State
from fleet.core.profiles import Profile
from fleet.core.settings import Finalizing
from fleet.kube.base import CLAIMS, Object, Resource
from fleet.kube.claim import ClaimReading, read
from fleet.kube.rights import REVIEWS
from fleet.plugin.holds import (
    HOLD_BUDGET_S,
    PAUSE_MAX_S,
    REFUSED_S,
    Marking,
    MarkingRules,
    unverified,
)
from fleet.plugin.requests import AskedClaim
from fleet.plugin.slices.device_attributes import names
from fleet.rpc.node_api import NodeApi
from tests.fleet.node.conftest import wait_for
from tests.fleet.plugin.benches import DRIVER, MARKS, NODE, SPACE, Bench, bench, result
from tests.lab.apiserver.cluster import MemoryCluster


def reading(site: Bench, asked: AskedClaim) -> ClaimReading:
    return read(site.claim_of(asked), MARKS)


def written(site: Bench) -> list[tuple[str, str]]:
    """Writes to claims since the site began, without those of scheduler and controller."""
    calls = [call for call in site.cluster.writes() if call.resource == CLAIMS]
    return [(call.verb, call.subresource) for call in calls if call.verb in ("apply", "patch")]


def settle(site: Bench) -> None:
    """Releases given back, then one step of the keeper."""
    wait_for(lambda: _drained(site))
    site.keeper().step(time.time())


def _drained(site: Bench) -> bool:
    site.node.tick(time.time())
    return not site.node.view().outbox


def alone(site: Bench, asked: AskedClaim) -> None:
    """The pod has gone: the claim controller takes its entry out, and ours keeps the rest."""
    ours = [e for e in site.claim_of(asked)["status"]["reservedFor"] if MARKS.is_hold(e)]
    site.reserve(asked, *ours)


@pytest.fixture
def lab_pool() -> Iterator[Bench]:
    """Profile `lab`."""
    with bench(Profile.LAB) as made:
        yield made


@pytest.fixture
def strict() -> Iterator[Bench]:
    """Profile `strict`."""
    with bench(Profile.STRICT) as made:
        yield made


# --- the whole life -------------------------------------------------------------


def test_a_claims_life_costs_four_writes(site: Bench) -> None:
    """D3: hold and finalizer before exposure, allocation with hold and finalizer after burial."""
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    found = reading(site, asked)
    assert (found.held, found.finalizer) == (True, True)
    assert site.device().held
    site.serving.prepare(asked)
    alone(site, asked)
    site.serving.unprepare(asked)
    assert reading(site, asked).held
    settle(site)
    found = reading(site, asked)
    assert (found.allocated, found.marked) == (False, False)
    assert written(site) == [("apply", "status"), ("patch", ""), ("patch", "status"), ("patch", "")]
    view = site.node.view()
    assert (view.owed, view.outbox, view.claims) == ((), 0, ())
    site.keeper().step(time.time())
    assert len(written(site)) == 4


def test_a_held_life_writes_no_slice(site: Bench) -> None:
    """DESIGN 5, Slices: from prepare to release the slices stay as they are."""
    for name in ("gpu-0", "gpu-1"):
        site.scrub(name)
    site.let_go()
    site.node.sweep()
    keeper = site.keeper()
    keeper.step(time.time())
    begun = keeper.report.settled, site.taints("gpu-0")
    writes = len(site.cluster.writes())
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    keeper.step(time.time())
    assert (keeper.report.settled, site.taints("gpu-0")) == begun == (True, [])
    site.serving.unprepare(asked)
    site.node.sweep()
    keeper.step(time.time())
    settle(site)
    assert site.taints("gpu-0") == []
    slices = [c for c in site.cluster.writes()[writes:] if c.resource.plural == "resourceslices"]
    assert slices == []


def test_the_lease_goes_before_the_hold(site: Bench) -> None:
    """D6: with the store away the marks stay, and go once the lease was given back."""
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    with site.store_away():
        site.serving.unprepare(asked)
        site.node.tick(time.time())
        view = site.node.view()
        assert (view.outbox, view.owed) == (1, ())
        site.keeper().step(time.time())
        assert reading(site, asked).held
    wait_for(lambda: _drained_later(site))
    site.keeper().step(time.time())
    assert not reading(site, asked).marked


def _drained_later(site: Bench) -> bool:
    site.node.tick(time.time() + 3600)
    return not site.node.view().outbox


def test_a_force_deleted_pod_frees_nothing_before_the_teardown(site: Bench) -> None:
    """B12: the claim stays allocated under our hold alone until its device is clean."""
    pod = site.pod()
    asked = site.bound("a", "gpu-0", pods=[pod])
    site.serving.prepare(asked)
    pod.run()
    pod.delete()
    alone(site, asked)
    site.cluster.delete(CLAIMS, reading(site, asked).name)
    with site.kept(), pytest.raises(errors.DeviceBusy):
        replace(site.serving, budget_s=0.2).unprepare(asked)
    assert reading(site, asked).held
    pod.leave()
    site.serving.unprepare(asked)
    settle(site)
    assert written(site)[2:] == [("apply", "status"), ("patch", "")]
    with pytest.raises(errors.ApiNotFound):  # nothing else kept it
        site.claim_of(asked)


# --- before exposure ------------------------------------------------------------


def test_profile_lab_leaves_no_marks(lab_pool: Bench) -> None:
    """DESIGN 5, Profiles: `lab` has no hold; nothing is owed for it."""
    asked = lab_pool.bound("a", "gpu-0")
    lab_pool.serving.prepare(asked)
    lab_pool.serving.unprepare(asked)
    settle(lab_pool)
    assert written(lab_pool) == []
    assert not lab_pool.device().held


@pytest.mark.parametrize("held", [True, False])
def test_where_the_scheduler_waits_the_coordinator_holds(strict: Bench, held: bool) -> None:
    """DESIGN 5, Reconcile: in `strict` the plugin only reads; without a hold it goes on."""
    asked = strict.create("a")
    gated = {
        **result("gpu-0"),
        "bindingConditions": [MARKS.sanitized],
        "bindingFailureConditions": [MARKS.failed],
    }
    strict.allocate(asked, gated)
    ours = [MARKS.hold(node=NODE, uid=asked.uid)] if held else []
    strict.reserve(asked, strict.pod(), *ours)
    strict.serving.prepare(asked)
    assert written(strict) == []
    assert strict.device().held is held
    (brief,) = strict.node.view().claims
    assert (brief.held, brief.name, brief.namespace) == (held, "a", SPACE)


def test_a_strict_claim_without_conditions_is_held_by_the_plugin(strict: Bench) -> None:
    """DESIGN 5: where nobody waits for us (no feature, another scheduler) the node writes it."""
    asked = strict.bound("a", "gpu-0")
    strict.serving.prepare(asked)
    assert reading(strict, asked).held


def test_a_terminating_claim_is_served_without_a_hold(site: Bench) -> None:
    """DESIGN 5: it can get neither mark (422): go on, and taint."""
    asked = site.create("a", finalizers=["x.example.com/stays"])
    site.allocate(asked, result("gpu-0"))
    site.reserve(asked, site.pod())
    site.delete(asked)
    site.serving.prepare(asked)
    assert site.record(asked) == "PREPARED"
    assert (written(site), site.device().held) == ([], False)
    site.keeper().step(time.time())
    assert site.taints("gpu-0") == ["not-clean"]


def test_without_the_right_it_is_said_once_and_tainted(
    site: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """DESIGN 5: profile says so, devices in use are tainted; asked again after a minute."""
    refused = errors.ApiForbidden("resourceclaims/binding", status=422)
    site.cluster.faults.fail_next("apply", refused, times=2)
    marking = site.parts.marking
    site.serving.prepare(site.bound("a", "gpu-0"))
    assert "fast: holds not granted" in marking.trouble
    assert "taint" in marking.trouble
    site.keeper().step(time.time())
    assert site.taints("gpu-0") == ["not-clean"]
    site.serving.prepare(site.bound("b", "gpu-1-1g-0"))
    assert caplog.text.count("holds not granted") == 1
    assert written(site) == [("apply", "status")]
    marking._refused_at -= REFUSED_S
    site.serving.prepare(site.bound("c", "gpu-1-1g-1"))
    marking._refused_at -= REFUSED_S
    site.serving.prepare(site.bound("d", "gpu-1-1g-2"))
    assert (marking.trouble, caplog.text.count("holds not granted")) == ("", 1)


class Reviewing(MemoryCluster):
    """Answers what its caller may do, as a real server does."""

    def __init__(self, *answers: object) -> None:
        super().__init__()
        self.answers = list(answers)

    def create(self, resource: Resource, body: Object) -> Object:
        """Only reviews."""
        assert resource == REVIEWS
        wanted = {"group": CLAIMS.group, "resource": "resourceclaims", "subresource": "binding"}
        assert body["spec"] == {"resourceAttributes": {**wanted, "verb": "patch"}}
        answer = self.answers.pop(0)
        if isinstance(answer, errors.FleetError):
            raise answer
        return {**body, "status": answer}


@pytest.mark.parametrize(
    ("answers", "trouble"),
    [
        ([{"allowed": False}], True),
        ([errors.ApiUnavailable("away"), {"allowed": False}], True),
        ([{"allowed": True}], False),
        ([errors.ApiForbidden("no reviews")], False),
        ([{}], False),
    ],
)
def test_a_missing_right_is_said_at_the_start(
    site: Bench, answers: list[object], *, trouble: bool
) -> None:
    """DESIGN 5: profile `fast` says so before the first claim is served; asked once."""
    parts = site.parts.marking
    reviewed = replace(parts.holds, cluster=Reviewing(*answers))
    marking = replace(parts, holds=reviewed, clock=site.clock)
    for _ in range(3):
        marking.step(site.node.view())
        marking.step(site.node.view())
        site.clock.advance(REFUSED_S)
    assert ("holds not granted" in marking.trouble) is trouble
    strict = replace(marking, rules=MarkingRules(Profile.STRICT), trouble="", _ask_at=0.0)
    strict.step(site.node.view())
    assert strict.trouble == ""


def test_trouble_with_a_hold_keeps_no_pod_waiting(site: Bench) -> None:
    """A hold is for availability only: the API's 500 costs a taint, not the pod's start."""
    site.cluster.faults.fail_next("apply", errors.ApiFailed("etcd is sick"))
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    assert (site.record(asked), site.device().held) == ("PREPARED", False)


# --- what the node never knew -----------------------------------------------------


def test_a_refused_claim_is_let_go_too(site: Bench) -> None:
    """B62: held before the node refused it: nothing of it is left once its pod has gone."""
    site.serving.prepare(site.bound("a", "gpu-0"))
    rival = site.bound("b", "gpu-0")
    with pytest.raises(errors.DeviceBusy):
        replace(site.serving, budget_s=1.5).prepare(rival)
    assert reading(site, rival).marked
    alone(site, rival)
    site.serving.unprepare(rival)
    settle(site)
    assert not reading(site, rival).marked
    assert not reading(site, rival).allocated


def test_marks_are_owed_although_the_plugin_is_stopped(site: Bench) -> None:
    """Promise 7: kubelet has its answer and asks no more: the plugin that comes next takes the
    marks off a claim that the node refused."""
    site.serving.prepare(site.bound("a", "gpu-0"))
    rival = site.bound("b", "gpu-0")
    with pytest.raises(errors.DeviceBusy):
        replace(site.serving, budget_s=1.5).prepare(rival)
    alone(site, rival)
    site.serving.unprepare(rival)
    site.plug()
    settle(site)
    assert not reading(site, rival).marked
    assert site.node.view().owed == ()


@pytest.mark.parametrize("away", [False, True])
def test_a_hold_whose_answer_was_lost_is_owed(site: Bench, *, away: bool) -> None:
    """Promise 7: served as not held, for the API failed after the hold: what is on is taken off,
    also where nothing is heard of the API at the teardown, and by a plugin that comes later."""
    asked = site.bound("a", "gpu-0")
    site.cluster.faults.fail_next("patch", errors.ApiFailed("etcd is sick"))
    site.serving.prepare(asked)
    assert reading(site, asked).held
    assert not site.device().held
    alone(site, asked)
    site.cluster.faults.offline = away
    site.serving.unprepare(asked)
    site.cluster.faults.offline = False
    site.plug()
    settle(site)
    assert not reading(site, asked).marked
    assert site.node.view().owed == ()


def test_a_held_orphan_that_nobody_asks_about_is_let_go(site: Bench) -> None:
    """A7: the hold's answer was lost, its pod has gone and kubelet never asks: the orphan's burial
    owes what is on the claim."""
    pod = site.pod()
    asked = site.bound("a", "gpu-0", pods=[pod])
    site.cluster.faults.fail_next("patch", errors.ApiFailed("etcd is sick"))
    site.serving.prepare(asked)
    pod.delete()
    alone(site, asked)
    for _ in range(2):
        site.parts.orphans.step()
    wait_for(lambda: not site.node.view().claims)
    site.plug()
    settle(site)
    assert not reading(site, asked).marked


def test_a_finalizer_that_the_server_would_not_take_off_stays_owed(site: Bench) -> None:
    """Promise 7: somebody's admission policy refuses the write (422) for a while: the debt is not
    struck out, and the plugin that comes once it is gone takes the finalizer off."""
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    alone(site, asked)
    site.serving.unprepare(asked)
    faults = site.cluster.faults

    def refuse() -> None:
        faults.fail_next("patch", errors.ApiInvalid("not on a Sunday", status=422, causes=[]))

    faults.before_next("patch", lambda: faults.before_next("patch", refuse))
    settle(site)
    assert (reading(site, asked).held, reading(site, asked).finalizer) == (False, True)
    assert len(site.node.view().owed) == 1
    site.plug()
    settle(site)
    assert not reading(site, asked).marked
    assert site.node.view().owed == ()


def test_a_device_is_known_by_the_name_it_was_published_under(site: Bench) -> None:
    """Invariant 28, promise 7: a driver's name that is no DNS label is another in the slice, and in
    the allocation: that is no other use of the claim."""

    class Shouted:
        """The node, whose driver names devices in capitals."""

        def view(self) -> NodeView:
            view = site.door.view()
            loud = [one.model_copy(update={"name": one.name.upper()}) for one in view.devices]
            return view.model_copy(update={"devices": tuple(loud)})

        def __getattr__(self, name: str) -> object:
            return getattr(site.door, name)

    node: NodeApi = Shouted()  # type: ignore[assignment] # the rest is the door's
    shown = names(node.view().devices)
    published = next(shown[one.uuid] for one in node.view().devices if one.name == "GPU-0")
    assert published not in ("gpu-0", "GPU-0")
    asked = site.bound("a", published)
    replace(site.serving, node=node).prepare(asked)
    alone(site, asked)
    site.serving.unprepare(asked)
    wait_for(lambda: _drained(site))
    replace(site.parts.marking, node=node).step(site.node.view())
    assert not reading(site, asked).marked
    assert site.node.view().owed == ()


def test_a_claim_used_anew_keeps_its_marks(site: Bench) -> None:
    """B5: a named claim's next pod comes before the marks of the last use are taken off."""
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    site.serving.unprepare(asked)
    wait_for(lambda: _drained(site))
    (owed,) = site.node.view().owed
    assert (owed.uid, owed.name, owed.devices) == (asked.uid, "a", (site.device().uuid,))
    old = site.node.view()
    site.serving.prepare(asked)
    assert site.node.view().owed == ()
    site.parts.marking.step(old)
    assert reading(site, asked).held
    site.serving.unprepare(asked)
    settle(site)
    assert not reading(site, asked).marked
    assert site.node.view().owed == ()


def test_nobody_lets_go_of_a_claim_in_mid_prepare(site: Bench) -> None:
    """Marks are taken off with nobody about to use them; who comes meanwhile waits, bounded."""
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    site.serving.unprepare(asked)
    wait_for(lambda: _drained(site))
    marking = site.parts.marking
    with marking.using(asked.uid):
        marking.step(site.node.view())
        assert reading(site, asked).held
    entered = threading.Event()

    def come() -> None:
        with marking.using(asked.uid):
            entered.set()

    def meanwhile() -> None:
        thread.start()
        assert not entered.wait(0.05)

    thread = threading.Thread(target=come)
    site.cluster.faults.before_next("apply", meanwhile)
    marking.step(site.node.view())
    assert not reading(site, asked).marked
    assert entered.wait(HOLD_BUDGET_S)
    thread.join()


def test_a_debt_paid_late_takes_nothing_of_another_use(site: Bench) -> None:
    """B5: given up by hand and allocated on another node, which holds it for its own tenant."""
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    site.serving.unprepare(asked)
    wait_for(lambda: _drained(site))
    site.deallocate(asked)
    site.allocate(asked, result("gpu-0", pool="n2"))
    theirs = MARKS.hold(node="n2", uid=asked.uid)
    site.reserve(asked, site.pod("next", node="n2"), theirs)
    marking = replace(site.parts.marking, clock=site.clock)
    for _ in range(3):
        site.clock.advance(PAUSE_MAX_S)
        marking.step(site.node.view())
        assert theirs in site.claim_of(asked)["status"]["reservedFor"]
        assert reading(site, asked).finalizer
    assert len(site.node.view().owed) == 1, "nobody has taken the marks off yet"
    site.deallocate(asked)  # that use was over before its node had heard of it
    site.clock.advance(PAUSE_MAX_S)
    marking.step(site.node.view())
    assert not reading(site, asked).marked
    assert site.node.view().owed == ()


def test_a_claim_given_away_between_two_writes_is_let_go_in_the_end(site: Bench) -> None:
    """B5: the hold was taken off and the next pod, on another node, came before the finalizer was;
    where that pod vanishes unserved nobody else would take it off."""
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    alone(site, asked)
    site.serving.unprepare(asked)
    wait_for(lambda: _drained(site))

    def next_use() -> None:
        site.allocate(asked, result("gpu-0", pool="n2"))
        site.reserve(asked, site.pod("next", node="n2"))

    def before_finalizer() -> None:
        site.cluster.faults.before_next("patch", next_use)

    site.cluster.faults.before_next("patch", before_finalizer)
    marking = replace(site.parts.marking, clock=site.clock)
    marking.step(site.node.view())
    assert reading(site, asked).finalizer
    assert len(site.node.view().owed) == 1
    before = len(site.cluster.calls)
    marking.step(site.node.view())
    assert len(site.cluster.calls) == before, "it is looked at less and less often"
    site.deallocate(asked)
    site.clock.advance(PAUSE_MAX_S)
    marking.step(site.node.view())
    assert not reading(site, asked).marked
    assert site.node.view().owed == ()


def test_where_the_scheduler_waits_the_hold_passes_to_the_next_pod(strict: Bench) -> None:
    """DESIGN 5: the debt is paid, so that the coordinator goes on; the hold stays for its pod."""
    asked = strict.create("a")
    gates = {"bindingConditions": [MARKS.sanitized], "bindingFailureConditions": [MARKS.failed]}
    strict.allocate(asked, {**result("gpu-0"), **gates})
    pod, hold = strict.pod(), MARKS.hold(node=NODE, uid=asked.uid)
    strict.reserve(asked, pod, hold)
    strict.serving.prepare(asked)
    strict.serving.unprepare(asked)
    strict.reserve(asked, strict.pod("next", node=""), hold)
    settle(strict)
    assert reading(strict, asked).held
    assert strict.node.view().owed == ()
    assert written(strict) == []


# --- taking off -------------------------------------------------------------------


def test_one_bad_claim_does_not_block_the_others(site: Bench) -> None:
    """DESIGN 5: what one claim's server refuses is tried again less and less often."""
    asked = [site.bound(n, d) for n, d in (("a", "gpu-0"), ("b", "gpu-1-1g-0"))]
    for one in asked:
        site.serving.prepare(one)
        site.serving.unprepare(one)
    wait_for(lambda: _drained(site))
    site.cluster.faults.fail_next("apply", errors.ApiFailed("etcd is sick"))
    marking = replace(site.parts.marking, clock=site.clock)
    marking.step(site.node.view())
    assert sorted(reading(site, one).marked for one in asked) == [False, True]
    before = len(site.cluster.calls)
    marking.step(site.node.view())
    assert len(site.cluster.calls) == before
    site.clock.advance(1.1)
    marking.step(site.node.view())
    assert not any(reading(site, one).marked for one in asked)
    assert site.node.view().owed == ()


def test_without_the_api_marks_wait(site: Bench) -> None:
    """DESIGN 5: API away: the next step; the node's word is not lost by a new plugin."""
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    site.serving.unprepare(asked)
    wait_for(lambda: _drained(site))
    marking = replace(
        site.parts.marking, holds=replace(site.parts.marking.holds, pause=site.clock.advance)
    )
    site.cluster.faults.offline = True
    marking.step(site.node.view())
    site.cluster.faults.offline = False
    assert len(site.node.view().owed) == 1
    site.plug()
    site.keeper().step(time.time())
    assert not reading(site, asked).marked


def test_until_verified_the_finalizer_stays_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """D3 read literally: a device out of service keeps the finalizer, with the way out named."""
    with bench(finalizer=Finalizing.UNTIL_VERIFIED) as site:
        asked = site.bound("a", "gpu-0")
        site.serving.prepare(asked)
        site.fault("dirty-word", times=1)
        with site.kept():
            site.serving.unprepare(asked)
        assert site.device().state == State.QUARANTINED
        settle(site)
        found = reading(site, asked)
        assert (found.held, found.finalizer) == (False, True)
        before = len(site.cluster.calls)
        site.parts.marking.step(site.node.view())
        assert len(site.cluster.calls) == before
        assert caplog.text.count("keeps our finalizer until gpu-0 is clean") == 1
        site.node.quarantine_clear("gpu-0", operator="test")
        site.scrub("gpu-0")
        wait_for(lambda: site.device().state == State.CLEAN)
        settle(site)
        assert not reading(site, asked).marked
        assert site.node.view().owed == ()


def test_with_hold_a_quarantined_device_lets_go_of_the_claim(site: Bench) -> None:
    """DESIGN 5: once the quarantine is read back a quarantine holder takes over."""
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    site.fault("dirty-word")
    with site.kept():
        site.serving.unprepare(asked)
    settle(site)
    assert not reading(site, asked).marked
    assert site.taints("gpu-0") == ["not-clean", "quarantined"]


def test_a_hold_stays_while_its_quarantine_cannot_be_published(site: Bench) -> None:
    """Promise 6: a claim that was buried keeps its hold while its device has gone bad since and the
    API is in trouble over the slices: nobody else would be kept off the device."""
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    keeper = site.keeper()
    keeper.step(time.time())
    site.serving.unprepare(asked)
    wait_for(lambda: _drained(site))
    site.node.quarantine_add(site.device().uuid, detail="smells", operator="ops")
    away = errors.ApiUnavailable("no answer")
    for verb in ("replace", "create", "delete"):
        site.cluster.faults.fail_next(verb, away, times=1000)
    for _ in range(5):
        keeper.step(time.time())
        assert reading(site, asked).marked
    assert "quarantined" not in site.taints("gpu-0")
    site.cluster.faults.clear()
    site.plug()  # a new process has no pause before its first write
    keeper = site.keeper()
    for _ in range(3):
        keeper.step(time.time())
    assert "quarantined" in site.taints("gpu-0")
    assert not reading(site, asked).marked


def test_what_counts_as_verified() -> None:
    """D3: clean, or clean since and used anew; a device that is not there never is."""

    def seen(**changes: object) -> NodeView:
        base: Object = {
            "uuid": "u", "name": "gpu-0", "accelerator": "u", "units": ("m",), "memory_bytes": 1,
            "state": "CLEAN",
        }  # fmt: skip
        one = DeviceView.model_validate({**base, **changes})
        return NodeView(
            node=NODE, incarnation="i", boot_id="b", at=0, simulated=True, backend="s",
            devices=(one,),
        )  # fmt: skip

    owed = Owed(uid="c", namespace=SPACE, name="a", devices=("u",))
    assert unverified(owed, seen()) == ()
    assert unverified(owed, seen(state="IN_USE", claim="d")) == ()
    for state in ("QUARANTINED", "RETESTING", "DIRTY", "WIPING", "HELD"):
        assert unverified(owed, seen(state=state)) == ("gpu-0",)
    assert unverified(owed, seen(uuid="v")) == ("u",)


def test_rules_come_from_the_profile() -> None:
    """DESIGN 5: with-hold is the default; the profile decides whether anything is marked."""
    assert MarkingRules(Profile.FAST).verified_only is False
    assert DRIVER in MARKS.finalizer
    assert Marking.__doc__
