"""What every lease store must do, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped] # ships no types

from fleet.control.campaign.report import ExitReason
from fleet.control.coordinator import Coordinator
from fleet.core import errors
from fleet.core.clock import Clock, ManualClock
from fleet.core.leases import AcquireRequest, ClosedBy, Closure
from fleet.core.model import NO_TOKEN, Holder, HolderKind, Lease, NodeName, RunId, Token, UnitId
from fleet.stores.base import Event, LeaseStore, Release, Renewal, RunRecord, RunState
from tests.lab.stores import MemoryRunStore

START = 1_700_000_000.0
TTL_S = 60.0


def units(*names: str) -> frozenset[UnitId]:
    """Units by name."""
    return frozenset(UnitId(name) for name in names)


def claim(name: str) -> Holder:
    """A claim as holder."""
    return Holder(HolderKind.CLAIM, name)


def campaign(name: str) -> Holder:
    """A campaign run as holder."""
    return Holder(HolderKind.CAMPAIGN, name)


def quarantine(name: str) -> Holder:
    """A quarantined device as holder."""
    return Holder(HolderKind.QUARANTINE, name)


def ask(holder: Holder, *names: str, min_token: Token | None = None) -> AcquireRequest:
    """A request with the ttl its kind of holder needs."""
    expires = holder.kind in (HolderKind.CAMPAIGN, HolderKind.OPERATOR)
    return AcquireRequest(units(*names), holder, TTL_S if expires else None, min_token)


def closed(holder: Holder, token: Token) -> Release:
    """A release with the closure of the claim's node."""
    return Release(holder, token, Closure(holder, token, NodeName("node-1"), ClosedBy.TEARDOWN))


def granted(store: LeaseStore, request: AcquireRequest) -> Lease:
    """The lease of one request that must be granted."""
    (answer,) = store.acquire([request])
    assert isinstance(answer, Lease), answer
    return answer


def grants(store: LeaseStore) -> int:
    """How many tokens the store has issued, as far as its history goes back."""
    return [entry.event for entry in store.history(10_000)].count(Event.GRANTED)


def refused(answer: object, kind: type[errors.FleetError]) -> errors.FleetError:
    """The refusal that must be of `kind`."""
    assert isinstance(answer, kind), answer
    return answer


def later(newest: Token, by: int) -> Token:
    """A token of the same epoch."""
    return Token(newest.epoch, newest.counter + by)


@dataclass
class OwnClock:
    """The clocks of one machine: its wall clock is `skew_s` off, and anybody may set it."""

    skew_s: float = 0.0
    passed_s: float = 0.0
    booted_s: float = 0.0
    """What its monotonic clock said at the start: no other machine's says the same."""

    def now(self) -> float:
        """Seconds since the epoch, as this machine has it."""
        return START + self.skew_s + self.passed_s

    def monotonic(self) -> float:
        """Seconds since it was started."""
        return self.booted_s + self.passed_s


Reopen = Callable[[Clock], LeaseStore]
"""The same store as another process has it, which may be on another machine."""
CLOCKS = Path(__file__).parent.parent / "corpus" / "B49-clock-jump" / "clocks.yaml"


class ObservedLeaseContract:
    """What stores of several processes must do; subclasses give the fixture `reopen`."""

    def test_b49_a_lease_is_over_only_when_it_was_seen_unchanged_for_its_length(
        self, reopen: Reopen
    ) -> None:
        """B49: of two processes whose clocks differ, and are set while they hold, one holds at any
        time; the other takes over after a whole length without a renewal, by its own clock, and
        the first then finds its lease lost."""
        script = yaml.safe_load(CLOCKS.read_text())
        ttl_s, renew_s = script["lease_s"], script["renew_s"]
        one, two = (OwnClock(skew_s=script["skew_s"][name]) for name in ("coord-1", "coord-2"))
        one.booted_s, two.booted_s = 5_000.0, 70.0
        first, second = reopen(one), reopen(two)
        asked = [AcquireRequest(units("u"), campaign(name), ttl_s) for name in ("a", "b")]
        (lease,) = first.acquire(asked[:1])
        assert isinstance(lease, Lease)
        steps = {step["t"]: step for step in script["steps"]}
        paused_until, renewed_at, taken_at = 0, 0, 0
        for t in range(1, 260):
            one.passed_s = two.passed_s = float(t)
            step = steps.get(t, {})
            one.skew_s += step.get("wall", 0)
            if "pause_s" in step:
                paused_until = t + step["pause_s"]
            if t >= paused_until and not taken_at and t % renew_s == 0:
                (kept,) = first.renew([Renewal(campaign("a"), lease.token, ttl_s)])
                assert isinstance(kept, Lease), f"lost at {t} s"
                renewed_at = t
            (answer,) = second.acquire(asked[1:])
            if not taken_at and isinstance(answer, Lease):
                taken_at = t
            elif taken_at:
                assert isinstance(answer, Lease)
        assert renewed_at + ttl_s <= taken_at <= renewed_at + ttl_s + 1
        assert taken_at > 180
        (lost,) = first.renew([Renewal(campaign("a"), lease.token, ttl_s)])
        refused(lost, errors.LeaseLost)
        assert first.leases(campaign("a")) == []

    @pytest.mark.parametrize("skew_s", [200.0, 3600.0, -3600.0])
    def test_b49_a_process_that_begins_watches_for_a_whole_length(
        self, reopen: Reopen, skew_s: float
    ) -> None:
        """B49: whoever sees a lease for the first time has it in force for its length, however far
        its clock is from the holder's; no holder that died keeps it for longer."""
        holder, observer = OwnClock(booted_s=900.0), OwnClock(skew_s=skew_s)
        first, second = reopen(holder), reopen(observer)
        granted(first, ask(campaign("r"), "u"))
        holder.passed_s = observer.passed_s = TTL_S * 3
        refused(second.acquire([ask(claim("a"), "u")])[0], errors.LeaseHeld)
        observer.passed_s += TTL_S - 1
        assert len(second.leases()) == 1
        observer.passed_s += 1
        assert second.leases() == []
        granted(second, ask(claim("a"), "u"))

    @pytest.mark.parametrize("resumed", [True, False])
    def test_a_run_that_has_ended_holds_nothing_in_the_eyes_of_whoever_comes_next(
        self, reopen: Reopen, *, resumed: bool
    ) -> None:
        """B49, E7: a job had no store for longer than its lease lasts, and ended; by the time that
        its run is closed the coordinator has seen the lease run out, and others have not."""
        clock = OwnClock()
        store, runs = reopen(clock), MemoryRunStore(clock)
        coordinator = Coordinator(store, runs, clock=clock, signer=None)  # type: ignore[arg-type]
        run = coordinator.open(RunRecord(id="r", started_at=START)).id
        granted(store, ask(campaign(run), "u1"))
        clock.passed_s += TTL_S
        assert store.leases() == []
        assert len(reopen(OwnClock()).leases()) == len(store.held_by([campaign(run)], lapsed=True))
        if resumed:
            coordinator.resume(RunId(run))
            granted(store, ask(campaign(run), "u2"))
        coordinator.close(run, ExitReason.COMPLETE)
        assert runs.state(RunId(run)) is RunState.FINISHED
        assert reopen(OwnClock()).leases() == []


class LeaseStoreContract:
    """Subclasses give the fixtures `clock` (a `ManualClock`) and `store`, initialised."""

    rounds = 200
    """How often a race is run: fewer over a server that takes milliseconds for each request."""

    def test_a_request_is_granted_whole_under_one_token(self, store: LeaseStore) -> None:
        """B4: all units of a request get the same, new token."""
        before = store.newest()
        lease = granted(store, ask(claim("a"), "u1", "u2"))
        assert lease == Lease(units("u1", "u2"), claim("a"), later(before, 1))
        assert store.holder(UnitId("u1")) == store.holder(UnitId("u2")) == lease
        assert store.newest() == lease.token

    def test_a_request_with_one_unit_held_gets_nothing(self, store: LeaseStore) -> None:
        """Promise 2: acquire is all or nothing, and the refusal names the holder."""
        granted(store, ask(claim("a"), "u2"))
        before = store.newest()
        (answer,) = store.acquire([ask(claim("b"), "u1", "u2", "u3")])
        assert refused(answer, errors.LeaseHeld).holder == claim("a")
        assert store.holder(UnitId("u1")) is None
        assert store.newest() == before

    def test_one_refused_request_leaves_its_neighbours_alone(self, store: LeaseStore) -> None:
        """Promise 9: requests of one batch stand alone, invalid ones included."""
        granted(store, ask(claim("a"), "u2"))
        first, held, empty, no_ttl, last = store.acquire(
            [
                ask(claim("b"), "u1"),
                ask(claim("c"), "u2"),
                ask(claim("d")),
                AcquireRequest(units("u4"), campaign("r")),
                ask(claim("e"), "u3"),
            ]
        )
        refused(held, errors.LeaseHeld)
        refused(empty, errors.InputInvalid)
        refused(no_ttl, errors.InputInvalid)
        assert isinstance(first, Lease)
        assert isinstance(last, Lease)
        assert first.token < last.token

    def test_two_requests_of_a_batch_never_get_the_same_unit(self, store: LeaseStore) -> None:
        """B08: a batch is decided one request after the other."""
        first, second = store.acquire([ask(claim("a"), "u1"), ask(claim("b"), "u1")])
        assert isinstance(first, Lease)
        refused(second, errors.LeaseHeld)

    def test_the_same_holder_gets_the_same_token_again(self, store: LeaseStore) -> None:
        """B43: a repeated acquire is the same lease, not a second one."""
        lease = granted(store, ask(claim("a"), "u1", "u2"))
        assert granted(store, ask(claim("a"), "u1", "u2")) == lease
        assert store.newest() == lease.token

    def test_a_token_closed_by_the_node_is_not_given_again(self, store: LeaseStore) -> None:
        """B4: with a floor above its token the same holder gets a newer one."""
        first = granted(store, ask(claim("a"), "u1"))
        granted(store, ask(claim("b"), "u2"))
        floor = store.newest()
        second = granted(store, ask(claim("a"), "u1", min_token=floor))
        assert second.token > floor > first.token
        assert store.leases(claim("a")) == [second]

    def test_a_holder_that_asks_for_other_units_gets_a_new_token(self, store: LeaseStore) -> None:
        """B4: units acquired later are under a later token; earlier ones keep theirs."""
        first = granted(store, ask(claim("a"), "u1", "u2"))
        second = granted(store, ask(claim("a"), "u2", "u3"))
        assert second.token > first.token
        assert store.leases() == [Lease(units("u1"), claim("a"), first.token), second]

    def test_tokens_survive_release(self, store: LeaseStore) -> None:
        """B22: the counter never goes back, so a unit's tokens strictly increase."""
        seen = []
        for name in ("a", "b", "c"):
            lease = granted(store, ask(claim(name), "u1"))
            seen.append(lease.token)
            assert store.release([closed(claim(name), lease.token)]) == [True]
        assert seen == sorted(set(seen))

    def test_a_release_matches_the_token(self, store: LeaseStore) -> None:
        """DESIGN 4: a late release of an earlier lease does not touch the present one."""
        old = granted(store, ask(campaign("r"), "u1"))
        new = granted(store, ask(campaign("r"), "u1", min_token=later(old.token, 0)))
        assert new == old
        assert store.release([Release(campaign("r"), old.token)]) == [True]
        present = granted(store, ask(campaign("r"), "u1"))
        assert store.release([Release(campaign("r"), old.token)]) == [False]
        assert store.holder(UnitId("u1")) == present

    def test_a_release_of_another_holder_changes_nothing(self, store: LeaseStore) -> None:
        """DESIGN 4: knowing the token is not enough."""
        lease = granted(store, ask(campaign("r"), "u1"))
        assert store.release([Release(campaign("x"), lease.token)]) == [False]
        assert store.holder(UnitId("u1")) == lease

    def test_a_claim_is_released_only_with_its_nodes_closure(self, store: LeaseStore) -> None:
        """DESIGN 4: direct release by a coordinator is a hole, whatever it asked first."""
        lease = granted(store, ask(claim("a"), "u1"))
        other = closed(claim("a"), lease.token)
        assert other.closure is not None
        foreign = Closure(claim("b"), lease.token, NodeName("n"), ClosedBy.ABANDON)
        older = Closure(claim("a"), Token(lease.token.epoch, 0), NodeName("n"), ClosedBy.ABANDON)
        answers = store.release(
            [
                Release(claim("a"), lease.token),
                Release(claim("a"), lease.token, foreign),
                Release(claim("a"), lease.token, older),
            ]
        )
        for answer in answers:
            refused(answer, errors.InputInvalid)
        assert store.holder(UnitId("u1")) == lease
        assert store.release([other, other]) == [True, False]

    def test_the_leases_of_some_holders_are_told_apart(self, store: LeaseStore) -> None:
        """Of many leases those of the holders named, by token, and no others."""
        mine = granted(store, ask(claim("c"), "u1", "u2"))
        granted(store, ask(claim("d"), "u3"))
        ours = granted(store, ask(claim("e"), "u4"))
        named = [claim("e"), claim("c"), claim("nobody")]
        assert store.held_by(named) == [mine, ours]
        assert store.held_by([]) == []

    def test_an_expired_lease_is_anybodys(self, store: LeaseStore, clock: ManualClock) -> None:
        """DESIGN 4: a campaign's lease ends by itself; until then it holds to the second."""
        old = granted(store, ask(campaign("r"), "u1", "u2"))
        clock.advance(TTL_S - 1)
        refused(store.acquire([ask(claim("a"), "u1")])[0], errors.LeaseHeld)
        clock.advance(1)
        assert store.leases() == []
        assert store.holder(UnitId("u2")) is None
        new = granted(store, ask(claim("a"), "u1"))
        assert new.token > old.token
        (lost,) = store.renew([Renewal(campaign("r"), old.token, TTL_S)])
        refused(lost, errors.LeaseLost)

    def test_a_lapsed_lease_is_listed_where_it_is_asked_for_and_given_back(
        self, store: LeaseStore, clock: ManualClock
    ) -> None:
        """B49, E7: nobody's any more, and still in the store until it is released."""
        old = granted(store, ask(campaign("r"), "u1"))
        clock.advance(TTL_S)
        mine = granted(store, ask(campaign("r"), "u2"))
        granted(store, ask(campaign("s"), "u3"))
        assert store.held_by([campaign("r")]) == [mine]
        assert [one.token for one in store.held_by([campaign("r")], lapsed=True)] == [
            old.token,
            mine.token,
        ]
        assert store.release([Release(campaign("r"), old.token)]) == [True]
        assert store.held_by([campaign("r")], lapsed=True) == [mine]

    def test_a_renewed_lease_holds_longer(self, store: LeaseStore, clock: ManualClock) -> None:
        """DESIGN 4: a renewal counts from now, under the same token."""
        lease = granted(store, ask(campaign("r"), "u1", "u2"))
        clock.advance(TTL_S / 2)
        (renewed,) = store.renew([Renewal(campaign("r"), lease.token, TTL_S)])
        end = START + TTL_S * 1.5
        assert renewed == Lease(lease.units, lease.holder, lease.token, end)
        clock.advance(TTL_S - 1)
        assert store.leases() == [renewed]

    def test_only_a_lease_in_force_is_renewed(self, store: LeaseStore) -> None:
        """DESIGN 4: lost and superseded leases are told apart from held ones, one by one."""
        lease = granted(store, ask(campaign("r"), "u1"))
        forever = granted(store, ask(claim("a"), "u2"))
        lost, endless, zero, held = store.renew(
            [
                Renewal(campaign("r"), later(lease.token, 7), TTL_S),
                Renewal(claim("a"), forever.token, TTL_S),
                Renewal(campaign("r"), lease.token, 0.0),
                Renewal(campaign("r"), lease.token, TTL_S),
            ]
        )
        refused(lost, errors.LeaseLost)
        refused(endless, errors.InputInvalid)
        refused(zero, errors.InputInvalid)
        assert held == lease

    def test_init_happens_once(self, store: LeaseStore) -> None:
        """DESIGN 4: the epoch is minted once; a second init changes nothing."""
        lease = granted(store, ask(claim("a"), "u1"))
        assert store.init() == lease.token
        assert store.leases() == [lease]

    def test_a_store_behind_grants_nothing(self, store: LeaseStore) -> None:
        """DESIGN 4: one higher floor suspends the whole store; renewals and releases go on."""
        lease = granted(store, ask(campaign("r"), "u1"))
        floor = later(store.newest(), 5)
        answers = store.acquire([ask(claim("a"), "u8"), ask(claim("b"), "u9", min_token=floor)])
        for answer in answers:
            assert refused(answer, errors.StoreBehind).floor == floor
        assert store.suspended() == floor
        refused(store.acquire([ask(claim("a"), "u8")])[0], errors.StoreBehind)
        assert isinstance(store.renew([Renewal(campaign("r"), lease.token, TTL_S)])[0], Lease)
        assert store.release([Release(campaign("r"), lease.token)]) == [True]

    def test_a_floor_learnt_suspends_too(self, store: LeaseStore) -> None:
        """DESIGN 4: a store is judged by any node's floor, before anybody acquires."""
        store.learn(store.newest())
        floor = later(store.newest(), 1)
        with pytest.raises(errors.StoreBehind):
            store.learn(floor)
        with pytest.raises(errors.StoreBehind):
            store.learn(store.newest())
        assert store.suspended() == floor

    def test_a_newer_epoch_means_behind(self, store: LeaseStore) -> None:
        """DESIGN 4: a copy from before an adoption is behind as well."""
        floor = Token(store.newest().epoch + 1, 1)
        with pytest.raises(errors.StoreBehind):
            store.learn(floor)
        refused(store.acquire([ask(claim("a"), "u1")])[0], errors.StoreBehind)

    def test_an_older_epoch_is_foreign(self, store: LeaseStore) -> None:
        """DESIGN 4: a node of another store is refused, its neighbours are not."""
        floor = Token(store.newest().epoch - 1, 3)
        with pytest.raises(errors.EpochForeign):
            store.learn(floor)
        foreign, own = store.acquire(
            [ask(claim("a"), "u1", min_token=floor), ask(claim("b"), "u2")]
        )
        refused(foreign, errors.EpochForeign)
        assert isinstance(own, Lease)
        assert store.suspended() is None

    def test_adopt_grants_again_above_everything_seen(self, store: LeaseStore) -> None:
        """DESIGN 4: an adopted store issues tokens of a new epoch above every floor."""
        lease = granted(store, ask(claim("a"), "u1"))
        floor = Token(store.newest().epoch + 10**15, 9)
        with pytest.raises(errors.StoreBehind):
            store.learn(floor)
        newest = store.adopt(NO_TOKEN, "somebody")
        assert newest.epoch > floor.epoch
        assert store.suspended() is None
        assert store.leases() == [lease]
        assert granted(store, ask(claim("b"), "u2")).token > newest
        assert store.adopt(Token(newest.epoch + 5, 1), "somebody").epoch > newest.epoch + 5

    def test_after_adopt_old_floors_and_old_leases_do_not_trap(self, store: LeaseStore) -> None:
        """Promise 7: floors of an epoch put behind are fine; tokens are the new epoch's."""
        old = granted(store, ask(claim("a"), "u1"))
        newest = store.adopt(NO_TOKEN, "somebody")
        store.learn(old.token)
        new = granted(store, ask(claim("a"), "u1", min_token=old.token))
        assert new.token.epoch == newest.epoch
        assert granted(store, ask(claim("a"), "u1")) == new
        assert store.release([closed(claim("a"), new.token)]) == [True]

    def test_the_history_tells_what_happened(self, store: LeaseStore, clock: ManualClock) -> None:
        """E5: grants, expiries, releases, suspension and adoption are kept, newest first."""
        granted(store, ask(campaign("r"), "u1"))
        clock.advance(TTL_S)
        lease = granted(store, ask(claim("a"), "u1", "u2"))
        store.release([closed(claim("a"), lease.token)])
        with pytest.raises(errors.StoreBehind):
            store.learn(later(lease.token, 1))
        store.adopt(NO_TOKEN, "somebody")
        entries = list(reversed(store.history(100)))
        assert [entry.event for entry in entries] == [
            Event.INITIALISED,
            Event.GRANTED,
            Event.EXPIRED,
            Event.GRANTED,
            Event.RELEASED,
            Event.SUSPENDED,
            Event.ADOPTED,
        ]
        assert entries[2].holder == "campaign:r"
        assert entries[4].units == (UnitId("u1"), UnitId("u2"))
        assert "teardown on node-1" in entries[4].detail
        assert "somebody" in entries[6].detail
        assert store.history(1) == [entries[-1]]

    def test_both_quarantines_of_one_moment_are_kept(self, store: LeaseStore) -> None:
        """B31: two takings of one device at once are one lease; the neighbour keeps its own."""
        for number in range(self.rounds):
            one, other = f"g{number}/0", f"h{number}/0"
            with ThreadPoolExecutor(3) as pool:
                calls = [
                    pool.submit(granted, store, ask(quarantine(unit), unit))
                    for unit in (one, one, other)
                ]
                first, again, neighbour = (call.result() for call in calls)
            assert first == again
            assert store.release([Release(quarantine(other), neighbour.token)]) == [True]
            assert store.holder(UnitId(one)) == first

    def test_a_quarantine_gives_way_to_a_new_test_only(self, store: LeaseStore) -> None:
        """Promise 6: a campaign may take what is quarantined, and then has it alone; a claim, or
        another quarantine, never does."""
        first = granted(store, ask(quarantine("g"), "g/0", "g/1"))
        for other in (claim("a"), quarantine("g/0")):
            refused(store.acquire([ask(other, "g/0")])[0], errors.LeaseHeld)
        taken = granted(store, ask(campaign("r"), "g/0"))
        assert taken.token > first.token
        holders = [store.holder(UnitId(unit)) for unit in ("g/0", "g/1")]
        assert [lease.holder for lease in holders if lease] == [campaign("r"), quarantine("g")]
        refused(store.acquire([ask(quarantine("g"), "g/0")])[0], errors.LeaseHeld)
        assert store.release([Release(campaign("r"), taken.token)]) == [True]
        assert store.release([Release(quarantine("g"), first.token)]) == [True]
        assert store.leases() == []

    def test_of_many_who_ask_at_once_one_gets_it(self, store: LeaseStore) -> None:
        """B08: concurrent requests for one unit have exactly one winner."""
        for number in range(min(self.rounds, 10)):
            unit = f"u{number}"
            with ThreadPoolExecutor(5) as pool:
                answers = _flat(
                    pool.map(lambda n, u=unit: store.acquire([ask(claim(f"c{n}"), u)]), range(5))
                )
            assert sum(isinstance(answer, Lease) for answer in answers) == 1

    def test_a_campaign_stays_within_the_budget(self, store: LeaseStore) -> None:
        """B50: campaign and quarantine leases share one budget; claims are not counted."""
        granted(store, ask(quarantine("g1"), "g1/0", "g1/1"))
        granted(store, ask(claim("a"), "g9/0"))
        requests = [ask(campaign("r"), f"g{number}/0") for number in (2, 3, 4)]
        first, second, third = store.acquire(requests, out_of_service_max=2)
        assert isinstance(first, Lease)
        for answer in (second, third):
            assert refused(answer, errors.FleetRefused).out_of_service == 2
        again, fault = store.acquire(
            [requests[0], ask(quarantine("g5"), "g5/0")], out_of_service_max=2
        )
        assert again == first
        assert isinstance(fault, Lease), "a fault is never held up by the budget"

    def test_the_budget_is_given_back(self, store: LeaseStore, clock: ManualClock) -> None:
        """B50: what was released or has expired is in service again."""
        lease = granted(store, ask(campaign("r"), "g1/0"))
        request = ask(campaign("r"), "g2/0")
        refused(store.acquire([request], out_of_service_max=1)[0], errors.FleetRefused)
        store.release([Release(campaign("r"), lease.token)])
        assert isinstance(store.acquire([request], out_of_service_max=1)[0], Lease)
        clock.advance(TTL_S)
        other = ask(campaign("q"), "g3/0")
        assert isinstance(store.acquire([other], out_of_service_max=1)[0], Lease)


def _flat(lists: Iterable[list[Lease | errors.FleetError]]) -> list[Lease | errors.FleetError]:
    return [answer for answers in lists for answer in answers]
