"""Putting a campaign's standing into words: the live status and the final report. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from fleet.campaign import budget
from fleet.campaign import report as reports
from fleet.campaign.breaker import Breaker
from fleet.campaign.report import CampaignStatus, ExitReason, RunReport
from fleet.campaign.track import GOES_ON, Track, finding
from fleet.messages import DeviceResult, Outcome


@dataclass(frozen=True, slots=True)
class Standing:
    """All a campaign knows at one moment. Times are seconds since the epoch."""

    run: str
    now: float
    started_at: float | None
    ended_at: float | None
    tracks: tuple[Track, ...]
    nodes: tuple[DeviceResult, ...]
    """Rows of nodes that showed no devices."""
    simulated: bool
    reason: ExitReason | None
    breaker: Breaker
    service: budget.Service
    notes: tuple[str, ...]


def status(standing: Standing) -> CampaignStatus:
    """Where the campaign stands. The rate is over the time since the first order."""
    now, tracks = standing.now, standing.tracks
    lines = tuple(track.status(now) for track in tracks)
    started = [track.first_at for track in tracks if track.first_at is not None]
    elapsed_s = now - min(started) if started else 0.0
    done, total = sum(line.done for line in lines), sum(line.total for line in lines)
    wiped = sum(line.done for line, t in zip(lines, tracks, strict=True) if t.first_at is not None)
    rate = wiped / elapsed_s if elapsed_s > 0 else 0.0
    return CampaignStatus(
        run=standing.run,
        at=now,
        simulated=standing.simulated,
        devices=lines,
        phases=dict(sorted(Counter(line.phase for line in lines).items())),
        outcomes=dict(Counter(t.result.outcome for t in tracks if t.result is not None)),
        done=done,
        total=total,
        rate=rate,
        eta_s=(total - done) / rate if rate > 0 else None,
        breaker=str(standing.breaker.stance),
        notes=standing.notes,
    )


def report(standing: Standing) -> RunReport:
    """The final document; unfinished devices have a row that says why and how to go on."""
    reason = standing.reason or ExitReason.STOPPED
    rows = [track.result or _unfinished(track, reason) for track in standing.tracks]
    rows += standing.nodes
    started = standing.now if standing.started_at is None else standing.started_at
    ended = standing.now if standing.ended_at is None else standing.ended_at
    return RunReport(
        run=standing.run,
        simulated=standing.simulated,
        started_at=started,
        ended_at=ended,
        wall_s=ended - started,
        devices=tuple(rows),
        totals=reports.totals(rows, ended - started),
        node_s=spans(standing.tracks),
        exit_reason=reason,
        exit_code=reports.exit_code(rows, reason),
        detail=_detail(standing, reason),
        remedy=reports.REMEDIES[reason],
        notes=standing.notes,
    )


def uncovered(standing: Standing) -> tuple[DeviceResult, ...]:
    """Rows that no device's own end gives: kept with the run, whose record would show less than
    its report does otherwise. Without operation: they are no attempt at the device.
    """
    reason = standing.reason or ExitReason.STOPPED
    rows = [_unfinished(track, reason) for track in standing.tracks if track.result is None]
    now = standing.now
    update = {"operation": "", "ended_at": now}
    return tuple(row.model_copy(update=update) for row in (*rows, *standing.nodes))


def spans(tracks: Iterable[Track]) -> dict[str, float]:
    """Seconds from each node's first order to its last result."""
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for track in tracks:
        if track.first_at is None or track.ended_at is None:
            continue
        node = track.target.node
        first[node] = min(first.get(node, track.first_at), track.first_at)
        last[node] = max(last.get(node, track.ended_at), track.ended_at)
    return {node: last[node] - first[node] for node in sorted(first)}


def _detail(standing: Standing, reason: ExitReason) -> str:
    if reason is ExitReason.BREAKER:
        return standing.breaker.explain()
    if reason is ExitReason.LIMITS:
        policy, service = standing.breaker.policy, standing.service
        return (
            f"{len(budget.used(service, ()))} of {len(service.accelerators)} accelerators are out"
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
