"""What a node does by itself, nobody asking: prove free, sweep, clean idle devices, retest, drain.

`Tending.step` is called a few times a second; it decides and returns the devices whose wipe is due.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from fleet.core import errors
from fleet.core.model import Device, State, Unit, UnitId, Uuid
from fleet.core.settings import IDLE_DELAY_S
from fleet.core.unit_states import Event
from fleet.node import ladder, sweep
from fleet.node.newcomers import Newcomers, is_newcomer
from fleet.node.occupants import Occupants
from fleet.node.orphan_access import Lingering
from fleet.node.outbox import Outbox
from fleet.node.ports import TenantProof
from fleet.node.registry import Registry

LOG = logging.getLogger(__name__)
BACKOFF_MAX_S = 60.0
"""Longest pause between two tries of a remote act."""
LOSS_PAUSE_S = 5.0
"""Least time, s, between two sweeps because of a log that loses records: it may go on losing."""
AGE_S = 1.0
"""Age, s, of what is dirty on an idle node when its wipe begins (F76): others see it before."""
SETTLE_S = 5.0
"""Pause, s, between two tries to remove instances of partitions that nobody needs."""


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often; all times in seconds."""

    idle_delay_s: float
    sweep_period_s: float
    retest_period_s: float

    @property
    def age_s(self) -> float:
        """How long memory has been dirty before an idle node wipes it: hardly at all.

        Whoever is at work here keeps the node from it for `idle_delay_s` anyway. One that was set
        beyond its default is somebody's wish that nothing is wiped so soon.
        """
        usual = self.idle_delay_s <= IDLE_DELAY_S
        return min(self.idle_delay_s, AGE_S) if usual else self.idle_delay_s


@dataclass
class Watched:
    """For how long devices have been seen as they are, by a clock that nobody sets.

    Without it a wall clock that is set back leaves memory dirty until it has caught up.
    """

    _first: dict[Uuid, tuple[float, float]] = field(default_factory=dict)
    """By device: when its newest change was (wall clock), and first seen (monotonic), s."""

    def reached(self, uuid: Uuid, units: Sequence[Unit], now: float, seen: float) -> float:
        """`now`, or as much later as the units have been seen unchanged; `seen`: monotonic, s."""
        newest = max(max(unit.since, sweep.newest(unit)) for unit in units)
        known, first = self._first.get(uuid, (newest, seen))
        self._first[uuid] = (newest, first if known == newest else seen)
        return max(now, newest + seen - self._first[uuid][1])


@dataclass
class Tending:
    """The node's own initiative."""

    registry: Registry
    health: sweep.Sweep
    tenants: TenantProof
    outbox: Outbox
    newcomers: Newcomers
    cadence: Cadence
    lingering: Lingering | None = None
    occupants: Occupants | None = None
    _swept_at: float = float("-inf")
    _ordered_at: float = float("-inf")
    _sweeping: threading.Thread | None = None
    _settled_at: float = float("-inf")
    _settling: threading.Thread | None = None
    _tried: dict[UnitId, float] = field(default_factory=dict)
    _watched: Watched = field(default_factory=Watched)
    _bad: frozenset[UnitId] = frozenset()
    """Units of partitioned accelerators that were out of service at the last step."""

    def step(self, now: float) -> list[Device]:
        """Do what is due at `now`; returns the devices to wipe because nobody holds them."""
        if any(not work.idle for work in self.registry.works()):
            self._ordered_at = now
        self._prove_free()
        self.newcomers.step()
        self._sweep(now)
        self._settle(now)
        self.outbox.drain(now)
        return self._chosen(now)

    def join(self, wait_s: float) -> None:
        """Wait up to `wait_s` seconds for a running sweep, and for instances being removed."""
        deadline = self.registry.clock.monotonic() + wait_s
        for running in (self._sweeping, self._settling):
            if running is not None:
                running.join(max(0.0, deadline - self.registry.clock.monotonic()))

    def _prove_free(self) -> None:
        for device in self.registry.whole():
            if any(_frees(u) for u in self.registry.units(device)) and self._is_free(device):
                self.registry.move(device, _frees)

    def _is_free(self, device: Device) -> bool:
        try:
            return self.tenants.free(device.accelerator)
        except errors.FleetError:
            return False  # not proven now; the others are not held up, and it is asked again

    def _sweep(self, now: float) -> None:
        if self._sweeping is not None and self._sweeping.is_alive():
            return
        fresh = self._fresh_faults() or self._lost(now)
        if 0 <= now - self._swept_at < self.cadence.sweep_period_s and not fresh:
            return
        self._sweeping = _started(self._run_sweep, "sweep")
        self._swept_at = now if self._sweeping is not None else self._swept_at

    def _lost(self, now: float) -> bool:
        """Whether the kernel log lost records that no full sweep has answered yet (B58)."""
        waited = not 0 <= now - self._swept_at < LOSS_PAUSE_S
        return waited and bool(self.health.validator.losses.trouble)

    def _settle(self, now: float) -> None:
        """Remove instances of partitions that nobody needs; the driver may take its time."""
        partitions = self.health.validator.partitions
        if self.registry.absent is not None:
            return
        if self._settling is not None and self._settling.is_alive():
            return
        if 0 <= now - self._settled_at < SETTLE_S or not partitions.strays():
            return
        self._settled_at = now
        self._settling = _started(partitions.settle, "settle")

    def _fresh_faults(self) -> bool:
        """Whether a partition went out of service since the last step.

        What it was found with may be a fault of the accelerator, and then its neighbours have it
        too (B70): they are looked at now and not at the end of the period.
        """
        bad = frozenset(
            unit.id
            for accelerator in self.registry.accelerators.values()
            if len(accelerator.units) > 1
            for unit in self.registry.units(accelerator.device)
            if unit.state is State.QUARANTINED
        )
        fresh = bool(bad - self._bad)
        self._bad = bad
        return fresh

    def _run_sweep(self) -> None:
        with suppress(errors.FleetError):  # the journal cannot be written: the next sweep tries
            self.health.run()
        if self.lingering is not None:
            self.lingering.look()
        if self.occupants is not None:
            self.occupants.look()

    def _chosen(self, now: float) -> list[Device]:
        """The devices due: an accelerator as a whole where it takes that, else its partitions.

        A partition that is CLEAN may have been wiped for a claim about to use it: a dirty neighbour
        is no reason to wipe it again.
        """
        chosen: list[Device] = []
        if self.registry.hindrance is not None:
            return chosen
        for accelerator in self.registry.accelerators.values():
            units = self.registry.units(accelerator.device)
            todo = {unit.id for unit in units if unit.state in (State.DIRTY, State.QUARANTINED)}
            parts = [device for device in accelerator.devices if not device.whole]
            reachable = {unit for device in parts for unit in device.units}
            whole = len(todo) == len(units) or not todo <= reachable
            if whole and self._due(accelerator.device, now):
                chosen.append(accelerator.device)
                continue
            for device in sorted(parts, key=lambda part: (len(part.units), part.name)):
                if todo.intersection(device.units) and self._due(device, now):
                    chosen.append(device)  # noqa: PERF401 - being due is remembered, one by one
        return chosen

    def _due(self, device: Device, now: float) -> bool:
        """Whether a free DIRTY device is to be wiped, or a quarantined one retested by rule."""
        if self.registry.work_on(device) is not None:
            return False
        if 0 <= now - self._ordered_at < self.cadence.idle_delay_s:
            return False  # a campaign or claim is at work here and may want this device next
        units = self.registry.units(device)
        if any(map(is_newcomer, units)):
            return False  # the store may have it out of service
        now = self._watched.reached(device.uuid, units, now, self.registry.clock.monotonic())
        last = max(self._tried.get(unit.id, float("-inf")) for unit in units)
        waited = _is_fresh(units, last) or not 0 <= now - last < self.cadence.idle_delay_s
        dirty = waited and _is_idle_dirty(units, now=now, delay_s=self.cadence.age_s)
        period_s = self.cadence.retest_period_s
        again = sweep.retestable(units, now=now, period_s=period_s, last=last)
        if not dirty and (not again or ladder.waits(self.registry, units)):
            return False
        self._tried.update((unit.id, now) for unit in units)
        return True


def _started(act: Callable[[], object], name: str) -> threading.Thread | None:
    """A thread that does it; None where the host has none: the next step tries again."""
    thread = threading.Thread(target=act, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        LOG.warning("no thread for the node's %s: %s", name, error)
        return None
    return thread


def _frees(unit: Unit) -> Event | None:
    """Units a claim may be using are freed by its teardown only."""
    return Event.PROVEN_FREE if unit.state is State.HELD and unit.claim is None else None


def _is_idle_dirty(units: Sequence[Unit], *, now: float, delay_s: float) -> bool:
    return all(_is_free(unit) for unit in units) and any(
        u.state is State.DIRTY and now - u.since >= delay_s for u in units
    )


def _is_fresh(units: Sequence[Unit], tried_at: float) -> bool:
    """Whether the device became dirty after it was last tried, by no worker's sudden end."""
    since = max(unit.since for unit in units)
    return since > tried_at and not any(unit.interruptions for unit in units)


def _is_free(unit: Unit) -> bool:
    return unit.state in (State.DIRTY, State.CLEAN) and unit.claim is None
