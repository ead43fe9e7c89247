"""The health sweep and what follows from it: reasons, lost trust, and who may be retested.

Devices of ours that are being wiped are skipped: the wipe judges them itself. Tenants are never
disturbed: a fault of a device in use is recorded, nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fleet import errors, lifecycle
from fleet.health import checks, reasons
from fleet.lifecycle import Change, Event, Fact
from fleet.model import WORKING, Device, Reason, Source, State, Unit, Uuid
from fleet.node.registry import Registry
from fleet.node.validating import Validator

GONE = Change(facts=frozenset({Fact.WORKER_GONE}))


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

    def run(self) -> list[Seen]:
        """Sweep all accelerators; one that does not answer never hides the others."""
        seen = [self._one(device) for device in self.registry.whole()]
        self.last.update({found.device.uuid: found for found in seen})
        return seen

    def _one(self, device: Device) -> Seen:
        now = self.registry.clock.now()
        try:
            readings = self.validator.readings(device.accelerator)
        except errors.DeviceLost as error:
            self._fault(device, "device-lost", error.detail)
            return Seen(device, error=error.detail, at=now)
        except errors.BackendFailed as error:
            self._fault(device, "unresponsive", error.detail)
            return Seen(device, error=error.detail, at=now)
        findings = checks.judge(readings, self.validator.policy)
        self._driver(device, str(readings.driver_version or ""))
        found = checks.reasons_of(findings, since=now)
        if found:
            self._move(device, _fault, Change(reasons=found))
        return Seen(device, findings, at=now)

    def _fault(self, device: Device, code: str, detail: str) -> None:
        now = self.registry.clock.now()
        reason = reasons.make(code, Source.HEALTH, detail=detail, since=now)
        self._move(device, _fault, Change(reasons=frozenset({reason})))

    def _driver(self, device: Device, version: str) -> None:
        """A driver that was reloaded in another version may have touched memory: trust is lost."""
        key = f"driver:{device.accelerator}"
        known = self.registry.journal.meta.get(key)
        if not version or known == version:
            return
        if known is not None:
            self._move(device, _distrust, GONE)
        with self.registry.commit() as commit:
            commit.set_meta(key, version)

    def _move(self, device: Device, event: Callable[[Unit], Event | None], change: Change) -> None:
        """Move the units nobody works on and that gain something by it."""
        if self.registry.work_on(device) is not None:
            return
        fresh = {reason.key for reason in change.reasons}

        def chosen(unit: Unit) -> Event | None:
            known = {reason.key for reason in unit.reasons}
            if fresh and fresh <= known:
                return None
            return event(unit)

        if any(chosen(unit) for unit in self.registry.units(device)):
            self.registry.move(device, chosen, change)


def _fault(unit: Unit) -> Event | None:
    if unit.state in WORKING:
        return None
    return Event.FAULT_SEEN if lifecycle.TABLE.accepts(unit.state, Event.FAULT_SEEN) else None


def _distrust(unit: Unit) -> Event | None:
    return Event.TRUST_LOST if unit.state in (State.CLEAN, State.IN_USE) else None


def retestable(units: list[Unit], *, now: float, period_s: float, last: float) -> bool:
    """Whether a quarantined device may be retested by rule now."""
    stuck = [unit for unit in units if unit.state is State.QUARANTINED]
    if not stuck or now - last < period_s:
        return False
    return all(
        unit.claim is None and all(reason.liftable for reason in unit.reasons) for unit in units
    ) and all(now - _newest(unit.reasons, unit.since) >= period_s for unit in stuck)


def _newest(found: frozenset[Reason], since: float) -> float:
    return max([reason.since for reason in found], default=since)
