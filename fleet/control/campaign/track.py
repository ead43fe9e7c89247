"""One device's way through a campaign: where it stands and how its end is told. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.control.campaign.report import DeviceStatus, Phase
from fleet.control.campaign.targets import Target, touched
from fleet.core import errors
from fleet.core.messages import (
    GOOD,
    Acceptance,
    ByteFigures,
    DeviceResult,
    DeviceView,
    Finding,
    NodeView,
    Outcome,
    WipeProgress,
)
from fleet.core.model import Lease, State
from fleet.devices.wipe.result import PASSES

GOES_ON = "`fleet scrub --resume RUN` with this run goes on with it"


@dataclass(slots=True)
class Track:
    """One device in one campaign. Changed only by the campaign's step."""

    target: Target
    run: str
    attempt: int = 1
    phase: Phase = Phase.WAITING
    lease: Lease | None = None
    renewed_at: float = 0.0
    lease_lost: bool = False
    """The lease ran out while the wipe was in work."""
    resend: bool = False
    """The node does not know the order although it may have been sent."""
    incarnation: str = ""
    """Incarnation of the node that accepted the order."""
    ordered_at: float | None = None
    """When the first order of this attempt went out."""
    first_at: float | None = None
    ended_at: float | None = None
    cancelled_at: float | None = None
    """When it was cancelled because it took too long."""
    refused_since: float | None = None
    retry_at: float = 0.0
    holder: str = ""
    """Who held the device when it was last refused."""
    progress: WipeProgress | None = None
    result: DeviceResult | None = None
    """How it ended, as long as the roster remembers it."""
    noted: Phase | None = None
    """The phase by which the roster has it."""

    @property
    def operation(self) -> str:
        """Stable across retries of the same order, so that no order is carried out twice."""
        return f"{self.run}/{self.target.uuid}/{self.attempt}"

    @property
    def in_flight(self) -> bool:
        """Whether the node may be working on it for us."""
        return self.phase in (Phase.STARTING, Phase.RUNNING)

    @property
    def bytes(self) -> tuple[int, int, int]:
        """Of a device in flight: bytes done, to be done, and as they were reckoned before."""
        nominal = self.target.memory_bytes * len(PASSES)
        if self.progress is None:
            return 0, nominal, nominal
        return self.progress.done, self.progress.total or nominal, nominal

    def wait(self, *, retry_at: float = 0.0) -> None:
        """Back to the queue, without an order out."""
        self.phase, self.resend, self.retry_at = Phase.WAITING, False, retry_at
        self.progress, self.ordered_at, self.cancelled_at = None, None, None

    def status(self, now: float) -> DeviceStatus:
        """The device's line in the live status."""
        target, total = self.target, self.target.memory_bytes * len(PASSES)
        done, step, rate = 0, "", 0.0
        if self.result is not None:
            done, total = worth(self.result, total)
            step, rate = str(self.result.outcome), self.result.rate if done else 0.0
        elif self.progress is not None:
            done, step = self.progress.done, self.progress.phase
            total = self.progress.total or total
            elapsed = now - self.progress.started_at
            rate = done / elapsed if elapsed > 0 else 0.0
        return DeviceStatus(
            node=target.node,
            device=target.name,
            uuid=target.uuid,
            phase=self.phase,
            step=step,
            done=done,
            total=total,
            rate=rate,
        )

    def tell(self, outcome: Outcome, *findings: Finding, state: str = "") -> DeviceResult:
        """A result the campaign itself gives, where no node gave one."""
        target = self.target
        return DeviceResult(
            operation=self.operation if self.first_at is not None else "",
            node=target.node,
            device=target.name,
            uuid=target.uuid,
            outcome=outcome,
            state=state or target.state,
            bytes=ByteFigures(total=target.memory_bytes, residual=target.memory_bytes),
            findings=findings,
        )

    def timed(self, result: DeviceResult, now: float) -> DeviceResult:
        """A result with the state the device was found in, and times where its node told none."""
        update: dict[str, object] = {"before": self.target.state}
        if not result.ended_at:
            update |= {"started_at": self.first_at or 0.0, "ended_at": now}
        return result.model_copy(update=update)

    def overdue(self, result: DeviceResult, limit_s: float) -> DeviceResult:
        """A result, with what it means that the device was cancelled for taking too long."""
        if self.cancelled_at is None or result.outcome is not Outcome.INTERRUPTED:
            return result
        told = (*result.findings, late(limit_s))
        return result.model_copy(update={"outcome": Outcome.FAILED, "findings": told})

    def told(self, result: DeviceResult) -> DeviceResult:
        """A node's result, with what the campaign knows besides."""
        if not self.lease_lost:
            return result
        warning = Finding(
            check="lease",
            verdict="warn",
            detail="the campaign's lease ran out before the wipe ended",
            remedy="the wipe counts for hygiene, never for exposure; nothing needs to be done",
        )
        return result.model_copy(update={"findings": (*result.findings, warning)})


def worth(result: DeviceResult, nominal: int) -> tuple[int, int]:
    """Bytes over all passes that an ended device covered, and that it could have: what is reserved
    by its driver nobody covers, nor what a tenant has or a reset alone can reach. `nominal`: those
    of all its memory.
    """
    figures, passes = result.bytes, len(PASSES)
    if not figures.covered:
        return 0, 0 if result.outcome in GOOD else nominal
    return figures.covered * passes, (figures.total - figures.reserved) * passes


def view_of(view: NodeView, uuid: str) -> DeviceView | None:
    """The device's view on its node, if the node still lists it."""
    return next((device for device in view.devices if device.uuid == uuid), None)


def unfit(track: Track, view: NodeView) -> DeviceResult | None:
    """The outcome of a device that must not be started now; None when it may be."""
    target, device = track.target, view_of(view, track.target.uuid)
    if device is None:
        gone = finding("present", "the node does not list the device any more", "see its log")
        return track.tell(Outcome.UNREACHABLE, gone, state="unknown")
    if touched(view, target):
        return track.tell(Outcome.IN_USE, state=State.IN_USE)
    if device.state == State.HELD:
        held = finding(
            "holder",
            "; ".join(view.degraded) or "nobody has proven that the device is free",
            "`fleet node adopt` records that the devices of this node are free",
        )
        return track.tell(Outcome.HELD, held, state=State.HELD)
    stuck = [reason for reason in device.reasons if not reason.liftable]
    if device.state == State.QUARANTINED and stuck:
        found = [finding(reason.code, reason.detail, reason.remedy) for reason in stuck]
        return track.tell(Outcome.QUARANTINED, *found, state=State.QUARANTINED)
    return None


def unlisted(track: Track) -> DeviceResult:
    """The outcome of a device that nobody agreed to: it turned up after the list was confirmed."""
    why = finding(
        "confirmation",
        "it was not in the list of devices that was confirmed",
        "run `fleet scrub` again and confirm the list that names it",
    )
    return track.tell(Outcome.REFUSED, why)


def finding(check: str, detail: str, remedy: str, *, verdict: str = "fail") -> Finding:
    """A finding of the campaign's own."""
    return Finding(check=check, verdict=verdict, detail=detail, remedy=remedy)


def late(limit_s: float) -> Finding:
    """What is said of a device that did not end in time."""
    return finding(
        "device-timeout",
        f"the node reported no result within {limit_s:g} s",
        "see the device with `fleet devices`; raise device_timeout_s if it is merely slow",
    )


def of_error(check: str, error: errors.FleetError) -> Finding:
    """A finding that tells an error."""
    return finding(check, error.detail, error.remedy)


def error_of(acceptance: Acceptance) -> errors.FleetError:
    """The error of a refused order, with the class the node named (unknown names are permanent)."""
    kind = getattr(errors, acceptance.kind, errors.Permanent)
    if not (isinstance(kind, type) and issubclass(kind, errors.FleetError)):
        kind = errors.Permanent
    error: errors.FleetError = kind(acceptance.error or "the node refused the order")
    error.fields.update(acceptance.fields)
    return error


def whole_node(name: str, error: errors.FleetError) -> DeviceResult:
    """The row of a node that showed no devices: unknown, never "done, 0 devices"."""
    return DeviceResult(
        node=name,
        device="*",
        uuid=f"{name}/*",
        outcome=Outcome.UNREACHABLE,
        state="unknown",
        findings=(of_error("node", error),),
    )
