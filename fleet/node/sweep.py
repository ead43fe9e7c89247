"""The health sweep and what follows from it: reasons, lost trust, and who may be retested.

Devices of ours that are being wiped are skipped: the wipe judges them itself. Tenants are never
disturbed: a fault of a device in use is recorded, nothing more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fleet import errors, lifecycle
from fleet.health import checks, reasons
from fleet.journal.journal import Commit
from fleet.lifecycle import Change, Event, Fact
from fleet.model import WORKING, Device, Reason, Source, State, Unit, UnitId, Uuid
from fleet.node.registry import Registry
from fleet.node.validating import Validator

GONE = Change(facts=frozenset({Fact.WORKER_GONE}))
Before = Mapping[UnitId, Unit]
"""The units of an accelerator as they were before it was read."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one sweep saw of one accelerator."""

    device: Device
    findings: tuple[checks.Finding, ...] = ()
    error: str = ""
    at: float = 0.0

    @property
    def failing(self) -> bool:
        """Whether anything failed or could not be read."""
        return bool(self.error) or any(f.verdict is checks.Verdict.FAIL for f in self.findings)


@dataclass
class Sweep:
    """Reads every accelerator once per call and feeds the unit table."""

    registry: Registry
    validator: Validator
    last: dict[Uuid, Seen] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the service ends: the accelerators left are not read any more."""

    def run(self) -> list[Seen]:
        """Sweep all accelerators; one that does not answer never hides the others."""
        seen = []
        for device in self.registry.whole():
            if self.stop.is_set():
                break
            seen.append(self.look(device))
        return seen

    def good_at(self, device: Device) -> float:
        """When the device's accelerator was last read and judged without a fault; 0.0: never."""
        seen = self.last.get(device.accelerator)
        return 0.0 if seen is None or seen.failing else seen.at

    def look(self, device: Device) -> Seen:
        """Read and judge one whole accelerator now, and feed what is seen to its units."""
        found = self._look(device)
        self.last[device.uuid] = found
        return found

    def _look(self, device: Device) -> Seen:
        now = self.registry.clock.now()
        before = {unit.id: unit for unit in self.registry.units(device)}
        try:
            readings = self.validator.readings(device.accelerator)
            self._strangers(device, before)
        except errors.DeviceLost as error:
            return self._fault(device, "device-lost", error.detail, before)
        except errors.BackendFailed as error:
            return self._fault(device, "unresponsive", error.detail, before)
        except errors.FleetError as error:
            return self._fault(device, "backend-failed", str(error), before)
        except Exception as error:  # noqa: BLE001 - a driver may raise anything; others go on
            return self._fault(device, "backend-failed", repr(error), before)
        findings = checks.judge(readings, self.validator.policy)
        self._driver(device, str(readings.driver_version or ""), before)
        found = checks.reasons_of(findings, since=now)
        if found:
            self._move(device, _fault, Change(reasons=found), before)
        return Seen(device, findings, at=now)

    def _fault(self, device: Device, code: str, detail: str, before: Before) -> Seen:
        now = self.registry.clock.now()
        reason = reasons.make(code, Source.HEALTH, detail=detail, since=now)
        self._move(device, _fault, Change(reasons=frozenset({reason})), before)
        return Seen(device, error=detail, at=now)

    def _driver(self, device: Device, version: str, before: Before) -> None:
        """A driver that was reloaded in another version may have touched memory: trust is lost.

        The version is remembered in the transaction that drops the trust; units in work are left
        alone, and then the version is compared again by the next sweep.
        """
        key = f"driver:{device.accelerator}"
        known = self.registry.journal.meta.get(key)
        if not version or known == version:
            return
        if known is not None and self.registry.work_on(device) is not None:
            return

        def distrusted(unit: Unit) -> Event | None:
            return None if known is None else _distrust(unit)

        def remember(commit: Commit) -> None:
            commit.set_meta(key, version)

        self._move(device, distrusted, GONE, before, also=remember)

    def _strangers(self, device: Device, before: Before) -> None:
        """A foreign process on a CLEAN device may have written to it: trust is lost."""
        strangers = {process.pid for process in self.validator.foreign(device)}
        if not strangers:
            return
        accelerator = self.registry.accelerators[device.accelerator]
        for part in accelerator.devices:
            if part.whole or self.registry.state(part) is not State.CLEAN:
                continue
            if self.validator.foreign(part):
                self._move(part, _soil, GONE, before)
        placed = {
            process.pid
            for part in accelerator.devices
            if not part.whole
            for process in self.validator.foreign(part)
        }
        if strangers - placed:
            self._move(device, _soil, GONE, before)

    def _move(
        self,
        device: Device,
        event: Callable[[Unit], Event | None],
        change: Change,
        before: Before,
        *,
        also: Callable[[Commit], None] | None = None,
    ) -> None:
        """Move the units nobody wipes, that gain by it, and were not certified since the reading.

        A wipe judges its own units, and one that ended after the reading knows better.
        """
        fresh = {reason.key for reason in change.reasons}

        def chosen(unit: Unit) -> Event | None:
            certified = unit.certificate is not None
            if certified and unit.certificate != before[unit.id].certificate:
                return None
            if self.registry.wiped_now(unit.id):
                return None
            if fresh and fresh <= {reason.key for reason in unit.reasons}:
                return None
            return event(unit)

        if also is not None or any(chosen(unit) for unit in self.registry.units(device)):
            self.registry.move(device, chosen, change, also=also)


def _fault(unit: Unit) -> Event | None:
    if unit.state in WORKING:
        return None
    return Event.FAULT_SEEN if lifecycle.TABLE.accepts(unit.state, Event.FAULT_SEEN) else None


def _distrust(unit: Unit) -> Event | None:
    return Event.TRUST_LOST if unit.state in (State.CLEAN, State.IN_USE) else None


def _soil(unit: Unit) -> Event | None:
    return Event.TRUST_LOST if unit.state is State.CLEAN else None


def retestable(units: list[Unit], *, now: float, period_s: float, last: float) -> bool:
    """Whether a quarantined device may be retested by rule now."""
    stuck = [unit for unit in units if unit.state is State.QUARANTINED]
    if not stuck or 0 <= now - last < period_s:
        return False
    return all(
        unit.claim is None and all(reason.liftable for reason in unit.reasons) for unit in units
    ) and all(now - _newest(unit.reasons, unit.since) >= period_s for unit in stuck)


def _newest(found: frozenset[Reason], since: float) -> float:
    return max([reason.since for reason in found], default=since)
