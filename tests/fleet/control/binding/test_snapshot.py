"""What is gathered about claims before anything is decided."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from fleet.control.binding import pledge
from fleet.control.binding.snapshot import FORGOTTEN_S, SKEW_S, SKEW_TOLD_S, Case, touched
from fleet.control.binding.tracking import Track
from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.messages import ClaimBrief, Owed
from fleet.core.model import Holder, HolderKind, Lease, Token, UnitId
from fleet.kube.base import CLAIMS, PODS, Name, Object, PatchKind
from tests.fleet.control.binding import scenes
from tests.fleet.control.binding.benches import MARKS, SPACE, Bench, terms


def case_of(bench: Bench, name: str = "c") -> Case:
    """The claim as a step sees it, its node asked."""
    bench.claims.refresh()
    (case,) = bench.binder.look.cases([bench.reading(name).uid], bench.clock.now())
    bench.binder.look.ask([case])
    return case


def pods_of(bench: Bench) -> list[tuple[str, bool, bool]]:
    """Name, bound and leaving of the claim's live pods."""
    case = case_of(bench)
    bench.binder.look.look_up(case)
    assert case.pods is not None
    return [(pod.name, pod.bound, pod.leaving) for pod in case.pods]


def test_only_live_pods_count() -> None:
    """Promise 1: ended pods, pods that are gone, and another pod of the same name use nothing."""
    bench = Bench()
    bench.given("c", "a")
    entries = {name: bench.pod(name) for name in ("one", "two", "three", "four", "gone")}
    entries["four"]["uid"] = "another"
    bench.bind("two")
    bench.change_pod("three", {"status": {"phase": "Succeeded"}}, part="status")
    bench.change_pod("one", {"metadata": {"finalizers": ["x.example.com/wait"]}})
    bench.admin.delete(PODS, Name("one", SPACE))
    bench.admin.delete(PODS, Name("gone", SPACE))
    bench.reserve("c", *entries.values())
    found = {name: rest for name, *rest in pods_of(bench)}
    assert found == {"one": [False, True], "two": [True, False]}


def test_pods_that_cannot_be_read_are_waited_for() -> None:
    """A server that does not answer is no word that a pod is gone."""
    bench = Bench()
    bench.given("c", "a")
    case = case_of(bench)
    bench.cluster.faults.fail_next("get", errors.ApiUnavailable("away"))
    bench.binder.look.look_up(case)
    assert case.pods is None
    assert "cannot be read" in case.track.why


def test_a_claim_that_is_none_of_ours_is_no_case() -> None:
    """Nothing of ours on it, no lease for it: nothing is remembered of it."""
    bench = Bench()
    uid = bench.create()
    bench.claims.refresh()
    assert bench.binder.look.cases([uid, "unknown"], bench.clock.now()) == []
    assert bench.binder.look.tracks == {}


def test_leases_are_told_apart_by_their_units() -> None:
    """B2: the lease of exactly the claim's units is its own, anything else is of another time."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.run(1.0, work=False)
    own = bench.lease(uid)
    assert own is not None
    both = frozenset(UnitId(u) for d in "ab" for u in bench.device(d).units)
    wide = replace(own, units=both, token=Token(own.token.epoch, own.token.counter + 1))
    case = case_of(bench)
    case.leases = (own, wide)
    facts = bench.binder.look.facts(case, bench.clock.now())
    assert (facts.lease, facts.strays, facts.stuck) == (own, (wide,), ())


def test_a_lease_on_a_silent_node_is_stuck() -> None:
    """B4: what cannot be given back now is told apart from what can."""
    bench = Bench()
    bench.given("c", "a")
    bench.survey()
    case = case_of(bench)
    away = UnitId(bench.device("a", "n2").units[0])
    lease = Lease(frozenset({away}), Holder(HolderKind.CLAIM, case.reading.uid), Token(1, 1))
    case.leases = (lease,)
    assert bench.binder.look.facts(case, bench.clock.now()).strays == (lease,)
    bench.nodes.silent.add("n2")
    bench.survey()
    facts = bench.binder.look.facts(case, bench.clock.now())
    assert (facts.strays, facts.stuck) == ((), (lease,))


def test_a_node_speaks_for_what_it_had_unless_another_has_it() -> None:
    """B10: the token of a card that was taken out is closed by its old node, or by its new one."""
    bench = Bench()
    bench.given("c", "a")
    bench.survey()
    look, moved = bench.binder.look, UnitId(bench.device("a", "n2").units[0])
    view = look.views["n1"]
    assert view is not None
    look.saw({"n1": view.model_copy(update={"gone": ("GPU-old/all", moved)})})
    assert (look.where[UnitId("GPU-old/all")], look.where[moved]) == ("n1", "n2")


def test_a_claim_that_has_failed_takes_nothing() -> None:
    """Of two claims of one device only one that is still in the running keeps the other out."""
    bench = Bench()
    other = bench.given("d", "a")
    bench.given("c", "a")
    bench.change("a", claim=other)
    assert bench.binder.look.facts(case_of(bench), bench.clock.now()).taken
    failed = {"type": MARKS.failed, "status": "True", "reason": "X", "message": "",
              "lastTransitionTime": "2026-11-29T13:13:23Z"}  # fmt: skip
    entry = {"driver": MARKS.driver, "pool": "n1", "device": "a", "conditions": [failed]}
    bench.write("d", devices=[entry])
    assert not bench.binder.look.facts(case_of(bench), bench.clock.now()).taken


def test_configuration_that_must_not_be_served_is_named() -> None:
    """C2: a wish we do not know fails the claim before anything is wiped for it."""
    bench = Bench()
    bench.given("c", "a")
    assert bench.binder.look.facts(case_of(bench), bench.clock.now()).misconfigured == ""
    bench.deallocate("c")
    opaque = {"driver": MARKS.driver, "parameters": {"kind": "Odd"}}
    config: Object = {"source": "FromClaim", "requests": [], "opaque": opaque}
    bench.write(
        "c",
        allocation={"devices": {"results": [scenes.result("a")], "config": [config]}},
        reservedFor=[bench.pod("p")],
    )
    assert bench.binder.look.facts(case_of(bench), bench.clock.now()).misconfigured


def test_the_finalizer_is_left_to_the_node_that_owes_it() -> None:
    """D3: with `until-verified` a claim that is deallocated keeps what its node has yet to take."""
    bench = Bench(rules=replace(terms().rules, until_verified=True))
    uid = bench.create()
    bench.binder.performer.writer.finalize(bench.reading())
    owed = Owed(uid=uid, namespace=SPACE, name="c")
    bench.nodes.by_name["n1"].owed[uid] = owed
    bench.survey()
    bench.run(40.0, wait_s=2.0)
    assert bench.reading().finalizer
    bench.nodes.by_name["n1"].owed.clear()
    bench.survey()
    bench.run(8.0, wait_s=1.0)
    assert not bench.reading().finalizer


def test_what_a_view_touches() -> None:
    """Teardowns and claims to be let go are worth a look; claims in use are not."""
    claims = (ClaimBrief(uid="t", state="UNPREPARING"), ClaimBrief(uid="p", state="PREPARED"))
    seen = scenes.view(claims=claims, owed=(Owed(uid="o", namespace=SPACE, name="o"),))
    assert touched([seen, None, errors.NotOwner("away")]) == ["t", "o"]


def test_a_case_that_was_put_off_says_why() -> None:
    """What is put off within a step shows in `fleet claim show`."""
    bench = Bench()
    bench.given("c", "a")
    case = Case(bench.reading(), Track())
    case.put_off("later", 7.0)
    assert (case.again_s, case.track.why, case.decision.why) == (7.0, "later", "later")
    assert case.node == "n1"


# --- what is not there any more -------------------------------------------------------------------


def test_a_lost_device_makes_the_claims_lease_no_stray() -> None:
    """B6: units nobody lists any more cannot be compared: the newest lease is the claim's own."""
    bench = Bench()
    uid = bench.given("c", "a", "b")
    bench.run(1.0, work=False)
    own = bench.lease(uid)
    assert own is not None
    older = replace(own, units=frozenset({UnitId("x/all")}), token=Token(own.token.epoch, 0))
    bench.lose("a")
    case = case_of(bench)
    case.leases = (older, own)
    facts = bench.binder.look.facts(case, bench.clock.now())
    assert (facts.lease, facts.strays, facts.stuck) == (own, (), (older,))


def test_a_card_that_was_changed_is_asked_for_where_its_claim_is() -> None:
    """B24: another card has its name; once nobody waits for it, its node closes the token."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.run(1.0, work=False)
    own = bench.lease(uid)
    assert own is not None
    gone = replace(own, units=frozenset({UnitId("gone/0")}))
    case = case_of(bench)
    case.leases = (gone,)
    waiting = bench.binder.look.facts(case, bench.clock.now())
    assert (waiting.lease, waiting.strays, waiting.stuck) == (None, (), (gone,))
    case.reading = replace(case.reading, pods=())
    unused = bench.binder.look.facts(case, bench.clock.now())
    assert (unused.lease, unused.strays, unused.stuck) == (None, (gone,), ())


def test_a_node_that_is_gone_is_not_believed() -> None:
    """B4: what was seen of a node that a survey does not name any more is nothing; its leases
    are in nobody's way, and it is forgotten in the end.
    """
    bench = Bench()
    look = bench.binder.look
    bench.survey()
    here, there = look.views["n1"], look.views["n2"]
    assert here is not None
    assert there is not None
    del bench.nodes.by_name["n2"]
    bench.survey()
    assert (look.views["n1"] is not None, look.views["n2"]) == (True, None)
    bench.run(FORGOTTEN_S - 20.0, wait_s=10.0)
    bench.survey()
    assert set(look.views) == {"n1", "n2"}
    bench.run(40.0, wait_s=10.0)
    bench.survey()
    assert set(look.views) == {"n1"}
    assert set(look.where.values()) == {"n1"}


def test_a_node_that_comes_back_is_not_forgotten() -> None:
    """Absence counts from the last time it was there."""
    bench = Bench()
    node = bench.nodes.by_name["n2"]
    bench.survey()
    for _ in range(3):
        del bench.nodes.by_name["n2"]
        bench.survey()
        bench.run(FORGOTTEN_S * 0.6, wait_s=30.0)
        bench.nodes.by_name["n2"] = node
        bench.survey()
        assert bench.binder.look.views["n2"] is not None


# --- time -----------------------------------------------------------------------------------------


def timed(bench: Bench) -> tuple[float, float]:
    """How long the claim is said to have waited, and what it had left at first."""
    case = case_of(bench)
    facts = bench.binder.look.facts(case, bench.clock.now())
    return facts.pending_s, facts.left_s


def test_waiting_is_measured_by_our_own_watching() -> None:
    """B6: a clock that leaps ages no claim; a claim found at the start was not followed."""
    bench = Bench()
    bench.given("c", "a")
    bench.run(20.0, wait_s=1.0, work=False)
    bench.clock.advance(600.0)
    bench.step()
    assert timed(bench) == (19.0, 600.0)


def test_a_claim_that_comes_later_is_followed() -> None:
    """What was there at the start, even if it was allocated afterwards only, is told apart."""
    bench = Bench()
    bench.create("c")
    bench.step()
    bench.allocate("c", "a")
    bench.reserve("c", bench.pod("p"))
    bench.run(2.0, work=False)
    assert timed(bench) == (1.75, inf)


def test_clocks_that_differ_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A claim allocated just now, long ago by our clock: said in the log, and until it is well."""
    bench = Bench()
    look, skew_s = bench.binder.look, 575.0
    bench.step()
    for name, device in (("c", "a"), ("d", "b")):
        bench.given(name, device)
        bench.claims.refresh()
        bench.binder.step(bench.clock.now() + skew_s)
    assert "575 s ago by our clock" in look.trouble
    assert list(bench.binder.troubles) == ["clocks"]
    assert len([one for one in caplog.records if "by our clock" in one.message]) == 1
    bench.given("e", "a", node="n2")
    bench.step()
    assert bench.binder.troubles == {}


def test_f71_one_claim_that_came_late_is_no_trouble_for_good() -> None:
    """F71: a coordinator that was held hears late of a claim: that passes without another claim."""
    bench = Bench()
    bench.step()
    bench.given("c", "a")
    bench.clock.advance(SKEW_S + 8.0)
    bench.step()
    assert list(bench.binder.troubles) == ["clocks"]
    bench.run(SKEW_TOLD_S + 1.0, wait_s=1.0)
    assert bench.binder.troubles == {}


# --- who took a lease and died --------------------------------------------------------------------


def test_a_pledged_claim_stays_a_case_until_the_pledge_is_over() -> None:
    """B5: a lease that is taken under a pledge changes no claim, and must be found all the same."""
    bench = Bench()
    uid = bench.create()
    text = pledge.Pledge("me", float(int(bench.clock.now()) + 60))
    bench.admin.patch(
        CLAIMS, Name("c", SPACE), pledge.body(bench.raw(), MARKS, text), kind=PatchKind.MERGE
    )
    bench.run(2 * pledge.LIFETIME_S - 5.0, wait_s=1.0)
    assert uid in bench.binder.look.tracks
    bench.run(40.0, wait_s=1.0)
    assert bench.binder.look.tracks == {}


def test_only_what_is_no_case_is_noticed() -> None:
    """A lease of a claim that is looked at anyway costs no look more."""
    bench = Bench()
    uid = bench.given("c", "a")
    bench.step()
    bench.binder.look.notice([uid, "other"])
    assert bench.binder.look.take_noticed() == {"other"}
    assert bench.binder.look.take_noticed() == set()


def test_a_malformed_claim_with_a_lease_is_noticed_once() -> None:
    """B19: what cannot be read is not looked at again with every survey."""
    bench = Bench()
    uid = bench.create()
    bench.claims.refresh()
    raw = bench.raw()
    raw["metadata"]["resourceVersion"] = "999999"
    raw["status"] = {"reservedFor": "nobody"}
    bench.claims.learn(raw)
    unit = UnitId(bench.device("a").units[0])
    holder = Holder(HolderKind.CLAIM, uid)
    bench.coordinator.acquire([AcquireRequest(frozenset({unit}), holder)])
    assert bench.binder.look.cases([uid], bench.clock.now()) == []
    bench.binder.look.notice([uid])
    assert bench.binder.look.take_noticed() == set()
