"""What a node does by itself, nobody asking: prove free, sweep, clean idle devices, retest, drain.

`Tending.step` is called a few times a second; it decides and returns the devices whose wipe is due.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet import errors, leases
from fleet.leases import Closure
from fleet.lifecycle import Event
from fleet.model import Device, Holder, State, Token, Unit, Uuid
from fleet.node import sweep
from fleet.node.ports import TenantProof
from fleet.node.registry import Registry
from fleet.stores.base import LeaseStore, Release

BACKOFF_MAX_S = 60.0
"""Longest pause between two tries of a remote act."""


@dataclass(frozen=True, slots=True)
class Cadence:
    """How much at once and how often; all times in seconds."""

    max_parallel: int
    idle_delay_s: float
    sweep_period_s: float
    retest_period_s: float


@dataclass
class Tending:
    """The node's own initiative."""

    registry: Registry
    health: sweep.Sweep
    tenants: TenantProof
    store: LeaseStore
    cadence: Cadence
    _swept_at: float = float("-inf")
    _sweeping: threading.Thread | None = None
    _tried: dict[Uuid, float] = field(default_factory=dict)

    def step(self, now: float) -> list[Device]:
        """Do what is due at `now`; returns the devices to wipe because nobody holds them."""
        self._prove_free()
        self._sweep(now)
        self._drain(now)
        return [device for device in self.registry.whole() if self._due(device, now)]

    def _prove_free(self) -> None:
        for device in self.registry.whole():
            held = any(u.state is State.HELD for u in self.registry.units(device))
            if held and self.tenants.free(device.accelerator):
                self.registry.move(
                    device, lambda u: Event.PROVEN_FREE if u.state is State.HELD else None
                )

    def _sweep(self, now: float) -> None:
        if self._sweeping is not None and self._sweeping.is_alive():
            return
        if now - self._swept_at < self.cadence.sweep_period_s:
            return
        self._swept_at = now
        self._sweeping = threading.Thread(target=self.health.run, name="sweep", daemon=True)
        self._sweeping.start()

    def _due(self, device: Device, now: float) -> bool:
        """Whether a free DIRTY device is to be wiped, or a quarantined one retested by rule."""
        if self.registry.work_on(device) is not None:
            return False
        units = self.registry.units(device)
        last = self._tried.get(device.uuid, float("-inf"))
        waited = now - last >= self.cadence.idle_delay_s
        dirty = waited and _is_idle_dirty(units, now=now, delay_s=self.cadence.idle_delay_s)
        period_s = self.cadence.retest_period_s
        if not (dirty or sweep.retestable(units, now=now, period_s=period_s, last=last)):
            return False
        self._tried[device.uuid] = now
        return True

    def _drain(self, now: float) -> None:
        for row in self.registry.journal.outbox():
            if row.next_at > now:
                continue
            try:
                self._release(row.body)
            except errors.FleetError:
                later = now + min(BACKOFF_MAX_S, 2.0**row.attempts)
                with self.registry.commit() as commit:
                    commit.postpone(row.sequence, later)
                continue
            with self.registry.commit() as commit:
                commit.sent(row.sequence)

    def _release(self, body: Mapping[str, str]) -> None:
        holder, token = Holder.parse(body["holder"]), Token.parse(body["token"])
        closure = Closure(holder, token, self.registry.place.node, leases.ClosedBy.TEARDOWN)
        (released,) = self.store.release([Release(holder, token, closure)])
        if isinstance(released, errors.FleetError):
            raise released


def _is_idle_dirty(units: Sequence[Unit], *, now: float, delay_s: float) -> bool:
    free = all(u.state in (State.DIRTY, State.CLEAN) and u.claim is None for u in units)
    return free and any(u.state is State.DIRTY and now - u.since >= delay_s for u in units)
