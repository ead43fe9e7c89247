"""The service of a twin node as a process: started, killed at any commit, frozen, ticking.

What the product's service does by itself (recovery, sweeps, idle cleaning, retests, the outbox) is
done in steps of virtual time. `Service.inside` is the border of the process: where it dies, whoever
called is not answered.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast

from fleet.core import errors
from fleet.core.claim_states import Claim
from fleet.core.messages import DeviceResult, NodeView
from fleet.core.model import OperationId, State, Unit, Uuid
from fleet.core.profiles import Profile
from fleet.core.unit_states import Change, Event
from fleet.evidence.ledger import Ledger
from fleet.node import outbox, recovery
from fleet.node.newcomers import Newcomers, is_newcomer
from fleet.node.operator import Decisions
from fleet.node.outbox import Outbox
from fleet.node.sweep import retestable
from fleet.node.upkeep import Watched, _frees, _is_idle_dirty
from fleet.stores.base import LeaseStore
from tests.twin.clock import Action, Alarm, Timeline, Timer, Wall
from tests.twin.flights import Holding
from tests.twin.hardware import Fates, Hardware, Shelf, Tenants
from tests.twin.journal import AFTER, BEFORE, FULL, Died, Kept
from tests.twin.registry import TwinRecovery, TwinRegistry
from tests.twin.wiping import GONE, Job, Wiping

if TYPE_CHECKING:
    from tests.twin.node import TwinNode

SWEEP_S = 25.0
IDLE_DELAY_S = 5.0
FROZEN_LOOK_S = 0.5
GONE_CHANGE = Change(facts=GONE)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Build:
    """What a node is made of."""

    name: str
    devices: int
    timeline: Timeline
    store: LeaseStore
    fates: Fates
    profile: Profile
    exposed: Callable[[TwinNode, Claim], None]
    """Told of each exposure."""
    changed: Callable[[TwinNode], None]
    """Told of each change."""
    strikes: Callable[[str, str], bool]
    """Whether trouble of a kind befalls a node now."""
    died: Callable[[TwinNode], None]
    """Told of a service that died in the middle of something."""
    acting: Callable[[str], None] = lambda name: None  # noqa: ARG005 - told nobody
    """Told which node acts from now on, "" for none."""
    deadline_s: float = 600.0
    """How long a tenant may outlive its teardown."""
    retest_s: float = 300.0
    """How long a quarantined device is left alone before it is tested anew."""


@dataclass
class Service:
    """One process of a node, and what outlives it. `alive` is the service."""

    build: Build
    alive: bool = False
    silent: bool = False
    """Does not answer the coordinator, though it works."""
    frozen: bool = False
    """The service stands still (SIGSTOP): it answers nobody and does nothing."""
    full: bool = False
    """The disk of the journal is full."""
    unwritable: bool = False
    """The CDI directory cannot be written."""
    recovered: bool = False
    """Whether the last start came to its end: before it, nothing is served."""
    starts: int = 0
    revision: int = 0
    commits: int = 0
    die_at: tuple[int, str] | None = None
    """At which commit, counted from 1, the service dies for certain, and how."""
    faults: dict[str, str] = field(default_factory=dict)
    """Reason code that the next sweep finds, by device UUID."""
    clock: Wall = field(init=False)
    hardware: Hardware = field(init=False)
    kept: Kept = field(init=False)
    registry: TwinRegistry = field(init=False)
    wiping: Wiping = field(init=False)
    holding: Holding = field(init=False)
    outbox: Outbox = field(init=False)
    _decisions: Decisions = field(init=False)
    _recovery: TwinRecovery = field(init=False)
    _newcomers: Newcomers = field(init=False)
    _alarm: Alarm = field(init=False)
    _unrecorded: dict[OperationId, DeviceResult] = field(default_factory=dict)
    _swept_at: float = float("-inf")
    _tried: dict[Uuid, float] = field(default_factory=dict)
    _watched: Watched = field(default_factory=Watched)
    _seen: tuple[int, NodeView] | None = None

    def __post_init__(self) -> None:
        build = self.build
        self.clock = Wall(build.timeline)
        self.hardware = Hardware.fitted(build.name, build.devices, self.clock)
        self.kept = Kept(build.name)
        self._alarm = Alarm(build.timeline, self._step, f"tick {build.name}")
        self._open()

    @property
    def _whole(self) -> TwinNode:
        return cast("TwinNode", self)

    @property
    def name(self) -> str:
        """The node's name."""
        return self.build.name

    @property
    def troubles(self) -> tuple[str, ...]:
        """What the last start could not bring in order yet."""
        return self._recovery.troubles

    # --- start, crash, reboot ---

    def _open(self) -> None:
        build = self.build
        self.starts += 1
        self.alive, self.recovered = True, False
        self._alarm = Alarm(build.timeline, self._step, f"tick {build.name}")
        self.registry = TwinRegistry(self.kept, self.hardware, self.clock, self._changed)
        assert self.kept.journal is not None
        self.kept.journal.strike = self._befalls
        shelf = Shelf(
            self.hardware, lambda claim: build.exposed(self._whole, claim), lambda: self.unwritable
        )
        self.outbox = Outbox(self.registry, build.store)
        self.wiping = Wiping(
            self.registry, self.hardware, build.fates, self.after, build.timeline.after
        )
        self.holding = Holding(
            registry=self.registry,
            wiping=self.wiping,
            shelf=shelf,
            store=build.store,
            profile=build.profile,
            outbox=self.outbox,
            after=self.after,
            wake=self._alarm.wake,
            deadline_s=build.deadline_s,
        )
        self._decisions = Decisions(self.registry, stop_wait_s=0.0)
        ledger = cast("Ledger", self.hardware.evidence)
        self._recovery = TwinRecovery(self.registry, shelf, 0.0, ledger, hardware=self.hardware)
        self._newcomers = Newcomers(self.registry, self.build.store)
        self._unrecorded.clear()
        self._tried.clear()
        self._watched = Watched()
        self._swept_at = float("-inf")
        self._seen = None
        self._alarm.wake(0.05)
        self._recover()

    def _recover(self) -> None:
        """What a start of the product's service does, in its order."""
        try:
            self.inside(self._recovered)
        except errors.NotOwner:
            return  # it died while it started: whoever watches starts it again
        except errors.FleetError:
            self.crash()  # the disk is full: it cannot be opened yet
            self.build.died(self._whole)

    def _recovered(self) -> None:
        self.registry.load()
        self._recovery.run()
        self.recovered = True
        self._follow()

    def _befalls(self) -> str:
        self.commits += 1
        if self.die_at is not None and self.die_at[0] == self.commits:
            return self.die_at[1]
        if self.full:
            return FULL
        strikes = self.build.strikes
        return next((kind for kind in (BEFORE, AFTER) if strikes(kind, self.name)), "")

    def crash(self) -> None:
        """Kill the service. Tenants run on; workers die with it."""
        self.alive = self.frozen = False
        self._alarm.stop()
        self.holding.flights.clear()
        self._changed()

    def start(self, *, new_boot: bool = False) -> None:
        """Start the service again; after a reboot nobody computes any more, nothing is trusted."""
        if new_boot:
            self.hardware.boot(f"boot-{self.starts + 1}")
            self.kept.witness = None
        self._open()
        self._changed()

    def _changed(self) -> None:
        self.revision += 1
        self._seen = None
        self.build.changed(self._whole)

    def inside(self, act: Callable[[], T]) -> T:
        """Do something in the service: here it may die, and then nobody is answered."""
        if not self.alive or self.frozen:
            raise errors.NotOwner(f"nobody serves node {self.name}")
        self.build.acting(self.name)
        try:
            return act()
        except Died:
            self.crash()
            self.build.died(self._whole)
            raise errors.NotOwner(f"nobody serves node {self.name}") from None
        finally:
            self.build.acting("")

    def after(self, wait_s: float, act: Action, name: str) -> Timer:
        """Do something later, if this very service lives then; a frozen one does it once thawed."""
        start = self.starts

        def due() -> None:
            if not self.alive or self.starts != start:
                return
            if self.frozen:
                self.build.timeline.after(FROZEN_LOOK_S, due, name)
                return
            with suppress(errors.NotOwner):
                self.inside(act)

        return self.build.timeline.after(wait_s, due, name)

    def _record(self, result: DeviceResult) -> None:
        """Keep the answer of an operation; one that cannot be written now is tried again."""
        operation = OperationId(result.operation)
        self._unrecorded[operation] = result
        with suppress(errors.FleetError):
            with self.registry.commit() as commit:
                told, now = result.model_dump(mode="json"), self.clock.now()
                commit.finish_operation(operation, told, now)
            del self._unrecorded[operation]

    def break_device(self, index: int, code: str = "ecc-uncorrectable") -> None:
        """A fault that the next sweep would find is found now."""
        device = list(self.hardware.devices.values())[index]
        try:
            self.inside(lambda: self.wiping.fault(device, code))
        except errors.FleetError:
            self.faults[device.uuid] = code

    def lose_trust(self, uuid: str, *, driver: bool = False) -> None:
        """A foreign process was seen on a device that nobody has, or its driver was reloaded."""
        device = self.registry.devices[Uuid(uuid)]
        states = {State.CLEAN, State.IN_USE} if driver else {State.CLEAN}

        def event(unit: Unit) -> Event | None:
            return Event.TRUST_LOST if unit.state in states else None

        if self.registry.work_on(device) is None:
            with suppress(errors.FleetError):
                self.inside(lambda: self.registry.move(device, event, GONE_CHANGE))

    # --- by itself ---

    def _follow(self) -> bool:
        try:
            recovery.adopt(self.registry, self.build.store)
        except errors.FleetError:
            return False
        return True

    def _adopted(self) -> None:
        if not self._follow():
            raise errors.StoreUnavailable(f"node {self.name} has a new journal and no store yet")

    def _step(self) -> float:
        now = self.build.timeline.now()
        if self.frozen:
            return now + FROZEN_LOOK_S
        try:
            return self.inside(self._tick)
        except errors.FleetError:
            return now + 1.0

    def _tick(self) -> float:
        now, monotonic = self.build.timeline.now(), self.build.timeline.monotonic()
        if not self._follow():
            return now + 1.0
        self._newcomers.step()
        for result in list(self._unrecorded.values()):
            self._record(result)
        self._settle()
        self.holding.resume()
        for device in self.registry.whole():
            frees = any(_frees(unit) for unit in self.registry.units(device))
            if frees and Tenants(self.hardware).free(device.accelerator):
                self.registry.move(device, _frees)
        if monotonic - self._swept_at >= SWEEP_S:
            self._swept_at = monotonic
            self._sweep()
        before = outbox.shown(self.registry)
        self.outbox.drain(self.clock.now())
        left = outbox.shown(self.registry)
        if left != before:
            self._changed()
        due = now + min(self._swept_at + SWEEP_S - monotonic, 1.0 if left[0] else SWEEP_S)
        return min(due, now + self._clean_idle(self.clock.now()))

    def _settle(self) -> None:
        busy = {work.operation for work in self.registry.works()} | self._unrecorded.keys()
        self._recovery.settle(busy)

    def _sweep(self) -> None:
        now = self.clock.now()
        for device in self.registry.devices.values():
            code = self.faults.pop(device.uuid, "")
            if code:
                self.wiping.fault(device, code)
            else:
                self.wiping.checked_at[device.uuid] = now
        self._changed()

    def _clean_idle(self, now: float) -> float:
        """Wipe dirty devices that nobody holds, retest the quarantined; s until the next look."""
        due = SWEEP_S
        for device in self.registry.devices.values():
            units, last = self.registry.units(device), self._tried.get(device.uuid, float("-inf"))
            if self.registry.work_on(device) is not None or any(u.claim for u in units):
                continue
            if not any(u.state in (State.DIRTY, State.QUARANTINED) for u in units):
                continue
            if any(map(is_newcomer, units)):
                due = min(due, IDLE_DELAY_S)
                continue
            late = self._watched.reached(device.uuid, units, now, self.clock.monotonic())
            waited = not 0 <= late - last < IDLE_DELAY_S
            dirty = waited and _is_idle_dirty(units, now=late, delay_s=IDLE_DELAY_S)
            if not (dirty or retestable(units, now=late, period_s=self.build.retest_s, last=last)):
                due = min(due, IDLE_DELAY_S)
                continue
            self._tried[device.uuid] = late
            operation = OperationId(f"idle/{device.uuid}/{self.revision}")
            job = Job(operation, device, idle=True)
            job.on_end = lambda _: self._alarm.wake(IDLE_DELAY_S)
            self.wiping.begin(job)
        return due
