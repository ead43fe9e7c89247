"""What a campaign says of itself: live status while it runs, one document at its end. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pydantic import Field

from fleet.control.campaign.verdict import Verdict, verdict
from fleet.core.messages import GOOD, ByteFigures, DeviceResult, Message, Moment, Outcome
from fleet.devices.wipe.result import PASSES


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
    ExitReason.STOPPED: "`fleet scrub --resume RUN` with this run goes on with what is missing",
    ExitReason.BREAKER: "look at the failures; `fleet scrub --resume RUN` tries one device first",
    ExitReason.LIMITS: "bring devices back or change limits; `fleet scrub --resume RUN` goes on",
    ExitReason.NO_DEVICES: "check the selection with `fleet devices`",
    ExitReason.UNREACHABLE: "start the node services or the driver; see `fleet status`",
}


SHOWN_MAX = 512
"""Devices up to which the live status has all of them."""


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
    at: Moment
    simulated: bool = False
    devices: tuple[DeviceStatus, ...] = ()
    """All devices; where there are more than `SHOWN_MAX`, those whose phase changed at the last
    step."""
    count: int = 0
    """Devices in all; 0: those listed."""
    phases: dict[Phase, int] = Field(default_factory=dict)
    outcomes: dict[Outcome, int] = Field(default_factory=dict)
    done: int = 0
    """Bytes over all passes: covered on devices that have ended, gone through on those in work."""
    total: int = 0
    rate: float = 0.0
    """``done``, as far as this campaign did it, per second since its first order."""
    eta_s: float | None = None
    """Seconds left at the present rate; None while there is none."""
    breaker: str = ""
    notes: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        """Devices in all, those not listed included."""
        return max(self.count, len(self.devices))

    @property
    def ended(self) -> int:
        """Devices that have come to an end, whichever."""
        return self.phases.get(Phase.DONE, 0)

    @property
    def certified(self) -> int:
        """Those of them with a certificate."""
        return self.outcomes.get(Outcome.CERTIFIED, 0)

    @property
    def failed(self) -> int:
        """Those of them that came out badly: neither certified nor left to who uses them."""
        return sum(count for outcome, count in self.outcomes.items() if outcome not in GOOD)


class Totals(Message):
    """Sums over all devices."""

    devices: int = 0
    outcomes: dict[Outcome, int] = Field(default_factory=dict)
    verdicts: dict[Verdict, int] = Field(default_factory=dict)
    """Whether devices are covered, by the six words of `fleet.control.campaign.verdict`."""
    bytes: ByteFigures = ByteFigures()
    rate: float = 0.0
    """Bytes over all passes per second of the whole campaign."""


class RunReport(Message):
    """The one JSON document of ``fleet scrub --json``."""

    run: str
    simulated: bool
    started_at: Moment
    ended_at: Moment
    wall_s: float
    devices: tuple[DeviceResult, ...]
    """One row for each device, but for those `omitted`."""
    omitted: int = 0
    """Devices without a row here, of a large fleet: `fleet runs` with the run has every result."""
    totals: Totals
    """Of all devices, those omitted included."""
    node_s: dict[str, float] = Field(default_factory=dict)
    """Seconds from a node's first start to its last result, as the campaign saw them."""
    exit_reason: ExitReason
    exit_code: int
    """0: every device came out well; 1: something was found; 2: it could not run."""
    detail: str = ""
    remedy: str = ""
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Sums:
    """What results add up to, one by one: not one of them is kept."""

    devices: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    total: int = 0
    reserved: int = 0
    covered: int = 0
    residual: int = 0

    def add(self, result: DeviceResult) -> None:
        """Count one more result in."""
        self.devices += 1
        self.outcomes[result.outcome] += 1
        self.verdicts[verdict(result)] += 1
        figures = result.bytes
        self.total += figures.total
        self.reserved += figures.reserved
        self.covered += figures.covered
        self.residual += figures.residual

    def copy(self) -> Sums:
        """Sums that go on by themselves."""
        return replace(self, outcomes=self.outcomes.copy(), verdicts=self.verdicts.copy())

    def totals(self, wall_s: float) -> Totals:
        """The sums; the rate counts the four passes over everything covered."""
        return Totals(
            devices=self.devices,
            outcomes=dict(sorted(self.outcomes.items())),
            verdicts={word: self.verdicts[word] for word in Verdict if self.verdicts[word]},
            bytes=ByteFigures(
                total=self.total,
                reserved=self.reserved,
                covered=self.covered,
                residual=self.residual,
            ),
            rate=self.covered * len(PASSES) / wall_s if wall_s > 0 else 0.0,
        )


def exit_code(results: Iterable[DeviceResult], reason: ExitReason) -> int:
    """The exit code of a campaign that ended for `reason` with these results."""
    return exit_code_of({result.outcome for result in results}, reason)


def exit_code_of(outcomes: Collection[Outcome], reason: ExitReason) -> int:
    """The exit code of a campaign that ended for `reason` and in whose results these occur."""
    if not outcomes or reason in (ExitReason.NO_DEVICES, ExitReason.UNREACHABLE):
        return 2
    return 0 if GOOD.issuperset(outcomes) and reason is ExitReason.COMPLETE else 1
