"""How results of a wipe are worded: findings from reasons, errors and holders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fleet.core import errors, unit_states
from fleet.core.messages import UNMET, ByteFigures, DeviceResult, Finding, Outcome
from fleet.core.model import WORKING, NodeName, Process, Reason, State, Unit
from fleet.core.unit_states import Event
from fleet.devices.base import NOBODY_SEEN, Unfit
from fleet.devices.health import checks
from fleet.devices.wipe.result import WipeResult
from fleet.node import instances
from fleet.node.journal.journal import Commit
from fleet.node.registry import Registry, Work

INTERRUPTIONS_MAX = unit_states.INTERRUPTIONS_MAX

Choice = Callable[[Unit], Event | None]
Also = Callable[[Commit], None] | None

HELD = Finding(
    check="holder",
    verdict="unknown",
    detail="the holder of this device is unknown (first start, or a lost or restored journal)",
    remedy="delete the pod that had it, if there is one: its teardown proves the device free;"
    " else `fleet node adopt` once nobody uses it, or reboot the node",
)
CANCELLED = Finding(
    check="wipe",
    verdict="fail",
    detail="the wipe was cancelled before it was done",
    remedy="run `fleet scrub` again, or resume the run",
)


def holder(who: str) -> Finding:
    """A foreign process, an instance that is not ours, or memory in use has the device."""
    remedy = "end that pod or process, nothing is killed for you"
    if instances.NOT_OURS in who:
        remedy = f"{instances.unwanted(who)}; nothing is removed for you"
    elif NOBODY_SEEN in who:
        remedy = (
            "end the process that has exported memory of it (it has a control node or a shared"
            " buffer open, and not the device), or reset the GPU; nothing is killed for you"
        )
    return Finding(
        check="foreign-holder",
        verdict="fail",
        detail=f"in use by {who}",
        remedy=f"{remedy}; what waits goes on by itself",
    )


def names(processes: Iterable[Process]) -> list[str]:
    """Processes by name and pid, where they have one."""
    return [f"{p.name} (pid {p.pid})" if p.pid else p.name for p in processes]


def interrupted(detail: str) -> Finding:
    """The worker died unasked."""
    return Finding(
        check="worker",
        verdict="fail",
        detail=f"the wipe worker ended before it was done: {detail}",
        remedy="tried again by itself; a third time in a row quarantines the device",
    )


def unmet(why: str) -> Finding:
    """The device passed, and falls short of what the claim demands beyond the node's policy."""
    return Finding(
        check=UNMET,
        verdict="fail",
        detail=f"the device cannot meet what the claim demands: {why}",
        remedy="ask for less in the claim's configuration, or leave it to the node's policy",
    )


def unable(why: Unfit) -> Finding:
    """The node cannot wipe the device, which is not to blame and stays as it is."""
    return Finding(
        check="node-unfit",
        verdict="fail",
        detail=f"nothing was begun, the node cannot wipe it: {why.detail}",
        remedy=f"{why.remedy}; what waits goes on by itself",
    )


def of_reason(reason: Reason) -> Finding:
    """A quarantine reason as a finding."""
    return Finding(check=reason.code, verdict="fail", detail=reason.detail, remedy=reason.remedy)


def of_error(error: errors.FleetError) -> Finding:
    """An error of the service as a finding."""
    return Finding(
        check=type(error).__name__, verdict="fail", detail=error.detail, remedy=error.remedy
    )


def of_warnings(findings: Iterable[checks.Finding]) -> list[Finding]:
    """What did not fail but should be seen."""
    return [
        Finding(check=f.check, verdict=f.verdict, detail=f.detail, remedy=f.remedy)
        for f in findings
        if f.verdict is checks.Verdict.WARN
    ]


def fault_event(unit: Unit) -> Event | None:
    """FaultSeen where the table has a row for it."""
    return Event.FAULT_SEEN if unit_states.TABLE.accepts(unit.state, Event.FAULT_SEEN) else None


def code_of(error: errors.FleetError) -> str:
    """The quarantine reason for an error that broke a wipe."""
    codes: tuple[tuple[type[errors.FleetError], str], ...] = (
        (errors.DeviceLost, "device-lost"),
        (errors.ResetFailed, "reset-failed"),
        (errors.Wedged, "wedged"),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), "backend-failed")


def breaking_event(unit: Unit) -> Event | None:
    """How a unit leaves its work when the service itself failed; None where it is in none."""
    if unit.state is State.WIPING:
        return Event.INTERRUPTED
    return Event.HEALTH_FAILED if unit.state in WORKING else None


def blamed(unit: Unit, reason: Reason) -> frozenset[Reason]:
    """The reason where the unit ends quarantined by the failure; a cut wipe alone is none."""
    cut = unit.state is State.WIPING and unit.interruptions + 1 < INTERRUPTIONS_MAX
    return frozenset() if cut else frozenset({reason})


@dataclass(frozen=True, slots=True)
class Shown:
    """Where and in which state the device is, for its result."""

    node: NodeName
    state: State


@dataclass(frozen=True, slots=True)
class Teller:
    """Words results from what the journal holds now."""

    registry: Registry

    def result(
        self,
        work: Work,
        outcome: Outcome,
        found: Sequence[Finding] = (),
        wipe: WipeResult | None = None,
        **more: str,
    ) -> DeviceResult:
        """The result of `work`, with the state its device is in."""
        shown = Shown(self.registry.place.node, self.registry.state(work.device))
        return result(work, shown, outcome, found, wipe, **more)

    def after(
        self,
        work: Work,
        outcome: Outcome,
        found: Sequence[Finding],
        wipe: WipeResult | None = None,
    ) -> DeviceResult:
        """The result after a move: QUARANTINED units say so, with every reason."""
        units = self.registry.units(work.device)
        if any(unit.state is State.QUARANTINED for unit in units):
            outcome = Outcome.QUARANTINED
        open_reasons = sorted({reason for unit in units for reason in unit.reasons})
        return self.result(work, outcome, [*map(of_reason, open_reasons), *found], wipe)

    def quarantined(self, work: Work, wipe: WipeResult | None = None) -> DeviceResult:
        """The result of a device that just failed."""
        return self.after(work, Outcome.QUARANTINED, [], wipe)


def result(
    work: Work,
    shown: Shown,
    outcome: Outcome,
    found: Sequence[Finding],
    wipe: WipeResult | None,
    **more: str,
) -> DeviceResult:
    """The result of one operation on one device."""
    device = work.device
    figures = ByteFigures(total=device.memory_bytes, residual=device.memory_bytes)
    if wipe is not None:
        coverage = wipe.coverage
        # Covered means written and verified: what a wipe that failed had taken is not.
        covered = coverage.covered if wipe.verified else 0
        figures = ByteFigures(
            total=coverage.total,
            reserved=coverage.reserved,
            covered=covered,
            residual=coverage.total - coverage.reserved - covered,
        )
    return DeviceResult(
        operation=work.operation,
        node=shown.node,
        device=device.name,
        uuid=device.uuid,
        outcome=outcome,
        state=shown.state,
        bytes=figures,
        seconds=wipe.seconds if wipe else 0.0,
        # Of bytes covered: a wipe that covered nothing had no rate, however busy it was.
        rate=wipe.rate if wipe and figures.covered else 0.0,
        started_at=wipe.started_at if wipe else 0.0,
        ended_at=wipe.ended_at if wipe else 0.0,
        findings=tuple(found),
        **more,
    )
