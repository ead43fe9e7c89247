"""The health sweep and what follows from it: reasons, lost trust, and who may be retested.

Devices of ours that are being wiped are skipped: the wipe judges them itself. Tenants are never
disturbed: a fault of a device in use is recorded, nothing more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from fleet.core import errors, unit_states
from fleet.core.model import WORKING, Device, Source, State, Unit, UnitId, Uuid
from fleet.core.unit_states import Change, Event, Fact
from fleet.devices.base import FindsOne, Instance, Unfit
from fleet.devices.health import checks, reasons
from fleet.devices.health.readings import LogPlace, Readings
from fleet.node import instances
from fleet.node.journal.journal import Commit
from fleet.node.registry import Registry
from fleet.node.validation import Validator

GONE = Change(facts=frozenset({Fact.WORKER_GONE}))
DRIVER = "driver:"
"""Beginning of the journal's words for the driver version of each accelerator."""
Before = Mapping[UnitId, Unit]
"""The units of an accelerator as they were before it was read."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one sweep saw of one accelerator."""

    device: Device
    findings: tuple[checks.Finding, ...] = ()
    error: str = ""
    at: float = 0.0
    unused: bool = False
    """Whether it is partitioned and nothing of it has an instance."""

    struck: frozenset[UnitId] = frozenset()
    """Units that something failed of: all of them, but for a fault of one instance."""

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
    strays: tuple[str, ...] = ()
    """Faults of no device known, as the last sweep found them; the node's matter (B39)."""
    unfit: tuple[Unfit, ...] = ()
    """What keeps devices of this node from being wiped, as the last sweep found it (F44)."""
    log_place: LogPlace | None = None
    """Where the kernel log stood when the last sweep ended: what had been looked at by then."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the service ends: the accelerators left are not read any more."""
    _roll: tuple[Uuid, ...] = ()
    _redivided: bool = False

    def run(self) -> list[Seen]:
        """Sweep all accelerators; one that does not answer never hides the others.

        What has been plugged in since is found first. An inventory that fails hides nobody either:
        each accelerator known is asked for itself.
        """
        with suppress(errors.FleetError):
            if self.registry.absent is None and self._is_changed():
                self.registry.load()
        begun = self.validator.losses.begin()
        seen = []
        with self.registry.gathered():
            for device in self.registry.whole():
                if self.stop.is_set():
                    break
                seen.append(self.look(device))
            else:
                if self.registry.absent is None:
                    self.validator.losses.end(begun)
        if self.registry.absent is not None:
            return seen
        self.unfit = self.validator.unfit()
        with suppress(errors.FleetError):  # what cannot be told now was told before, or will be
            self.strays = tuple(self.validator.strays())
        self.log_place = self.validator.log_place() or self.log_place
        return seen

    def _is_changed(self) -> bool:
        """Whether the inventory is worth reading again: that opens every device there is.

        Where the kernel tells what there is, only when it tells something else, a device had no
        memory to be seen, or one is divided otherwise than it was.
        """
        backend = self.registry.backend
        roll = tuple(backend.roll()) if isinstance(backend, FindsOne) else ()
        known, self._roll = self._roll, roll
        divided, self._redivided = self._redivided, False
        unseen = any(not device.memory_bytes for device in self.registry.whole())
        return not roll or roll != known or divided or unseen

    def good_at(self, device: Device) -> float:
        """When the device was last read and judged without a fault of it; 0.0: it never was."""
        seen = self.last.get(device.accelerator)
        if seen is None or seen.error or seen.struck.intersection(device.units):
            return 0.0
        return seen.at

    def unused(self, device: Device) -> bool:
        """Whether the device's accelerator was partitioned without any instance when last read."""
        seen = self.last.get(device.accelerator)
        return seen is not None and seen.unused

    def look(self, device: Device) -> Seen:
        """Read and judge one whole accelerator now, and feed what is seen to its units."""
        found = self._look(device)
        self.last[device.uuid] = found
        return found

    def _look(self, device: Device) -> Seen:
        now = self.registry.clock.now()
        if (absent := self.registry.absent) is not None:
            return Seen(device, error=absent.detail, at=now)  # unknown, and no fault of the device
        before = {unit.id: unit for unit in self.registry.units(device)}
        try:
            readings = self.validator.readings(device.accelerator)
            self._strangers(device, before)
        except errors.DriverAbsent as error:
            self.registry.lose(error)
            return Seen(device, error=error.detail, at=now)
        except errors.DeviceLost as error:
            return self._fault(device, "device-lost", error.detail, before)
        except errors.DriverBusy as error:
            return self.last.get(device.uuid) or Seen(device, error=error.detail, at=now)
        except errors.BackendFailed as error:
            return self._fault(device, "unresponsive", error.detail, before)
        except errors.FleetError as error:
            return self._fault(device, "backend-failed", str(error), before)
        except Exception as error:  # noqa: BLE001 - a driver may raise anything; others go on
            return self._fault(device, "backend-failed", repr(error), before)
        self._driver(device, str(readings.driver_version or ""), before)
        said = device.attributes.get("mig", "")
        if readings.mig_enabled is not None and said in ("on", "off"):
            self._redivided |= readings.mig_enabled is not (said == "on")
        struck: set[UnitId] = {*self._intruders(device, before)}
        findings = checks.judge(readings, self.validator.policy)
        for part, own in self._judged(device, readings, findings):
            if any(finding.verdict is checks.Verdict.FAIL for finding in own):
                struck.update(part.units)
            found = checks.reasons_of(own, since=now)
            if found:
                self._move(part, _fault, Change(reasons=found), before)
        unused = bool(readings.unpartitioned)
        return Seen(device, findings, at=now, unused=unused, struck=frozenset(struck))

    def _judged(
        self, device: Device, readings: Readings, whole: tuple[checks.Finding, ...]
    ) -> Iterator[tuple[Device, tuple[checks.Finding, ...]]]:
        """Units of the accelerator with the same faults, as a device, and what is found of them.

        A fault of an instance is no fault of its neighbours (promise 9); all else concerns all.
        `whole`: what is found of all that was read, in most cases the same.
        """
        groups: dict[tuple[checks.Finding, ...], list[UnitId]] = {}
        for unit in device.units:
            own = self.validator.concerning(readings, (unit,))
            alone = own is not readings
            findings = checks.judge(own, self.validator.policy) if alone else whole
            groups.setdefault(findings, []).append(unit)
        for findings, units in groups.items():
            yield replace(device, units=tuple(units)), findings

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
        key = f"{DRIVER}{device.accelerator}"
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
        accelerator = self.registry.accelerators[device.accelerator]
        found = self.validator.strangers(accelerator)
        strangers = {process.pid for process in found.get(device.uuid, ())}
        if not strangers:
            return
        placed: set[int] = set()
        for part in accelerator.devices:
            inside = {process.pid for process in found.get(part.uuid, ())}
            if part.whole or not inside:
                continue
            placed |= inside
            if self.registry.state(part) is State.CLEAN:  # another one overlaps, held or dirty
                self._move(part, _soil, GONE, before)
        if strangers - placed:
            self._move(device, _soil, GONE, before)

    def _intruders(self, device: Device, before: Before) -> frozenset[UnitId]:
        """Memory in an instance that is not ours is out of service, and says so, before anybody
        tries to wipe it (B80). Units of such memory.

        One that lies in no unit known is of a GPU that was divided from outside: all of it counts.
        """
        there: dict[UnitId, list[Instance]] = {}
        for instance in self.validator.partitions.seen.get(device.accelerator, ()):
            for unit in {*device.units}.intersection(instance.units) or device.units:
                there.setdefault(unit, []).append(instance)
        now = self.registry.clock.now()
        for unit, found in there.items():
            reason = reasons.make(
                "foreign-partition",
                Source.HEALTH,
                detail="; ".join(instances.intruder(one) for one in found),
                remedy=instances.unwanted(", ".join(instances.described(one) for one in found)),
                since=now,
            )
            part = replace(device, units=(unit,))
            self._move(part, _fault, Change(reasons=frozenset({reason})), before)
        return frozenset(there)

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
    return Event.FAULT_SEEN if unit_states.TABLE.accepts(unit.state, Event.FAULT_SEEN) else None


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
    ) and all(now - newest(unit) >= period_s for unit in stuck)


def newest(unit: Unit) -> float:
    """When the newest reason of a unit was seen, s since the epoch; without one, its state."""
    return max([reason.since for reason in unit.reasons], default=unit.since)
