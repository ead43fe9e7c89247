"""The leases on Kubernetes keep the contract, and what only an API server can break."""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock, SystemClock
from fleet.core.leases import AcquireRequest
from fleet.core.model import NO_TOKEN, Lease, Token, UnitId
from fleet.kube.base import CONFIGMAPS, Cluster, Name, Object
from fleet.kube.client import connect
from fleet.stores import kubernetes_state
from fleet.stores.base import Release, Renewal
from fleet.stores.kubernetes import NAME, KubernetesLeaseStore, open_kubernetes_stores
from fleet.stores.kubernetes_maps import LIMIT_BYTES, PLAIN_BYTES, Patience, size_of
from tests.contracts.api_server import KUBECONFIG
from tests.contracts.lease_store_contract import (
    START,
    TTL_S,
    LeaseStoreContract,
    ObservedLeaseContract,
    Reopen,
    ask,
    campaign,
    claim,
    closed,
    granted,
    grants,
    refused,
    units,
)
from tests.contracts.reinstating_contract import ReinstatingContract
from tests.lab.apiserver.access import Access, Caller, Rule
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine

NAMESPACE = "default"
OBJECT = Name(NAME, NAMESPACE)
SERVERS = [pytest.param("memory")]
if KUBECONFIG:
    SERVERS.append(pytest.param("real", marks=pytest.mark.e2e))


def leases_of(cluster: Cluster, clock: ManualClock) -> KubernetesLeaseStore:
    """The store as another process would open it; its pauses move the clock."""
    patience = Patience(10.0, clock=clock, pause=clock.advance)
    return open_kubernetes_stores(cluster, NAMESPACE, clock=clock, patience=patience).leases


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture
def leases(cluster: MemoryCluster, clock: ManualClock) -> KubernetesLeaseStore:
    """A store with an epoch, on the twin."""
    found = leases_of(cluster, clock)
    found.init()
    return found


def stored(cluster: Cluster) -> Object:
    """The object as it is."""
    return cluster.get(CONFIGMAPS, OBJECT)


class TestKubernetesLeaseStore(LeaseStoreContract, ReinstatingContract, ObservedLeaseContract):
    """The lease contract over a ConfigMap."""

    @pytest.fixture
    def reopen(self, cluster: MemoryCluster, leases: KubernetesLeaseStore) -> Reopen:
        assert leases.initialised
        patience = Patience(10.0, clock=ManualClock(START), pause=lambda _: None)
        return lambda clock: (
            open_kubernetes_stores(cluster, NAMESPACE, clock=clock, patience=patience).leases
        )

    @pytest.fixture(params=SERVERS)
    def store(
        self, request: pytest.FixtureRequest, clock: ManualClock
    ) -> Iterator[KubernetesLeaseStore]:
        cluster: Cluster = MemoryCluster()
        if request.param == "real":
            cluster = connect(KUBECONFIG, qps=500.0, timeout_s=10.0)
            cluster.delete(CONFIGMAPS, OBJECT)
        patience = Patience(10.0)
        opened = open_kubernetes_stores(cluster, NAMESPACE, clock=clock, patience=patience)
        opened.leases.init()
        yield opened.leases
        cluster.delete(CONFIGMAPS, OBJECT)


# --- one object, many writers ------------------------------------------------


def test_racers_of_two_processes_get_distinct_increasing_tokens() -> None:
    """B22, promise 2: no token twice, and a unit's tokens only grow, in the order of its grants."""
    engine = Engine()
    stores = [
        open_kubernetes_stores(
            MemoryCluster(engine), NAMESPACE, clock=SystemClock(), patience=Patience(60.0)
        ).leases
        for _ in range(2)
    ]
    stores[0].init()
    issued_by: defaultdict[UnitId, list[Token]] = defaultdict(list)

    def race(number: int) -> None:
        store = stores[number % 2]
        for turn in range(25):
            holder, unit = claim(f"c{number}-{turn}"), UnitId(f"g{(number + turn) % 4}/0")
            (answer,) = store.acquire([AcquireRequest(frozenset({unit}), holder)])
            if isinstance(answer, Lease):
                issued_by[unit].append(answer.token)  # nobody else writes while we hold the unit
                assert store.release([closed(holder, answer.token)]) == [True]
            else:
                refused(answer, errors.LeaseHeld)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(race, range(8)))
    issued = [token for tokens in issued_by.values() for token in tokens]
    assert len(set(issued)) == len(issued) > 8
    assert max(issued) == stores[1].newest()
    assert all(tokens == sorted(tokens) for tokens in issued_by.values())
    assert stores[0].leases() == []


def test_who_was_overtaken_decides_anew(
    leases: KubernetesLeaseStore, cluster: MemoryCluster, clock: ManualClock
) -> None:
    """B5, B08: what was decided on an older reading is never written."""
    other = leases_of(MemoryCluster(cluster.engine), clock)
    cluster.faults.before_next("replace", lambda: granted(other, ask(claim("b"), "u1")))
    taken, free = leases.acquire([ask(claim("a"), "u1"), ask(claim("a2"), "u2")])
    assert refused(taken, errors.LeaseHeld).holder == claim("b")
    assert isinstance(free, Lease)
    assert free.token == leases.newest()
    assert grants(leases) == 2


def test_a_storm_of_conflicts_is_sat_out_within_bounds(
    leases: KubernetesLeaseStore, cluster: MemoryCluster, clock: ManualClock
) -> None:
    """B5: conflicts are retried with pauses until the time is over, then nothing is granted."""
    conflict = errors.ApiConflict("the object has been modified", reason="Conflict")
    cluster.faults.fail_next("replace", conflict, times=15)
    lease = granted(leases, ask(claim("a"), "u1"))
    cluster.faults.fail_next("replace", conflict, times=10_000)
    began, calls = clock.now(), len(cluster.calls)
    with pytest.raises(errors.StoreUnavailable):
        leases.acquire([ask(claim("b"), "u2")])
    assert 10.0 <= clock.now() - began < 11.0
    assert len(cluster.calls) - calls < 100
    cluster.faults.clear()
    assert leases.newest() == lease.token


def held_up(cluster: MemoryCluster) -> tuple[threading.Event, threading.Event]:
    """Hold the next reading up: set once it has begun, and what lets it go on."""
    entered, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert go_on.wait(20)

    cluster.faults.before_next("get", wait)
    return entered, go_on


def queued(store: KubernetesLeaseStore, count: int) -> None:
    """Wait until as many calls wait for the one under way."""
    clock = SystemClock()
    deadline = clock.monotonic() + 10.0
    while len(store._turns.tickets) < count:
        assert clock.monotonic() < deadline
        threading.Event().wait(0.001)


def test_calls_made_at_once_share_one_write(
    leases: KubernetesLeaseStore, cluster: MemoryCluster
) -> None:
    """Group commit: twenty threads that had to wait are carried out by one write."""
    entered, go_on = held_up(cluster)
    before = len(cluster.writes())
    with ThreadPoolExecutor(21) as pool:
        first = pool.submit(leases.newest)
        assert entered.wait(20)
        calls = [pool.submit(granted, leases, ask(claim(f"c{n}"), f"u{n}")) for n in range(20)]
        queued(leases, 20)
        go_on.set()
        assert len({call.result(10).token for call in calls}) == 20
        assert first.result(10).counter == 0
    assert len(cluster.writes()) - before == 1


# --- answers that are lost ---------------------------------------------------


def test_a_grant_whose_answer_was_lost_is_found(
    leases: KubernetesLeaseStore, cluster: MemoryCluster, clock: ManualClock
) -> None:
    """B43: the write is recognised by its mark, whoever has written since: no token is lost."""
    cluster.faults.lose_answer_next("replace")
    other = leases_of(MemoryCluster(cluster.engine), clock)
    cluster.faults.before_next("get", lambda: None)
    cluster.faults.before_next("get", lambda: granted(other, ask(claim("b"), "u2")))
    before = len(cluster.writes())
    lease = granted(leases, ask(claim("a"), "u1"))
    assert len(cluster.writes()) - before == 1
    assert lease.token < leases.newest()
    assert grants(leases) == 2
    assert other.holder(UnitId("u1")) == lease


def test_a_release_whose_answer_was_lost_says_what_it_did(
    leases: KubernetesLeaseStore, cluster: MemoryCluster
) -> None:
    """B43: something was held, and it was given back once."""
    lease = granted(leases, ask(claim("a"), "u1"))
    cluster.faults.lose_answer_next("replace")
    assert leases.release([closed(claim("a"), lease.token)]) == [True]
    assert leases.release([closed(claim("a"), lease.token)]) == [False]


def test_a_write_that_never_arrived_is_sent_again(
    leases: KubernetesLeaseStore, cluster: MemoryCluster
) -> None:
    """B43: no answer and no mark: decided and written anew, and granted once."""
    cluster.faults.fail_next("replace", errors.ApiUnavailable("reset"), times=3)
    assert granted(leases, ask(claim("a"), "u1")).token == leases.newest()
    assert grants(leases) == 1


def test_a_write_that_arrives_late_is_not_counted_twice(
    leases: KubernetesLeaseStore, cluster: MemoryCluster
) -> None:
    """B43: the first request lands while the second is under way: one grant, one token."""
    late: list[Object] = []
    cluster.faults.fail_next("replace", errors.ApiUnavailable("reset"))
    cluster.faults.before_next("replace", lambda: late.append(cluster.writes()[-1].body))
    slow = MemoryCluster(cluster.engine)
    cluster.faults.before_next("replace", lambda: slow.replace(CONFIGMAPS, late[0]))
    lease = granted(leases, ask(claim("a"), "u1"))
    assert lease.token == leases.newest()
    assert grants(leases) == 1


def test_a_server_that_fails_on_a_write_is_not_asked_twice(
    leases: KubernetesLeaseStore, cluster: MemoryCluster
) -> None:
    """Reference: a 500 may be about the body; it is read back once and not repeated."""
    cluster.faults.fail_next("replace", errors.ApiFailed("HTTP 500", status=500, reason=""))
    before = len(cluster.writes())
    with pytest.raises(errors.StoreUnavailable, match="500"):
        leases.acquire([ask(claim("a"), "u1")])
    assert len(cluster.writes()) - before == 1
    assert leases.leases() == []


def test_an_api_server_that_is_away_is_said_so_in_time(
    leases: KubernetesLeaseStore, cluster: MemoryCluster, clock: ManualClock
) -> None:
    """B6: every call is bounded, and everything goes on when the server is back."""
    cluster.faults.offline = True
    began = clock.now()
    for act in (leases.newest, leases.leases, lambda: leases.acquire([ask(claim("a"), "u1")])):
        with pytest.raises(errors.StoreUnavailable):
            act()
    assert clock.now() - began < 33.0
    cluster.faults.clear()
    assert granted(leases, ask(claim("a"), "u1")).token == leases.newest()
    assert grants(leases) == 1


@pytest.mark.parametrize("seed", range(40))
def test_no_token_is_issued_twice_or_lost_whatever_the_server_does(
    seed: int, clock: ManualClock
) -> None:
    """Promise 2, B43: two stores over one object, with lost answers, lost requests, conflicts and
    absence by chance: every answer is true, and every token issued belongs to one grant."""
    chance, engine = random.Random(seed), Engine()
    clusters = [MemoryCluster(engine) for _ in range(2)]
    stores = [leases_of(cluster, clock) for cluster in clusters]
    watcher = leases_of(MemoryCluster(engine), clock)
    stores[0].init()
    tokens: dict[Token, str] = {}
    for turn in range(40):
        which = chance.randrange(2)
        for cluster in clusters:
            cluster.faults.clear()
        upset(clusters[which], chance)
        unit, holder = UnitId(f"u{chance.randrange(3)}"), claim(f"c{turn}")
        before = watcher.holder(unit)
        try:
            (answer,) = stores[which].acquire([AcquireRequest(frozenset({unit}), holder)])
        except errors.StoreUnavailable:
            clusters[which].faults.clear()
            (answer,) = stores[which].acquire([AcquireRequest(frozenset({unit}), holder)])
        held = watcher.holder(unit)
        if before is not None:
            assert refused(answer, errors.LeaseHeld).holder == before.holder
            if chance.random() < 0.5:
                assert stores[1 - which].release([closed(before.holder, before.token)]) == [True]
        else:
            assert isinstance(answer, Lease)
            assert answer == held
            assert answer.token > max(tokens, default=NO_TOKEN)
            tokens[answer.token] = holder.name
    assert watcher.newest() == max(tokens)
    assert grants(watcher) == len(tokens)


def upset(cluster: MemoryCluster, chance: random.Random) -> None:
    """Something goes wrong next, maybe several things; at worst for longer than a call waits."""
    faults = cluster.faults
    conflict = errors.ApiConflict("modified", reason="Conflict")
    for _ in range(chance.randrange(4)):
        verb = chance.choice(["get", "replace"])
        match chance.randrange(5):
            case 0:
                faults.lose_answer_next(verb)
            case 1:
                faults.fail_next(verb, errors.ApiUnavailable("reset"))
            case 2:
                faults.fail_next("replace", conflict, times=chance.randrange(1, 5))
            case 3:
                faults.fail_next(verb, errors.ApiFailed("HTTP 500"))
            case _:
                faults.lose_answer_next(verb, times=1000)


# --- objects that are not what they were -------------------------------------


def test_without_an_epoch_there_is_nothing(cluster: MemoryCluster, clock: ManualClock) -> None:
    """DESIGN 4: a missing object is not initialised; only `init` makes one."""
    store = leases_of(cluster, clock)
    for act in (store.newest, store.leases, lambda: store.adopt(NO_TOKEN, "ops"),
                lambda: store.acquire([ask(claim("a"), "u1")])):  # fmt: skip
        with pytest.raises(errors.SettingsInvalid, match="not initialised"):
            act()
    assert cluster.writes() == []
    made = [store.initialised]
    cluster.faults.lose_answer_next("create")
    cluster.faults.lose_answer_next("replace")
    token = store.init()
    assert [*made, store.initialised] == [False, True]
    assert leases_of(cluster, clock).init() == token == store.newest()


def test_an_object_made_anew_has_a_newer_epoch(
    leases: KubernetesLeaseStore, cluster: MemoryCluster, clock: ManualClock
) -> None:
    """Promise 2: deleted and made again: nothing is granted before `init`, then above all before,
    also when the clock went back; nodes of the old epoch are foreign until the store is adopted."""
    old = granted(leases, ask(claim("a"), "u1"))
    cluster.delete(CONFIGMAPS, OBJECT)
    with pytest.raises(errors.SettingsInvalid):
        leases.acquire([ask(claim("b"), "u1")])
    other = leases_of(cluster, ManualClock(START - 3600.0))
    assert leases.init().epoch > old.token.epoch
    (foreign,) = leases.acquire([ask(claim("b"), "u1", min_token=old.token)])
    refused(foreign, errors.EpochForeign)
    newest = other.adopt(old.token, "ops")
    assert granted(leases, ask(claim("b"), "u1", min_token=old.token)).token > newest > old.token


def test_an_object_put_back_from_a_copy_grants_nothing(
    leases: KubernetesLeaseStore, cluster: MemoryCluster, clock: ManualClock
) -> None:
    """DESIGN 4: a backup may be older than tokens issued; it shows by the object's UID."""
    lease = granted(leases, ask(campaign("r"), "u1"))
    copy = stored(cluster)
    cluster.delete(CONFIGMAPS, OBJECT)
    kept = ("name", "namespace", "labels", "annotations")
    copy["metadata"] = {key: copy["metadata"][key] for key in kept}
    cluster.create(CONFIGMAPS, copy)
    fresh = leases_of(cluster, clock)
    assert "copy" in refused(fresh.acquire([ask(claim("b"), "u2")])[0], errors.StoreBehind).detail
    with pytest.raises(errors.StoreBehind):
        fresh.learn(lease.token)
    assert fresh.suspended() == lease.token
    assert fresh.init() == lease.token
    assert isinstance(fresh.renew([Renewal(campaign("r"), lease.token, TTL_S)])[0], Lease)
    assert fresh.adopt(NO_TOKEN, "ops") > lease.token
    assert fresh.suspended() is None
    assert isinstance(fresh.acquire([ask(claim("b"), "u2")])[0], Lease)


def test_an_older_object_suspends_the_store_for_all(
    leases: KubernetesLeaseStore, cluster: MemoryCluster, clock: ManualClock
) -> None:
    """DESIGN 4: a restored API server is found out by whoever has seen more; that is durable."""
    older = stored(cluster)
    lease = granted(leases, ask(claim("a"), "u1"))
    cluster.engine.seed(CONFIGMAPS, older)
    assert refused(leases.acquire([ask(claim("b"), "u1")])[0], errors.StoreBehind).floor == (
        lease.token
    )
    fresh = leases_of(cluster, clock)
    refused(fresh.acquire([ask(claim("b"), "u1")])[0], errors.StoreBehind)
    assert fresh.suspended() == lease.token
    assert fresh.leases() == []
    adopted = leases.adopt(NO_TOKEN, "ops")
    assert adopted.epoch > lease.token.epoch
    assert granted(fresh, ask(claim("b"), "u1")).token > adopted


def test_a_counter_lowered_by_hand_shows_by_the_leases(
    leases: KubernetesLeaseStore, cluster: MemoryCluster, clock: ManualClock
) -> None:
    """Promise 2: the tokens in the object bear witness against its counter."""
    granted(leases, ask(claim("a"), "u1"))
    lease = granted(leases, ask(claim("b"), "u2"))
    body = stored(cluster)
    head = json.loads(body["data"][kubernetes_state.HEAD]) | {"counter": 1}
    body["data"][kubernetes_state.HEAD] = json.dumps(head)
    cluster.replace(CONFIGMAPS, body)
    (answer,) = leases_of(cluster, clock).acquire([ask(claim("c"), "u3")])
    assert refused(answer, errors.StoreBehind).floor == lease.token


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', '{"format": 1, "epoch": -1}'])
def test_an_object_that_makes_no_sense_is_not_an_empty_one(
    leases: KubernetesLeaseStore, cluster: MemoryCluster, text: str
) -> None:
    """Promise 5: what cannot be read is refused with the way out, never taken for 'free'."""
    granted(leases, ask(claim("a"), "u1"))
    body = stored(cluster)
    body["data"][kubernetes_state.HEAD] = text
    cluster.replace(CONFIGMAPS, body)
    for act in (leases.leases, leases.init, lambda: leases.acquire([ask(claim("b"), "u1")])):
        with pytest.raises(errors.SettingsInvalid, match="cannot be understood"):
            act()


# --- what an operator sees ---------------------------------------------------


def test_the_object_can_be_read(leases: KubernetesLeaseStore, cluster: MemoryCluster) -> None:
    """E5: plain JSON, one line for each lease; what others wrote into the object stays (B19)."""
    body = stored(cluster)
    body["metadata"]["labels"]["team"] = "ops"
    body["data"]["note"] = "kept by hand"
    cluster.replace(CONFIGMAPS, body)
    lease = granted(leases, ask(claim("a"), "u1", "u2"))
    found = stored(cluster)
    assert json.loads(found["data"]["leases.jsonl"]) == {
        "holder": "claim:a",
        "token": str(lease.token),
        "units": ["u1", "u2"],
    }
    assert json.loads(found["data"]["head.json"])["counter"] == lease.token.counter
    assert found["metadata"]["labels"]["team"] == "ops"
    assert found["data"]["note"] == "kept by hand"


def test_a_large_store_is_compressed_and_small_again(
    leases: KubernetesLeaseStore, cluster: MemoryCluster, clock: ManualClock
) -> None:
    """E5: above `PLAIN_BYTES` the texts are packed; the history is bounded."""
    holders = [claim(f"{number:036d}") for number in range(2000)]
    answers = leases.acquire([ask(holder, f"GPU-{holder.name}/0") for holder in holders])
    found = stored(cluster)
    assert "leases.jsonl" not in found["data"]
    assert size_of(found) < PLAIN_BYTES
    fresh = leases_of(cluster, clock)
    assert fresh.leases() == answers
    assert len(fresh.history(10_000)) == kubernetes_state.HISTORY_KEPT
    releases = [closed(one.holder, one.token) for one in answers if isinstance(one, Lease)]
    assert all(fresh.release(releases))
    assert leases.leases() == []
    assert "leases.jsonl" in stored(cluster)["data"]


def test_leases_long_expired_leave_the_object(
    leases: KubernetesLeaseStore, cluster: MemoryCluster, clock: ManualClock
) -> None:
    """E5: hosts that publish no more must not fill the object for ever."""
    granted(leases, ask(campaign("r"), "u1"))
    clock.advance(TTL_S + kubernetes_state.EXPIRED_KEPT_S + 1)
    granted(leases, ask(claim("a"), "u2"))
    assert "campaign:r" not in stored(cluster)["data"]["leases.jsonl"]


def test_a_full_object_refuses_only_what_does_not_fit(
    leases: KubernetesLeaseStore, cluster: MemoryCluster
) -> None:
    """Promise 9: who asks for too much is told so; who shared the write with it is served."""
    held = granted(leases, ask(claim("a"), "u1"))
    noise = random.Random(1)
    names = [noise.randbytes(LIMIT_BYTES // 2 + 100_000).hex() for _ in range(2)]
    huge = AcquireRequest(units(*names), claim("b"))
    entered, go_on = held_up(cluster)
    with ThreadPoolExecutor(4) as pool:
        pool.submit(leases.newest)
        assert entered.wait(20)
        large = pool.submit(leases.acquire, [huge])
        small = pool.submit(leases.acquire, [ask(claim("c"), "u2")])
        given = pool.submit(leases.release, [closed(claim("a"), held.token)])
        queued(leases, 3)
        go_on.set()
        with pytest.raises(errors.StoreUnavailable, match="full"):
            large.result(20)
        assert isinstance(small.result(20)[0], Lease)
        assert given.result(20) == [True]
    assert grants(leases) == 2
    assert [lease.holder for lease in leases.leases()] == [claim("c")]


def test_a_missing_right_is_named(clock: ManualClock) -> None:
    """E5: no right to update is a matter of settings, told with the right and the namespace."""
    engine = Engine(access=Access([Rule("us", ("get", "create"), ("configmaps",))]))
    admin = leases_of(MemoryCluster(engine), clock)
    store = leases_of(MemoryCluster(engine, caller=Caller("us")), clock)
    admin.init()
    assert store.leases() == []
    with pytest.raises(errors.SettingsInvalid, match="may not update configmaps") as told:
        store.acquire([ask(claim("a"), "u1")])
    assert "get, list, create, update and delete on configmaps in namespace default" in str(
        told.value
    )


def test_a_missing_namespace_is_named(cluster: MemoryCluster, clock: ManualClock) -> None:
    """E5: the first thing that goes wrong in a new cluster has its remedy."""
    cluster.faults.fail_next("create", errors.ApiNotFound('namespaces "default" not found'))
    with pytest.raises(errors.SettingsInvalid, match=r"namespace default does not exist"):
        leases_of(cluster, clock).init()


def test_a_batch_of_nothing_asks_whether_there_is_a_store(
    leases: KubernetesLeaseStore, cluster: MemoryCluster
) -> None:
    """B43: empty calls are answered and write nothing."""
    before = len(cluster.writes())
    assert leases.acquire([]) == leases.renew([]) == leases.release([]) == []
    assert leases.release([Release(claim("a"), NO_TOKEN)]) == [False]
    refused(leases.acquire([AcquireRequest(units(), claim("a"))])[0], errors.InputInvalid)
    assert len(cluster.writes()) == before
