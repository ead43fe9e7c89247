"""After the wipe: is the device healthy, and does it need a reset to be?

Counters are compared before any reset, because a reset zeroes them. A device that asks for a reset
is reset by policy (`always`, `on-fault`, `never`) and judged again; one that still asks fails, and
so does one that was not reset although it was to be: with what the reset's tool said (B41).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from fleet.core import errors
from fleet.core.model import Accelerator, Device, Process, ProcessKind, Reason, Source, UnitId, Uuid
from fleet.core.settings import HealthPolicy, ResetPolicy, WipePolicy
from fleet.devices.base import (
    CanReset,
    TellsFitness,
    TellsHolders,
    TellsLog,
    TellsOpeners,
    TellsStrays,
    Unfit,
)
from fleet.devices.health import checks, reasons
from fleet.devices.health.closures import open_only
from fleet.devices.health.readings import LogPlace, Readings, narrowed, risen
from fleet.devices.wipe.result import Failure, WipeResult
from fleet.evidence.certificate import Reset
from fleet.node import closures, stays
from fleet.node.bounded import BoundedCalls
from fleet.node.kernel_log_gaps import Losses
from fleet.node.partitions import READ_S, Partitions, strangers
from fleet.node.registry import Registry

CURABLE = frozenset({"reset-required", "remap-pending", "recovery-action"})
_Refusal = tuple[str, str]
"""Reason code and words of a reset that was tried and not done."""
"""Reasons that describe a state which a reset ends, not an event."""

T = TypeVar("T")
BUSY_PAUSE_S = 0.2
FIT_FOR_S, UNFIT_FOR_S = 60.0, 2.0
"""Time, s, for which it counts that nothing keeps the node from wiping, and that something does."""
RESET_TIMEOUT_S = 160.0
"""A PCI reset may block for about a minute before it answers, the vendor's tool for longer."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The health verdict that goes with a wipe."""

    healthy: bool
    findings: tuple[checks.Finding, ...]
    reasons: frozenset[Reason]
    readings: Readings
    reset: Reset
    unmet: str = ""
    """Why a reset that only a claim demanded was not done; its failure is none of the device."""


class Validator:
    """Reads and judges accelerators, within bounds."""

    def __init__(self, registry: Registry, calls: BoundedCalls, policy: HealthPolicy) -> None:
        self._registry = registry
        self._calls = calls
        self.policy = policy
        self._pause = threading.Event()
        self._fitness = threading.Lock()
        self._unfit: tuple[Unfit, ...] = ()
        self._fit_until = float("-inf")
        self.losses = Losses(registry)
        """Records of the kernel log that were overwritten before anybody read them."""
        self.partitions = Partitions(registry, calls)
        """Instances of partitions: they take turns with what is read here."""

    def readings(self, accelerator: Uuid) -> Readings:
        """Readings now, without what is closed in the kernel log (B58).

        Raises `DeviceLost`, `BackendFailed` (also when it takes too long).
        """
        backend = self._registry.backend
        found = self._calls.run(
            str(accelerator),
            lambda: backend.readings(accelerator),
            timeout_s=self.policy.reading_timeout_s,
        )
        self.losses.read(accelerator, found.log)
        return self._open(accelerator, found)

    def log_place(self) -> LogPlace | None:
        """Where the kernel log stands now; None where it cannot be told."""
        backend = self._registry.backend
        if not isinstance(backend, TellsLog):
            return None
        try:
            found = self._calls.run(
                "kernel log", backend.log_state, timeout_s=self.policy.reading_timeout_s
            )
        except errors.FleetError:
            return None
        return found.place if found is not None else None

    def _open(self, accelerator: Uuid, readings: Readings) -> Readings:
        known = self._registry
        return open_only(readings, closures.closed(known.journal, accelerator, known.boot_id))

    def _repaired(self, device: Device, before: Readings | None) -> None:
        """A reset ends what was logged before it, whether or not the log took our mark of it."""
        log = before.log if before is not None else None
        if log is not None:
            known = self._registry
            # A journal that cannot be written is told elsewhere; here it leaves the faults open.
            with suppress(errors.FleetError), known.commit() as commit:
                closures.repair(commit, device.accelerator, known.boot_id, log.place)

    def concerning(self, readings: Readings, units: Iterable[UnitId]) -> Readings:
        """`readings` of an accelerator without what is the matter of other units of it only (B70),
        and without what is closed in the kernel log (B58).

        A fault of an instance concerns the memory that instance had; what names none, or one that
        is not known, concerns all.
        """
        wanted = frozenset(units)
        accelerator = Uuid(next(iter(wanted), "").rpartition("/")[0])

        def concerns(gi: int, at_s: float | None) -> bool:
            known = self._registry
            struck = stays.struck(known.journal, accelerator, known.boot_id, gi=gi, at_s=at_s)
            return struck is None or bool(struck & wanted)

        return narrowed(self._open(accelerator, readings), concerns)

    def processes(self, device: Device) -> Sequence[Process]:
        """Processes on the device: of a partition its own only. Raises `BackendFailed`.

        An instance of a partition that is not ours counts as one: who uses it need not be seen.
        """
        backend = self._registry.backend
        if self._registry.absent is not None and isinstance(backend, TellsOpeners):
            return self._openers(backend, device)
        found = self._calls.run(
            str(device.accelerator),
            lambda: backend.processes(device.uuid),
            timeout_s=self.policy.reading_timeout_s,
        )
        return [*found, *self.partitions.foreign(device)]

    def _openers(self, backend: TellsOpeners, device: Device) -> Sequence[Process]:
        """Who has the device open by the kernel's word: its driver is away, and not asked."""
        ids = self.partitions.ids(device.uuid)
        return self._calls.run(
            f"openers of {device.uuid}",
            lambda: backend.openers(device, ids),
            timeout_s=self.policy.reading_timeout_s,
        )

    def strangers(self, accelerator: Accelerator) -> Mapping[Uuid, Sequence[Process]]:
        """By device of the accelerator what `foreign` says of it, in one look where that can be.

        Raises `BackendFailed`, `DeviceLost`.
        """
        backend, whole = self._registry.backend, accelerator.device
        if len(accelerator.devices) == 1:
            return {whole.uuid: self.foreign(whole)}
        if not isinstance(backend, TellsHolders):
            if not (found := self.foreign(whole)):
                return {}
            parts = [device for device in accelerator.devices if not device.whole]
            return {whole.uuid: found, **{part.uuid: self.foreign(part) for part in parts}}
        told = self._calls.run(
            str(accelerator.uuid),
            lambda: backend.holders(accelerator.uuid),
            timeout_s=READ_S,
        )
        there = self.partitions.strange(whole)
        return {
            device.uuid: [
                process
                for process in (*told.get(device.uuid, ()), *strangers(there, device))
                if process.kind is ProcessKind.FOREIGN
            ]
            for device in accelerator.devices
        }

    def strays(self) -> Sequence[str]:
        """Faults that belong to no device known, in words. Raises `BackendFailed`."""
        backend = self._registry.backend
        if not isinstance(backend, TellsStrays):
            return ()
        timeout_s = self.policy.reading_timeout_s
        return self._calls.run("strays", backend.strays, timeout_s=timeout_s)

    def unfit(self) -> tuple[Unfit, ...]:
        """What keeps accelerators of this node from being wiped, and is none of their fault (F44).

        Asked of the back end once for all that want to know at the same time. What cannot be asked
        now is no finding: the wipe meets it.
        """
        backend, clock = self._registry.backend, self._registry.clock
        if not isinstance(backend, TellsFitness):
            return ()
        with self._fitness:
            if clock.monotonic() >= self._fit_until:
                with suppress(errors.FleetError, OSError):
                    self._unfit = tuple(
                        self._calls.run(
                            "fitness", backend.unfit, timeout_s=self.policy.reading_timeout_s
                        )
                    )
                # After a look that failed too: a driver that hangs must not hold up every wipe.
                good_for_s = UNFIT_FOR_S if self._unfit else FIT_FOR_S
                self._fit_until = clock.monotonic() + good_for_s
            return self._unfit

    def foreign(self, device: Device, *, patient: bool = False) -> Sequence[Process]:
        """Processes on the device that are neither ours nor infrastructure.

        `patient`: wait while the driver is busy with something else.
        """
        found = self._awaited(lambda: self.processes(device)) if patient else self.processes(device)
        return [p for p in found if p.kind is ProcessKind.FOREIGN]

    def _awaited(self, ask: Callable[[], T]) -> T:
        """The answer once the driver is not busy with something else; a reset may take minutes.

        Raises what `ask` raises, `DriverBusy` when even that was not long enough.
        """
        clock = self._registry.clock
        until = clock.monotonic() + RESET_TIMEOUT_S
        while True:
            try:
                return ask()
            except errors.DriverBusy:
                if clock.monotonic() >= until:
                    raise
            self._pause.wait(BUSY_PAUSE_S)

    def judge(
        self,
        device: Device,
        wipe: WipeResult,
        policy: WipePolicy,
        *,
        demand: WipePolicy | None = None,
        earlier: Verdict | None = None,
    ) -> Verdict:
        """Judge the device after a verified wipe, resetting it where policy (or demand) asks.

        `earlier`: the verdict that came with a reset, after which it was wiped again: it is not
        reset a second time. Raises `ResetFailed`, `Wedged`, and what `readings` raises.
        """
        now, wipe = self._now(device), self._own(device, wipe)
        first = now
        findings = checks.judge(now, self.policy, before=wipe.before, under_load=wipe.under_load)
        asked = checks.needs_reset(findings)
        refused: _Refusal | None = None
        unmet = ""
        if earlier is not None:
            reset, unmet = earlier.reset, earlier.unmet
        elif (done := _done(wipe)) is not None:
            reset = done
        else:
            reset, refused = self._reset(device, policy, asked=asked)
        if earlier is None and demand is not None and not reset.performed:
            reset, unmet = self._demanded(device, policy.tightened_by(demand), reset, asked=asked)
        if earlier is None and reset.performed:
            self._repaired(device, wipe.before if wipe.scrub is not None else first)
        if earlier is None and (reset.performed or unmet):
            now = self._now(device)
            old = _from_before(wipe)
            findings = _after_reset(findings, checks.judge(now, self.policy), old)
        healthy = checks.passed(findings, self.policy) and not checks.needs_reset(findings)
        found = checks.reasons_of(findings, since=self._registry.clock.now())
        if refused is not None and not reset.performed:
            healthy = False
            found |= {self._reason(*refused)}
        if not healthy and not found:
            found = frozenset({self._reason("health-unknown", "a mandatory check is unknown")})
        return Verdict(healthy, tuple(findings), found, now, reset, unmet)

    def _now(self, device: Device) -> Readings:
        now = self._awaited(lambda: self.readings(device.accelerator))
        return self.concerning(now, device.units)

    def _own(self, device: Device, wipe: WipeResult) -> WipeResult:
        """What was read around and during a wipe, as far as it concerns its device."""

        def own(readings: Readings | None) -> Readings | None:
            return None if readings is None else self.concerning(readings, device.units)

        before, after = own(wipe.before), own(wipe.after)
        return replace(wipe, before=before, after=after, under_load=own(wipe.under_load))

    def _demanded(
        self, device: Device, policy: WipePolicy, own: Reset, *, asked: bool
    ) -> tuple[Reset, str]:
        """The reset that a claim demands beyond the policy; `own` is what the policy came to.

        Of one that fails only the readings afterwards tell whether the device is at fault.
        """
        try:
            reset, refused = self._reset(device, policy, asked=asked)
        except errors.BackendFailed as error:
            return own, f"the reset it demands failed: {error.detail}"
        unmet = "" if refused is None else f"the reset it demands was not done: {refused[1]}"
        return reset, unmet

    def _reset(
        self, device: Device, policy: WipePolicy, *, asked: bool
    ) -> tuple[Reset, _Refusal | None]:
        """The reset, or why there is none; and with it what refused one that was tried.

        Raises `ResetFailed` where it was tried and failed, `Wedged`, `DeviceLost`, `DriverBusy`.
        """
        why = self._unasked(device, policy, asked=asked)
        if why:
            return Reset(performed=False, method="", reason=why), None
        backend = self._registry.backend
        assert isinstance(backend, CanReset)  # noqa: S101 - else there was a reason against it
        try:
            outcome = self._awaited(
                lambda: self._calls.run(
                    str(device.accelerator),
                    lambda: backend.reset(device.accelerator),
                    timeout_s=RESET_TIMEOUT_S,
                )
            )
        except (errors.DriverBusy, errors.Wedged, errors.ResetFailed):
            raise
        except errors.BackendFailed as error:
            raise errors.ResetFailed(error.detail, remedy=error.remedy) from error
        why = outcome.detail or ("a fault asked for it" if asked else "policy is always")
        reset = Reset(performed=outcome.done, method=outcome.method, reason=why)
        if outcome.done:
            return reset, None
        return reset, ("reset-refused" if outcome.holders else "reset-failed", why)

    def _unasked(self, device: Device, policy: WipePolicy, *, asked: bool) -> str:
        """Why no reset is tried; "" where one is."""
        backend = self._registry.backend
        if policy.reset is ResetPolicy.NEVER:
            return "the device asks for a reset; policy is never" if asked else "policy is never"
        if policy.reset is ResetPolicy.ON_FAULT and not asked:
            return "policy is on-fault and no fault asked for one"
        if not isinstance(backend, CanReset):
            return f"the {backend.kind} back end cannot reset"
        if not device.whole:
            return "a reset would hit the neighbours of this partition"
        return ""

    def reasons_for(self, device: Device, wipe: WipeResult, *, since: float) -> frozenset[Reason]:
        """Why a failed wipe quarantines: its own failure and whatever the readings show."""
        found: set[Reason] = set()
        wipe = self._own(device, wipe)
        if wipe.after is not None:
            findings = checks.judge(
                wipe.after, self.policy, before=wipe.before, under_load=wipe.under_load
            )
            found.update(checks.reasons_of(findings, since=since))
        failure = wipe.failure or Failure.BACKEND
        if not (failure is Failure.COUNTERS and found):
            found.add(reasons.make(failure, Source.WIPE, detail=wipe.detail, since=since))
        return frozenset(found)

    def _reason(self, code: str, detail: str) -> Reason:
        now = self._registry.clock.now()
        return reasons.make(code, Source.HEALTH, detail=detail, since=now)


def _done(wipe: WipeResult) -> Reset | None:
    """The reset that the wipe itself was made of, after which all readings were taken."""
    if wipe.scrub is None:
        return None
    reason = "the device cannot be wiped in any other way"
    return Reset(performed=wipe.scrub.performed, method=wipe.scrub.method, reason=reason)


def _from_before(wipe: WipeResult) -> frozenset[str]:
    """Checks whose readings did not move during the wipe: what they show is an older fault."""
    if wipe.before is None or wipe.after is None:
        return frozenset()
    moved = set(risen(wipe.before, wipe.after))
    if wipe.before.xids != wipe.after.xids:
        moved.add("xids")
    return frozenset(check.name for check in checks.CHECKS if check.reading not in moved)


def _after_reset(
    before: Sequence[checks.Finding], after: Sequence[checks.Finding], old: AbstractSet[str]
) -> tuple[checks.Finding, ...]:
    """The verdict after a reset: what a reset cures is judged anew, everything else stands.

    A fault that happened during the wipe (an Xid, an uncorrectable error) happened, whatever the
    registers say after the reset has zeroed them. One that was there before the wipe began was the
    reason for the reset, and is over with it.
    """
    renewed = {finding.check: finding for finding in after}
    return tuple(
        renewed[found.check]
        if found.reason in CURABLE
        or (found.action is checks.Action.RESET and found.check in old)
        or renewed[found.check].verdict is checks.Verdict.FAIL
        else found
        for found in before
    )
