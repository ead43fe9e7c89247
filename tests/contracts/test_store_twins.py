"""All stores give the same answers to the same history, whatever it is."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fleet.core.clock import ManualClock
from fleet.core.errors import FleetError
from fleet.core.leases import AcquireRequest, ClosedBy, Closure
from fleet.core.model import NO_TOKEN, Holder, HolderKind, Lease, NodeName, Token, UnitId
from fleet.stores.base import HistoryEntry, LeaseStore, Release, Renewal
from fleet.stores.kubernetes import open_kubernetes_stores
from fleet.stores.kubernetes_maps import Patience
from fleet.stores.sqlite import open_stores
from tests.contracts.lease_store_contract import START
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.stores import MemoryLeaseStore

HOLDERS = st.builds(Holder, st.sampled_from(HolderKind), st.sampled_from(["a", "b"]))
UNITS = st.frozensets(st.sampled_from([UnitId(f"g{n}/{m}") for n in (1, 2) for m in (0, 1)]))
COUNTERS = st.integers(min_value=0, max_value=9)


class Twins(RuleBasedStateMachine):
    """All stores, one clock. Epochs differ by chance, so they are compared as 'ours'."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(START)
        self.folder = Path(tempfile.mkdtemp())
        self.stores = open_stores(self.folder / "store.db", clock=self.clock)
        self.durable: LeaseStore = self.stores.leases
        self.memory: LeaseStore = MemoryLeaseStore(self.clock)
        self.clustered: LeaseStore = open_kubernetes_stores(
            MemoryCluster(), "default", clock=self.clock, patience=Patience(10.0)
        ).leases
        self.all = (self.durable, self.memory, self.clustered)
        for store in self.all:
            store.init()
        self.seen: dict[UnitId, int] = {}

    def teardown(self) -> None:
        self.stores.close()
        shutil.rmtree(self.folder)

    @rule(
        asked=st.lists(st.tuples(UNITS, HOLDERS, st.none() | COUNTERS), max_size=4),
        limit=st.none() | st.integers(min_value=0, max_value=2),
        ahead=st.booleans(),
    )
    def acquire(
        self,
        asked: list[tuple[frozenset[UnitId], Holder, int | None]],
        limit: int | None,
        ahead: bool,
    ) -> None:
        answers = []
        for store in self.all:
            newest = store.newest()
            requests = [
                AcquireRequest(
                    units,
                    holder,
                    60.0 if holder.kind in (HolderKind.CAMPAIGN, HolderKind.OPERATOR) else None,
                    None
                    if floor is None
                    else Token(newest.epoch, floor if ahead else min(floor, newest.counter)),
                )
                for units, holder, floor in asked
            ]
            answers.append(store.acquire(requests, out_of_service_max=limit))
        one, *others = [list(map(plain, answer)) for answer in answers]
        assert others == [one, one]
        for answer in answers[0]:
            if isinstance(answer, Lease):
                for unit in answer.units:
                    assert answer.token.counter >= self.seen.get(unit, 0)
                    self.seen[unit] = answer.token.counter

    @rule(asked=st.lists(st.tuples(HOLDERS, COUNTERS, st.booleans()), max_size=3))
    def release(self, asked: list[tuple[Holder, int, bool]]) -> None:
        answers = []
        for store in self.all:
            epoch = store.newest().epoch
            answers.append(
                store.release(
                    [
                        Release(
                            holder,
                            Token(epoch, counter),
                            Closure(holder, Token(epoch, counter), NodeName("n"), ClosedBy.ABANDON)
                            if proven
                            else None,
                        )
                        for holder, counter, proven in asked
                    ]
                )
            )
        one, *others = [list(map(plain, answer)) for answer in answers]
        assert others == [one, one]

    @rule(holder=HOLDERS, counter=COUNTERS, ttl_s=st.sampled_from([0.0, 5.0, 90.0]))
    def renew(self, holder: Holder, counter: int, ttl_s: float) -> None:
        answers = [
            store.renew([Renewal(holder, Token(store.newest().epoch, counter), ttl_s)])
            for store in self.all
        ]
        one, *others = [plain(answer[0]) for answer in answers]
        assert others == [one, one]

    @rule(seconds=st.sampled_from([1.0, 30.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def adopt(self) -> None:
        for store in self.all:
            store.adopt(NO_TOKEN, "somebody")

    @invariant()
    def all_are_the_same(self) -> None:
        one, *others = [
            (
                store.newest().counter,
                [plain(lease) for lease in store.leases()],
                [told(entry) for entry in store.history(9)],
                store.suspended() is None,
            )
            for store in self.all
        ]
        assert others == [one, one]


def plain(answer: Lease | FleetError | bool) -> object:
    """An answer without the epoch and without the texts, which name tokens."""
    if isinstance(answer, Lease):
        return (answer.units, answer.holder, answer.token.counter, answer.expires_at)
    return type(answer) if isinstance(answer, FleetError) else answer


def told(entry: HistoryEntry) -> object:
    """A history entry without the epoch."""
    return (entry.at, entry.event, entry.holder, entry.token.counter, entry.units)


TestTwins = Twins.TestCase
TestTwins.settings = settings(
    max_examples=60,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
