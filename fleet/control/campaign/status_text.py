"""Putting a campaign's standing into words: the live status and the final report. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fleet.control.campaign import budget
from fleet.control.campaign import report as reports
from fleet.control.campaign.breaker import Breaker
from fleet.control.campaign.report import SHOWN_MAX, CampaignStatus, ExitReason, Phase, RunReport
from fleet.control.campaign.roster import Roster
from fleet.control.campaign.track import GOES_ON, Track, finding
from fleet.core.messages import DeviceResult, Outcome


@dataclass(frozen=True, slots=True)
class Standing:
    """All a campaign knows at one moment. Times are seconds since the epoch."""

    run: str
    now: float
    started_at: float | None
    ended_at: float | None
    roster: Roster
    nodes: tuple[DeviceResult, ...]
    """Rows of nodes that showed no devices."""
    simulated: bool
    reason: ExitReason | None
    breaker: Breaker
    service: budget.Service
    notes: tuple[str, ...]


def status(standing: Standing) -> CampaignStatus:
    """Where the campaign stands. The rate is over the time since the first order."""
    now, roster = standing.now, standing.roster
    shown: Iterable[Track] = roster.moved.values()
    if len(roster.tracks) <= SHOWN_MAX:
        shown = sorted(roster.tracks.values(), key=lambda track: track.target)
    flying = [track.bytes for track in roster.flying.values()]
    running = sum(done for done, _, _ in flying)
    elapsed_s = 0.0 if roster.began_at is None else now - roster.began_at
    done = roster.done_bytes + running
    total = roster.total_bytes + sum(total - nominal for _, total, nominal in flying)
    left = total - roster.ended_bytes - running
    rate = (roster.wiped_bytes + running) / elapsed_s if elapsed_s > 0 else 0.0
    return CampaignStatus(
        run=standing.run,
        at=now,
        simulated=standing.simulated,
        devices=tuple(track.status(now) for track in shown),
        count=len(roster.tracks),
        phases={phase: count for phase, count in sorted(roster.phases.items()) if count},
        outcomes=dict(roster.sums.outcomes),
        done=done,
        total=total,
        rate=rate,
        eta_s=left / rate if rate > 0 else None,
        breaker=str(standing.breaker.stance),
        notes=standing.notes,
    )


def report(standing: Standing) -> RunReport:
    """The final document; unfinished devices have a row that says why and how to go on."""
    reason, roster = standing.reason or ExitReason.STOPPED, standing.roster
    sums, rows = roster.sums.copy(), []
    for track in sorted(roster.tracks.values(), key=lambda track: track.target):
        row = track.result
        if track.phase is not Phase.DONE:
            row = _unfinished(track, reason)
            sums.add(row)
        if row is not None:
            rows.append(row)
    for row in standing.nodes:
        sums.add(row)
    rows += standing.nodes
    omitted = sums.devices - len(rows)
    started = standing.now if standing.started_at is None else standing.started_at
    ended = standing.now if standing.ended_at is None else standing.ended_at
    return RunReport(
        run=standing.run,
        simulated=standing.simulated,
        started_at=started,
        ended_at=ended,
        wall_s=ended - started,
        devices=tuple(rows),
        omitted=omitted,
        totals=sums.totals(ended - started),
        node_s=dict(roster.spans()),
        exit_reason=reason,
        exit_code=reports.exit_code_of(sums.outcomes, reason),
        detail=_detail(standing, reason),
        remedy=reports.REMEDIES[reason],
        notes=(*standing.notes, *([_omitted(standing.run, omitted)] if omitted else [])),
    )


def _omitted(run: str, count: int) -> str:
    return f"{count} devices are counted and have no row here: `fleet runs {run}` has every result"


def uncovered(standing: Standing) -> Iterator[DeviceResult]:
    """Rows that no device's own end gives: kept with the run, whose record would show less than
    its report does otherwise. Without operation: they are no attempt at the device.
    """
    reason = standing.reason or ExitReason.STOPPED
    update = {"operation": "", "ended_at": standing.now}
    for track in standing.roster.open():
        yield _unfinished(track, reason).model_copy(update=update)
    for row in standing.nodes:
        yield row.model_copy(update=update)


def _detail(standing: Standing, reason: ExitReason) -> str:
    if reason is ExitReason.BREAKER:
        return standing.breaker.explain()
    if reason is ExitReason.LIMITS:
        policy, service = standing.breaker.policy, standing.service
        return (
            f"{len(service.out)} of {len(service.accelerators)} accelerators are out"
            f" of service, allowed {budget.limit(service, policy)};"
            f" pool floor {policy.pool_floor:g}"
        )
    return ""


def _unfinished(track: Track, reason: ExitReason) -> DeviceResult:
    """The row of a device the run ended without."""
    if reason is ExitReason.STOPPED:
        why = finding("run", "the campaign was stopped before the device was done", GOES_ON)
        return track.tell(Outcome.INTERRUPTED, why)
    why = finding("run", f"not started: {reason}", reports.REMEDIES[reason])
    return track.tell(Outcome.REFUSED, why)
