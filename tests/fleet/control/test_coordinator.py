"""The coordinator decides through its stores and remembers nothing that matters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleet.control.campaign.ports import CampaignCoordinator
from fleet.control.coordinator import Coordinator
from fleet.control.coordinator_api import CoordinatorView
from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.leases import AcquireRequest, ClosedBy, Closure
from fleet.core.messages import Outcome
from fleet.core.model import NO_TOKEN, Digest, Holder, Lease, NodeName, RunId, Token, UnitId
from fleet.evidence.ledger import LedgerHead
from fleet.stores.base import Release, Renewal, RunState
from fleet.stores.sqlite import Stores, open_stores
from tests.contracts.lease_store_contract import (
    START,
    TTL_S,
    ask,
    campaign,
    claim,
    later,
    quarantine,
    refused,
)
from tests.contracts.run_store_contract import RUN, record, result
from tests.lab.stores import MemoryLeaseStore, MemoryRunStore

HOLDER = campaign(RUN)


class RecordingSigner:
    """Keeps what it was asked to countersign."""

    def __init__(self) -> None:
        self.signed: list[Mapping[NodeName, LedgerHead]] = []

    def sign(self, heads: Mapping[NodeName, LedgerHead]) -> None:
        self.signed.append(heads)


class Rig:
    """Coordinators over one store file; `start` is a start of the process."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock(START)
        self.path = path
        self.signer = RecordingSigner()
        self.opened: list[Stores] = []

    def start(self) -> Coordinator:
        stores = open_stores(self.path, clock=self.clock)
        stores.leases.init()
        self.opened.append(stores)
        return Coordinator(stores.leases, stores.runs, clock=self.clock, signer=self.signer)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "store.db")


@pytest.fixture
def coordinator(rig: Rig) -> Coordinator:
    return rig.start()


def won(coordinator: Coordinator, holder: Holder, *names: str) -> Lease:
    (answer,) = coordinator.acquire([ask(holder, *names)])
    assert isinstance(answer, Lease), answer
    return answer


def test_it_is_what_a_campaign_asks_for(coordinator: Coordinator) -> None:
    """DESIGN 8: the service fits the campaign's port without an adapter."""
    port: CampaignCoordinator = coordinator
    assert port.acquire([]) == []


def test_of_five_claims_at_once_one_wins(rig: Rig) -> None:
    """B08: five concurrent binds through two coordinators of one store have one winner."""
    both = [rig.start(), rig.start()]
    for number in range(10):
        unit = f"gpu-{number}"
        with ThreadPoolExecutor(5) as pool:
            calls = [
                pool.submit(both[n % 2].acquire, [ask(claim(f"c{n}"), unit)]) for n in range(5)
            ]
            answers = [call.result()[0] for call in calls]
        assert sum(isinstance(answer, Lease) for answer in answers) == 1


def test_concurrent_rounds_on_one_unit_never_share_a_token(
    rig: Rig, coordinator: Coordinator
) -> None:
    """B08: acquire, renew and release of one unit by many threads keep tokens unique."""
    holders = [campaign(f"r{n}") for n in range(4)]
    for holder in holders:
        coordinator.open(record(holder.name))

    def rounds(holder: Holder) -> list[Token]:
        got = []
        for _ in range(25):
            (answer,) = coordinator.acquire([ask(holder, "u1")])
            if isinstance(answer, Lease):
                coordinator.renew(holder, answer.token, TTL_S)
                coordinator.release(holder, answer.token)
                got.append(answer.token)
        return got

    with ThreadPoolExecutor(4) as pool:
        tokens = [token for tokens in pool.map(rounds, holders) for token in tokens]
    assert len(tokens) == len(set(tokens)) > 0
    assert coordinator.newest() == max(tokens)


def test_a_campaign_needs_its_run_to_be_running(coordinator: Coordinator) -> None:
    """B42: nobody gets or prolongs leases for a run that is unknown, stopped or finished."""
    request, other = ask(HOLDER, "u1"), ask(claim("a"), "u2")
    refusal, lease = coordinator.acquire([request, other])
    refused(refusal, errors.RunUnknown)
    assert isinstance(lease, Lease), "the neighbour in the batch is served"
    coordinator.open(record())
    token = won(coordinator, HOLDER, "u1").token
    for reason in ("stopped", "complete"):
        coordinator.close(RUN, reason)
        refused(coordinator.acquire([request])[0], errors.LeaseLost)
        refused(coordinator.renew_all([Renewal(HOLDER, token, TTL_S)])[0], errors.LeaseLost)


def test_closing_a_run_gives_its_leases_up(coordinator: Coordinator) -> None:
    """B50: devices of an ended run are back in service at once; others keep theirs."""
    coordinator.open(record())
    won(coordinator, HOLDER, "g1/0")
    won(coordinator, HOLDER, "g2/0")
    kept = won(coordinator, quarantine("g3"), "g3/0")
    assert coordinator.out_of_service() == 3
    coordinator.close(RUN, "stopped")
    assert coordinator.leases() == [kept]
    assert coordinator.out_of_service() == 1


@pytest.mark.parametrize("end", ["close", "resume"])
def test_a_run_that_ends_leaves_no_lapsed_lease(
    rig: Rig, coordinator: Coordinator, end: str
) -> None:
    """B49, E7: its first job could not give the lease back and was longer in ending than it lasts;
    to whoever opens the store later it would look in force."""
    coordinator.open(record())
    won(coordinator, HOLDER, "u1")
    rig.clock.advance(2 * TTL_S)
    assert coordinator.leases() == []
    coordinator.resume(RUN) if end == "resume" else coordinator.close(RUN, "complete")
    assert rig.opened[0].leases.held_by([HOLDER], lapsed=True) == []


class Overtaken(MemoryLeaseStore):
    """Somebody else is faster than the next acquire."""

    def __init__(self, clock: ManualClock, first: Callable[[], None]) -> None:
        super().__init__(clock)
        self._first = first
        self.init()

    def acquire(
        self, requests: Sequence[AcquireRequest], *, out_of_service_max: int | None = None
    ) -> list[Lease | errors.FleetError]:
        self._first()
        return super().acquire(requests, out_of_service_max=out_of_service_max)


def test_a_lease_granted_while_its_run_ends_is_given_up() -> None:
    """B08, E7: an acquire that had to wait looks at its run before that is closed, and is granted
    after the leases of the run were given up."""

    def close() -> None:
        made.close(RUN, "complete")

    clock = ManualClock(START)
    store = Overtaken(clock, close)
    made = Coordinator(store, MemoryRunStore(clock), clock=clock, signer=RecordingSigner())
    made.open(record())
    (answer,) = made.acquire([ask(HOLDER, "u1")])
    refused(answer, errors.LeaseLost)
    assert store.leases() == []


def test_a_restarted_coordinator_knows_everything(rig: Rig, coordinator: Coordinator) -> None:
    """B42: runs, results and leases are there before the first answer; the incarnation is new."""
    coordinator.open(record())
    lease = won(coordinator, HOLDER, "u1")
    coordinator.append(RUN, [result("gpu-0")])
    again = rig.start()
    assert again.incarnation != coordinator.incarnation
    assert again.restored == (RUN,)
    assert again.leases() == [lease]
    assert again.run(RUN).results == {"gpu-0": result("gpu-0")}
    again.renew(HOLDER, lease.token, TTL_S)


def test_only_the_resumed_run_goes_on(rig: Rig, coordinator: Coordinator) -> None:
    """B42: resuming gives the dead job's leases up; the new job's tokens are newer."""
    coordinator.open(record())
    old = won(coordinator, HOLDER, "u1")
    again = rig.start()
    assert again.resume(RUN).state is RunState.RUNNING
    new = won(again, HOLDER, "u1")
    assert new.token > old.token
    with pytest.raises(errors.LeaseLost):
        coordinator.renew(HOLDER, old.token, TTL_S)
    coordinator.release(HOLDER, old.token)
    assert again.holder(UnitId("u1")) == new


def test_leases_of_a_dead_job_expire(rig: Rig, coordinator: Coordinator) -> None:
    """B42, B49: what nobody resumes or renews is anybody's once its ttl was watched go by."""
    coordinator.open(record())
    won(coordinator, HOLDER, "u1")
    again = rig.start()
    assert len(again.leases()) == 1
    rig.clock.advance(TTL_S)
    assert again.leases() == []
    assert won(coordinator, claim("a"), "u1").holder == claim("a")


def test_a_repeated_call_is_harmless(coordinator: Coordinator) -> None:
    """B43: each call sent twice has the effect and the answer of one."""
    assert coordinator.open(record()) == coordinator.open(record())
    lease = won(coordinator, HOLDER, "u1")
    assert won(coordinator, HOLDER, "u1") == lease
    for _ in range(2):
        coordinator.append(RUN, [result("gpu-0"), result("gpu-1", Outcome.FAILED)])
        coordinator.release(HOLDER, lease.token)
        coordinator.close(RUN, "complete")
    ended = coordinator.run(RUN)
    coordinator.close(RUN, "stopped")
    assert coordinator.run(RUN) == ended
    assert len(ended.results) == 2
    assert coordinator.unfinished() == []
    assert [run.id for run in coordinator.runs(5)] == [RUN]


def test_a_claim_ends_by_its_nodes_closure(coordinator: Coordinator) -> None:
    """DESIGN 4: the coordinator cannot release a claim by itself."""
    lease = won(coordinator, claim("a"), "u1")
    with pytest.raises(errors.InputInvalid):
        coordinator.release(claim("a"), lease.token)
    closure = Closure(claim("a"), lease.token, NodeName("n"), ClosedBy.ABANDON)
    coordinator.release(claim("a"), lease.token, closure)
    assert coordinator.holder(UnitId("u1")) is None
    assert coordinator.release_all([Release(claim("a"), lease.token)]) == [False]


def test_floors_learnt_from_a_node_bind_later_grants(coordinator: Coordinator) -> None:
    """B4: what a node has closed is not granted again, also when the caller names no floor."""
    old = won(coordinator, claim("a"), "u1")
    won(coordinator, claim("b"), "u2")
    floor = coordinator.newest()
    coordinator.learn({UnitId("u1"): floor, UnitId("u9"): NO_TOKEN})
    assert won(coordinator, claim("a"), "u1").token > floor > old.token
    coordinator.learn({})


def test_a_floor_ahead_of_the_store_stops_all_grants(rig: Rig, coordinator: Coordinator) -> None:
    """DESIGN 4: a store found behind stays suspended over a restart, and says so."""
    floor = later(coordinator.newest(), 3)
    with pytest.raises(errors.StoreBehind):
        coordinator.learn({UnitId("u1"): floor})
    again = rig.start()
    refused(again.acquire([ask(claim("a"), "u2")])[0], errors.StoreBehind)
    assert again.view().suspended == str(floor)


def test_the_view_sums_up(rig: Rig, coordinator: Coordinator) -> None:
    """E4: holders by kind, devices out of service and open runs, as JSON that comes back."""
    coordinator.open(record())
    won(coordinator, HOLDER, "g1/0", "g1/1")
    won(coordinator, claim("a"), "g2/0")
    view = coordinator.view()
    assert CoordinatorView.model_validate_json(view.model_dump_json()) == view
    assert (view.leases, view.out_of_service, view.open_runs) == (2, 1, (RUN,))
    assert {str(kind): count for kind, count in view.holders.items()} == {
        "claim": 1,
        "campaign": 1,
    }
    assert [str(entry.event) for entry in coordinator.history(2)] == ["granted", "granted"]


def test_heads_are_countersigned_by_the_signer(rig: Rig, coordinator: Coordinator) -> None:
    """E3: the coordinator hands the nodes' chain heads on as they are."""
    heads = {NodeName("n"): LedgerHead(1, Digest("sha256:00"), {UnitId("u1"): Digest("sha256:01")})}
    coordinator.sign_heads(heads)
    assert rig.signer.signed == [heads]


def test_forty_faults_and_a_scrub_stay_within_the_budget(coordinator: Coordinator) -> None:
    """B50: with 3 devices allowed, concurrent campaigns never have more out; releases go on."""
    runs = [campaign(f"r{n}") for n in range(4)]
    for holder in runs:
        coordinator.open(record(holder.name))

    def start(holder: Holder) -> list[Lease]:
        answers = coordinator.acquire(
            [ask(holder, f"{holder.name}-g{n}/0") for n in range(10)], out_of_service_max=3
        )
        return [answer for answer in answers if isinstance(answer, Lease)]

    with ThreadPoolExecutor(4) as pool:
        leases = [lease for leases in pool.map(start, runs) for lease in leases]
    assert len(leases) == 3 == coordinator.out_of_service()
    coordinator.release(leases[0].holder, leases[0].token)
    assert coordinator.out_of_service() == 2
    assert sum(map(len, map(start, runs))) == 1 + 2, "two held again, one granted"


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.resume(RunId("none")),
        lambda c: c.append("none", [result("gpu-0")]),
        lambda c: c.close("none", "complete"),
        lambda c: c.run(RunId("none")),
    ],
)
def test_an_unknown_run_is_said_so(
    coordinator: Coordinator, call: Callable[[Coordinator], object]
) -> None:
    """E2: no call invents a run."""
    with pytest.raises(errors.RunUnknown):
        call(coordinator)


def test_lease_operations_are_counted_by_result(rig: Rig, coordinator: Coordinator) -> None:
    """E4: what is granted, what another has, and what a store did not answer, since the start."""
    lease = won(coordinator, claim("a"), "u1")
    coordinator.acquire([ask(claim("b"), "u1"), ask(claim("b"), "u2")])
    coordinator.release_all([Release(claim("a"), lease.token)])
    assert coordinator.view().operations == {
        "acquire/done": 2,
        "acquire/held": 1,
        "release/refused": 1,
    }
    assert rig.start().view().operations == {}
