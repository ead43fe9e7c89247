"""Partitioning of a whole accelerator, switched on or off by an operator (`fleet devices`).

Only memory that nobody has is divided otherwise. Before it is switched on the whole accelerator is
judged: error counts of its memory and remapped rows can be read of the whole only, so what they
were is kept as the *baseline* of all partitions to come, and named by their certificates.

Decisions:

1. No wipe is started here: an accelerator that is not CLEAN is refused with "scrub it first". CLEAN
   means wiped, verified and certified in this boot, as a whole, with partitioning off.
2. The order and its baseline are recorded before the driver is asked, and a refusal by the driver
   after it: a crash in between leaves a record of what was attempted, never a silent change.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Protocol, cast

from fleet.core import errors
from fleet.core.model import WORKING, Device, OperationId, Process, ProcessKind, State, Uuid
from fleet.devices.base import CanDivide, CanPartition
from fleet.devices.health import checks
from fleet.node import instances, outcomes
from fleet.node.journal.journal import Commit
from fleet.node.ports import TenantProof
from fleet.node.registry import Registry, Work
from fleet.node.validation import Validator

SWITCH_S = 160.0
"""Longest that the driver may take to switch, s: it may reset the accelerator."""
_KEY = "baseline:"
NO_BASELINE = "none"


@dataclass(frozen=True, slots=True)
class Baseline:
    """How an accelerator was as a whole, just before partitioning was switched on."""

    at: float
    """Seconds since the epoch."""
    passed: bool
    counters: Mapping[str, int] = field(default_factory=dict)
    findings: Sequence[Sequence[str]] = ()
    """Check, verdict and detail of each."""
    driver_version: str = ""

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="seconds")
        return f"whole-GPU baseline {when}: {'passed' if self.passed else 'failed'}"


class Switchable(CanPartition, CanDivide, Protocol):
    """A back end that has partitions and can switch them on and off."""


def baseline(registry: Registry, accelerator: Uuid) -> Baseline | None:
    """The baseline of an accelerator; None where partitioning was never switched on by us."""
    kept = registry.journal.meta.get(f"{_KEY}{accelerator}")
    return Baseline(**json.loads(kept)) if kept else None


def told(registry: Registry, accelerator: Uuid) -> str:
    """The baseline in words, for certificates and tables."""
    return str(baseline(registry, accelerator) or NO_BASELINE)


@dataclass(frozen=True, slots=True)
class Dividing:
    """Carries out what operators order about partitioning."""

    registry: Registry
    validator: Validator
    tenants: TenantProof
    stop_wait_s: float

    def switch(self, name: str, *, on: bool, operator: str) -> Device:
        """Switch partitioning of the accelerator `name`; returns it as it is then, all of it DIRTY.

        What is so already is left so. Raises, with nothing changed: `InputInvalid`,
        `DeviceUnknown`, `DeviceBusy` while anybody has it, `DeviceUnfit` where it is not known to
        be good, `BackendFailed` where the driver does not do it, `DeviceLost`.
        """
        device = self.registry.device(name)
        if not device.whole:
            parent = self.registry.accelerators[device.accelerator].device.name
            raise errors.InputInvalid(
                f"{device.name} is a partition", remedy=f"name its accelerator: {parent}"
            )
        backend = self._backend(device)
        turn = self.validator.partitions.turn
        if turn(device, lambda: backend.partitioned(device)) is on:
            return device
        operation = OperationId(f"partitioning/{device.uuid}/{uuid.uuid4().hex[:8]}")
        work = Work(operation, device, idle=False, wipes=False)
        other = self.registry.reserve_over_idle(work, wait_s=self.stop_wait_s)
        if other is not None:
            raise errors.DeviceBusy(f"{device.name} is worked on by {other.operation}")
        try:
            self._refuse_taken(device)
            self._order(device, on=on, operator=operator)
            self.registry.load()
        finally:
            self.registry.unreserve(work)
        return self.registry.device(device.uuid)

    def _order(self, device: Device, *, on: bool, operator: str) -> None:
        act = f"partitioning {'on' if on else 'off'}"
        found = self._baseline(device) if on else None
        with self.registry.commit() as commit:
            kept = "" if found is None else json.dumps(asdict(found))
            before = commit.kept(f"{_KEY}{device.uuid}") or ""
            commit.set_meta(f"{_KEY}{device.uuid}", kept)
            self._act(act, device, operator, str(found or ""))(commit)
        try:
            self._switch(device, on=on)
        except errors.FleetError as error:
            with self.registry.commit() as commit:
                commit.set_meta(f"{_KEY}{device.uuid}", before)
                self._act(act, device, operator, f"not done: {error.detail}")(commit)
            raise

    def _switch(self, device: Device, *, on: bool) -> None:
        backend, partitions = self._backend(device), self.validator.partitions
        left = partitions.others(device)
        if left:
            named = ", ".join(f"MIG instance gi {i.ids.get('gi')}" for i in left)
            raise errors.DeviceBusy(
                f"partitioning of {device.name} is not switched while there is {named}",
                holder=named,
                remedy=instances.unwanted(", ".join(map(instances.described, left))),
            )
        gpu = device.accelerator
        partitions.turn(device, lambda: backend.divide(gpu, on=on), SWITCH_S)

    def _backend(self, device: Device) -> Switchable:
        backend = self.registry.backend
        if isinstance(backend, CanPartition) and isinstance(backend, CanDivide):
            return cast("Switchable", backend)
        raise errors.InputInvalid(
            f"{device.name}: the {backend.kind} back end has no partitioning to switch"
        )

    def _act(
        self, act: str, device: Device, operator: str, detail: str
    ) -> Callable[[Commit], None]:
        now = self.registry.clock.now()
        return lambda commit: commit.record_act(
            act, device.uuid, operator=operator, detail=detail, now=now
        )

    # --- who is in the way ---

    def _refuse_taken(self, device: Device) -> None:
        units = self.registry.units(device)
        states = {unit.state for unit in units}
        taken = states & {State.HELD, State.IN_USE, *WORKING}
        if taken:
            raise errors.DeviceBusy(
                f"{device.name} is {min(taken)}: partitioning is switched of free devices only",
                remedy="end the claim or the work on it, or prove it free, then repeat",
            )
        holders = self._claims(device, {unit.claim for unit in units if unit.claim})
        holders += outcomes.names(self._present(device))
        if created := self.tenants.created(device.uuid):
            holders.append(created)
        if holders:
            who = ", ".join(holders)
            raise errors.DeviceBusy(
                f"{device.name} is in use by {who}: its partitioning cannot be switched",
                holder=who,
                remedy=outcomes.holder(who).remedy.replace(
                    "what waits goes on by itself", "then repeat"
                ),
            )

    def _present(self, device: Device) -> list[Process]:
        """Strangers. Of daemons the back end judges: one that only keeps the driver loaded is let
        go of for the switch."""
        return [p for p in self.validator.processes(device) if p.kind is ProcessKind.FOREIGN]

    def _claims(self, device: Device, keepers: set[str]) -> list[str]:
        parts = {one.uuid for one in self.registry.accelerators[device.accelerator].devices}
        records = self.registry.journal.claims.items()
        named = {uid for uid, one in records if parts & {*one.devices, *one.attached}}
        return [f"claim {uid}" for uid in sorted({*named, *keepers})]

    # --- the baseline ---

    def _baseline(self, device: Device) -> Baseline:
        """Readings of the whole, judged. Raises `DeviceUnfit` for what is not clean and healthy."""
        units = self.registry.units(device)
        if not all(unit.state is State.CLEAN and unit.certificate for unit in units):
            state = self.registry.state(device)
            raise errors.DeviceUnfit(
                f"{device.name} is {state}: before it is partitioned it is wiped as a whole",
                remedy=f"scrub it first: `fleet scrub --select device={device.name}`, then repeat",
            )
        readings = self.validator.readings(device.accelerator)
        policy = self.validator.policy
        findings = checks.judge(readings, policy)
        if not checks.passed(findings, policy):
            not_good = (checks.Verdict.FAIL, checks.Verdict.UNKNOWN)
            bad = [f for f in findings if f.verdict in not_good]
            raise errors.DeviceUnfit(
                f"{device.name} is not partitioned, its baseline does not pass: "
                + "; ".join(f"{f.check}: {f.detail}" for f in bad),
                remedy=next((f.remedy for f in bad if f.remedy), ""),
            )
        return Baseline(
            at=readings.at,
            passed=True,
            counters=dict(readings.counters()),
            findings=[(f.check, str(f.verdict), f.detail) for f in findings],
            driver_version=str(readings.driver_version or ""),
        )
