"""What a campaign says of itself: live status while it runs, one document at its end. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

from pydantic import Field

from fleet.campaign.verdict import Verdict, counted
from fleet.messages import GOOD, ByteFigures, DeviceResult, Message, Outcome
from fleet.wipe.result import PASSES


class Phase(StrEnum):
    """Where a device stands in the campaign."""

    WAITING = "waiting"
    STARTING = "starting"
    """An order is out and the node has not confirmed it."""
    RUNNING = "running"
    DONE = "done"


class ExitReason(StrEnum):
    """Why a campaign ended."""

    COMPLETE = "complete"
    STOPPED = "stopped"
    BREAKER = "breaker"
    LIMITS = "limits"
    """A limit (budget, pool floor) lets no further device start while the fleet is as it is."""
    NO_DEVICES = "no-devices"
    UNREACHABLE = "unreachable"


REMEDIES: Mapping[ExitReason, str] = {
    ExitReason.COMPLETE: "",
    ExitReason.STOPPED: "`fleet scrub --resume` with this run goes on with what is missing",
    ExitReason.BREAKER: "look at the failures; `fleet scrub --resume` then tries one device first",
    ExitReason.LIMITS: "bring devices back or change the limits; `fleet scrub --resume` goes on",
    ExitReason.NO_DEVICES: "check the selection with `fleet devices`",
    ExitReason.UNREACHABLE: "start the node services or the driver; see `fleet status`",
}


class DeviceStatus(Message):
    """One device now. ``done`` and ``total`` are bytes over all passes, ``rate`` bytes/s."""

    node: str
    device: str
    uuid: str
    phase: Phase
    step: str = ""
    """Pass in work (fill, verify ...), or the outcome when done."""
    done: int = 0
    total: int = 0
    rate: float = 0.0


class CampaignStatus(Message):
    """The campaign now, for progress bars and plain lines."""

    run: str
    at: float
    simulated: bool = False
    devices: tuple[DeviceStatus, ...] = ()
    phases: dict[Phase, int] = Field(default_factory=dict)
    outcomes: dict[Outcome, int] = Field(default_factory=dict)
    done: int = 0
    total: int = 0
    rate: float = 0.0
    eta_s: float | None = None
    """Seconds left at the present rate; None while there is none."""
    breaker: str = ""
    notes: tuple[str, ...] = ()


class Totals(Message):
    """Sums over all devices."""

    devices: int = 0
    outcomes: dict[Outcome, int] = Field(default_factory=dict)
    verdicts: dict[Verdict, int] = Field(default_factory=dict)
    """Whether devices are covered, by the six words of `fleet.campaign.verdict`."""
    bytes: ByteFigures = ByteFigures()
    rate: float = 0.0
    """Bytes over all passes per second of the whole campaign."""


class RunReport(Message):
    """The one JSON document of ``fleet scrub --json``."""

    run: str
    simulated: bool
    started_at: float
    ended_at: float
    wall_s: float
    devices: tuple[DeviceResult, ...]
    totals: Totals
    node_s: dict[str, float] = Field(default_factory=dict)
    """Seconds from a node's first start to its last result, as the campaign saw them."""
    exit_reason: ExitReason
    exit_code: int
    """0: every device came out well; 1: something was found; 2: it could not run."""
    detail: str = ""
    remedy: str = ""
    notes: tuple[str, ...] = ()


def exit_code(results: Iterable[DeviceResult], reason: ExitReason) -> int:
    """The exit code of a campaign that ended for `reason` with these results."""
    outcomes = {result.outcome for result in results}
    if not outcomes or reason in (ExitReason.NO_DEVICES, ExitReason.UNREACHABLE):
        return 2
    return 0 if outcomes <= GOOD and reason is ExitReason.COMPLETE else 1


def totals(results: Iterable[DeviceResult], wall_s: float) -> Totals:
    """Sums over `results`; the rate counts the four passes over everything certified or not."""
    found = tuple(results)
    figures = ByteFigures(
        total=sum(r.bytes.total for r in found),
        reserved=sum(r.bytes.reserved for r in found),
        covered=sum(r.bytes.covered for r in found),
        residual=sum(r.bytes.residual for r in found),
    )
    return Totals(
        devices=len(found),
        outcomes=dict(sorted(Counter(r.outcome for r in found).items())),
        verdicts=counted(found),
        bytes=figures,
        rate=figures.covered * len(PASSES) / wall_s if wall_s > 0 else 0.0,
    )
