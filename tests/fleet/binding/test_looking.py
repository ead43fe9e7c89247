"""What is gathered about claims before anything is decided."""

from __future__ import annotations

from dataclasses import replace

from fleet import errors
from fleet.binding.looking import Case, touched
from fleet.binding.tracking import Track
from fleet.kube.base import PODS, Name, Object
from fleet.messages import ClaimBrief, Owed
from fleet.model import Holder, HolderKind, Lease, Token, UnitId
from tests.fleet.binding import scenes
from tests.fleet.binding.benches import MARKS, SPACE, Bench, terms


def case_of(bench: Bench, name: str = "c") -> Case:
    """The claim as a step sees it, its node asked."""
    bench.claims.refresh()
    (case,) = bench.binder.look.cases([bench.reading(name).uid])
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
    assert bench.binder.look.cases([uid, "unknown"]) == []
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
