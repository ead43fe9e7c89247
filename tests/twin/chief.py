"""A coordinator process of the twin: the product's own parts, its watch, and its lease on life."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from fleet.control.binding.claim_leases import ClaimLeases
from fleet.control.binding.decisions import PodFact
from fleet.control.binding.loop import Reconciling
from fleet.control.binding.object_cache import Cached
from fleet.control.binding.orphans import OrphanLeases
from fleet.control.binding.projection import trimmed
from fleet.control.binding.quarantines import QuarantineLeases
from fleet.control.binding.service import Binder
from fleet.control.binding.surroundings import BinderTerms, Surroundings
from fleet.control.binding.visibility import Visible
from fleet.control.coordinator import Coordinator
from fleet.core import errors
from fleet.core.model import NodeName
from fleet.core.settings import Settings
from fleet.evidence.ledger import LedgerHead
from fleet.kube.base import CLAIMS, Change, Cluster, Event, Selection
from fleet.kube.claim import ClaimReading
from fleet.kube.claim_holds import Holds
from fleet.kube.marks import Marks
from fleet.rpc.nodes import Nodes
from fleet.stores.base import LeaseStore, RunStore
from tests.lab.apiserver.engine import Engine
from tests.lab.apiserver.feeds import Feed
from tests.lab.apiserver.refusal import Refusal
from tests.twin.clock import Alarm, Timeline, Wall
from tests.twin.faults import Dice
from tests.twin.plugin import Patience


class NoSigner:
    """Countersigns nothing: there is no evidence here."""

    def sign(self, heads: Mapping[NodeName, LedgerHead]) -> None:
        """Nothing."""


@dataclass
class Told:
    """Events as they were told, for tests."""

    said: list[tuple[str, str]] = field(default_factory=list)

    def claim(self, reading: ClaimReading, reason: str, message: str) -> None:
        """About a claim."""
        self.said.append((f"claim {reading.name}: {reason}", message))

    def waiting(self, reading: ClaimReading, why: str) -> None:
        """About a claim, and the pods it is for."""
        self.said.append((f"claim {reading.name}: WaitForDevice", why))

    def pod(self, namespace: str, pod: PodFact, reason: str, message: str) -> None:
        """About a pod."""
        self.said.append((f"pod {namespace}/{pod.name}: {reason}", message))


@dataclass
class Wire:
    """The watch behind a `Cached`, without a thread; breaks, repeats and reorders as drawn."""

    cached: Cached
    cluster: Cluster
    engine: Engine
    dice: Dice
    deaf: bool = False
    """The watch stands, and nothing comes through it."""
    _feed: Feed | None = None
    _round: int = 0
    _late: list[Event] = field(default_factory=list)

    def pump(self) -> None:
        """Deliver what has come since the last time."""
        if self.deaf or self.dice.outage:
            return
        if self._feed is None or self.dice.strikes("watch-broken"):
            self._connect()
            return
        try:
            seen = self._feed.poll(0.0)
        except Refusal:
            self._feed = None
            return
        events = [*self._late, *(Event(one.change, json.loads(one.text)) for one in seen)]
        self._late = []
        if events and self.dice.strikes("watch-late"):
            self._late = events[len(events) // 2 :]
            events = events[: len(events) // 2]
        if len(events) > 1 and self.dice.strikes("watch-reordered"):
            place = self.dice.chance().randrange(len(events) - 1)
            events[place], events[place + 1] = events[place + 1], events[place]
        if events and self.dice.strikes("watch-doubled"):
            events.append(self.dice.chance().choice(events))
        for event in events:
            self.cached._take_in(event, self._round, listing=False)

    def _connect(self) -> None:
        self.cached._round += 1
        self._round, self._feed, self._late = self.cached._round, None, []
        try:
            listing = self.cluster.list(CLAIMS)
        except errors.FleetError:
            return
        for item in listing.items:
            self.cached._take_in(Event(Change.ADDED, item), self._round, listing=True)
        self.cached._take_in(Event(Change.SYNCED), self._round, listing=True)
        self._feed = self.engine.watch(CLAIMS, since=listing.resource_version)


@dataclass(frozen=True, slots=True)
class Means:
    """What a coordinator is started with."""

    clock: Wall
    timeline: Timeline
    settings: Settings
    cluster: Cluster
    engine: Engine
    store: LeaseStore
    runs: RunStore
    nodes: Nodes
    dice: Dice
    delay_s: Callable[[], float]
    period_s: float
    measured: bool = False
    """Whether `Chief.spent_s` is kept."""


@dataclass
class Chief:
    """One coordinator process; `stop` is kill -9."""

    means: Means
    told: Told = field(default_factory=Told)
    binder: Binder = field(init=False)
    coordinator: Coordinator = field(init=False)
    steps: int = 0
    spent_s: float = 0.0
    """Time of the CPU spent in steps, its writes to the API in memory included."""
    trouble: str = ""
    alarm: Alarm = field(init=False)
    _rounds: Reconciling = field(init=False)
    wire: Wire = field(init=False)

    def __post_init__(self) -> None:
        means = self.means
        settings, clock = means.settings, means.clock
        marks = Marks(settings.kubernetes.driver)
        self.coordinator = Coordinator(
            means.store, means.runs, clock=clock, signer=NoSigner(), incarnation="twin"
        )
        kept = Selection(trim=partial(trimmed, marks=marks))
        claims = Cached(means.cluster, CLAIMS, kept, clock=clock)
        leases = ClaimLeases(self.coordinator, means.nodes)
        around = Surroundings(
            cluster=means.cluster,
            leases=leases,
            nodes=means.nodes,
            holds=Holds(means.cluster, marks, clock, Patience(clock)),
            visible=Visible(means.cluster, settings.kubernetes.driver),
            tell=self.told,
            claims=claims,
        )
        self.binder = Binder(around, BinderTerms.from_settings(settings))
        self._rounds = Reconciling(
            self.binder,
            means.nodes,
            self.coordinator,
            caches=(claims,),
            followers={
                "orphans": OrphanLeases(claims, leases, self.binder.look),
                "quarantine leases": QuarantineLeases(self.coordinator),
            },
        )
        self.wire = Wire(claims, means.cluster, means.engine, means.dice)
        self.alarm = Alarm(means.timeline, self._step, "coordinator")
        self.alarm.wake(means.delay_s())

    def stop(self) -> None:
        """Killed."""
        self.alarm.stop()

    def _step(self) -> float:
        if not self.means.measured:
            return self._stepped()
        begun = time.process_time()
        try:
            return self._stepped()
        finally:
            self.spent_s += time.process_time() - begun

    def _stepped(self) -> float:
        self.steps += 1
        self.wire.pump()
        try:
            self._rounds.step(self.means.clock.now())
            self.trouble = self._rounds.trouble
        except errors.FleetError as error:
            self.trouble = str(error)
        return self.means.timeline.now() + self.means.period_s
