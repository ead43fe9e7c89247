"""All devices of a campaign, indexed by where they stand, and what the ended ones come to. Pure.

Every step asks who is in flight, who waits, and how far the campaign is. The answers are kept up to
date as devices move (`note`, `ended`), so that a step costs what moves and not what there is. Of a
large fleet the roster forgets the results of devices that came out well: the store has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from fleet.control.campaign.plan import Line
from fleet.control.campaign.report import Phase, Sums
from fleet.control.campaign.track import Track, worth
from fleet.core.messages import GOOD, DeviceResult
from fleet.devices.wipe.result import PASSES

ROWS_KEPT = 10_000
"""Results a campaign remembers, for its report. Where there are more devices, those that came out
well and have nothing to tell go first; the run store has all."""


class Roster:
    """The devices. `rows_kept`: see `ROWS_KEPT`."""

    def __init__(self, tracks: Iterable[Track] = (), *, rows_kept: int = ROWS_KEPT) -> None:
        self.tracks: dict[str, Track] = {}
        self.flying: dict[str, Track] = {}
        self.line = Line()
        self.phases: Counter[Phase] = Counter()
        self.sums = Sums()
        self.began_at: float | None = None
        """When the first order went out, seconds since the epoch."""
        self.total_bytes = 0
        """Bytes over all passes of all devices."""
        self.ended_bytes = 0
        """Those of devices that have ended, however they did."""
        self.done_bytes = 0
        """Those of them that were covered."""
        self.wiped_bytes = 0
        """Those covered on devices that were started by this campaign."""
        self.moved: dict[str, Track] = {}
        """Devices whose phase changed since `turn`."""
        self.rows = 0
        """Results remembered."""
        self._rows_kept = rows_kept
        self._of_node: dict[str, list[Track]] = {}
        self._spans: dict[str, tuple[float, float]] = {}
        for track in tracks:
            self.add(track)

    def add(self, track: Track) -> None:
        """A device that was not known before; it may have ended already."""
        self.tracks[track.target.uuid] = track
        self._of_node.setdefault(track.target.node, []).append(track)
        self.total_bytes += _bytes(track)
        if len(self.tracks) == self._rows_kept + 1:
            self._forget_plain()
        self.note(track)
        if track.result is not None:
            self.ended(track, track.result)

    def turn(self) -> None:
        """A new step begins."""
        self.moved = {}

    def of_node(self, node: str) -> list[Track]:
        """The devices of a node."""
        return self._of_node.get(node, [])

    def flying_by_node(self) -> dict[str, list[Track]]:
        """The devices in flight."""
        found: dict[str, list[Track]] = {}
        for track in self.flying.values():
            found.setdefault(track.target.node, []).append(track)
        return found

    def waiting_on(self, node: str) -> list[Track]:
        """Devices of a node that wait, in order."""
        return [self.tracks[target.uuid] for target in self.line.on(node)]

    def waits(self, now: float, *, but: Collection[str]) -> bool:
        """Whether anything waits that is due, on other nodes than these."""
        return any(
            track.retry_at <= now
            for node in self.line.nodes
            if node not in but
            for track in self.waiting_on(node)
        )

    def resends(self, nodes: Iterable[str]) -> list[Track]:
        """Devices of these nodes whose order the node does not know and is to be told again."""
        return [
            track
            for node in nodes
            for track in self.of_node(node)
            if track.resend and track.phase is Phase.STARTING
        ]

    def note(self, track: Track) -> None:
        """The device may stand elsewhere now."""
        began_at = track.first_at
        if began_at is not None and (self.began_at is None or began_at < self.began_at):
            self.began_at = began_at
        old, new = track.noted, track.phase
        if old is new:
            return
        track.noted = new
        target = track.target
        self.moved[target.uuid] = track
        self.phases[new] += 1
        if old is not None:
            self.phases[old] -= 1
        flew, flies = target.uuid in self.flying, track.in_flight
        if flies and not flew:
            self.flying[target.uuid] = track
            self.line.load(target.node, 1)
        elif flew and not flies:
            del self.flying[target.uuid]
            self.line.load(target.node, -1)
        if new is Phase.WAITING:
            self.line.add(target)
        elif old is Phase.WAITING:
            self.line.remove(target)

    def ended(self, track: Track, result: DeviceResult) -> None:
        """The device has come to its end with `result`, which is remembered or only counted."""
        self.note(track)
        self.sums.add(result)
        covered, possible = worth(result, _bytes(track))
        self.total_bytes += possible - _bytes(track)
        self.ended_bytes += possible
        self.done_bytes += covered
        if track.first_at is not None:
            self.wiped_bytes += covered
            if track.ended_at is not None:
                self._span(track.target.node, track.first_at, track.ended_at)
        many = len(self.tracks) > self._rows_kept
        keep = self.rows < self._rows_kept and not (many and _is_plain(result))
        track.result = result if keep else None
        self.rows += keep

    def _forget_plain(self) -> None:
        """There are more devices than rows from now on: those that came out well give way."""
        for track in self.tracks.values():
            counted = track.phase is Phase.DONE and track.noted is Phase.DONE
            if counted and track.result is not None and _is_plain(track.result):
                track.result = None
                self.rows -= 1

    def _span(self, node: str, first_at: float, ended_at: float) -> None:
        first, last = self._spans.get(node, (first_at, ended_at))
        self._spans[node] = (min(first, first_at), max(last, ended_at))

    def spans(self) -> Mapping[str, float]:
        """Seconds from each node's first order to its last result."""
        return {node: last - first for node, (first, last) in sorted(self._spans.items())}

    def open(self) -> list[Track]:
        """Devices without an end, in order."""
        return sorted(
            (track for track in self.tracks.values() if track.phase is not Phase.DONE),
            key=lambda track: track.target,
        )


def _bytes(track: Track) -> int:
    return track.target.memory_bytes * len(PASSES)


def _is_plain(result: DeviceResult) -> bool:
    return result.outcome in GOOD and not result.findings
