"""The campaign as a step machine: `tick` looks, renews, starts, saves. Loops are at the edge.

Decisions:

1. Every fact comes from the nodes: an order whose fate is unknown is read back by its operation id,
   never assumed; a node decides each wipe again by its own table.
2. A device that is done frees its slot at once. A node that is silent costs only its own devices.
3. A lease lost mid-wipe stops nothing: the result counts for hygiene and says so.
4. Leases of unreachable nodes are left to run out: their wipes may still be going on.
5. Whatever happens, each device ends with exactly one outcome, and a run that ended early is
   resumed by a campaign that knows the results kept so far.

Pure: time is passed in, everything else goes through the two ports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from fleet.control.campaign import plan, status_text
from fleet.control.campaign.breaker import Breaker, Stance
from fleet.control.campaign.orders import Ordering
from fleet.control.campaign.ports import CampaignCoordinator, Nodes
from fleet.control.campaign.report import CampaignStatus, ExitReason, Phase, RunReport
from fleet.control.campaign.roster import Roster
from fleet.control.campaign.scope import Scope, stands
from fleet.control.campaign.sight import Sight
from fleet.control.campaign.targets import Target, choose, target_of
from fleet.control.campaign.track import (
    Track,
    finding,
    late,
    of_error,
    unfit,
    unlisted,
    view_of,
    whole_node,
)
from fleet.core import errors
from fleet.core.errors import FleetError
from fleet.core.messages import DeviceResult, NodeView, Outcome
from fleet.core.settings import CampaignPolicy

# Results on their way from a campaign into the run's record. Pure.
#
# They go out as they come in and are forgotten once the store has them; what a store that is away
# did not take goes out again with the next step.

APPENDED_MAX = 1000
"""Results handed over in one call: memory and lock of the store are not for one run alone."""


class Keeping:
    """The way of one run's results."""

    def __init__(self, run: str, coordinator: CampaignCoordinator) -> None:
        self._run = run
        self._coordinator = coordinator
        self._left: list[DeviceResult] = []
        self._rest: Iterator[DeviceResult] = iter(())

    def add(self, result: DeviceResult) -> None:
        """One more result."""
        self._left.append(result)

    def end_with(self, rows: Iterator[DeviceResult]) -> None:
        """Results that come last, made only as they are handed over."""
        self._rest = rows

    def save(self) -> None:
        """Hand over all there is. Raises `FleetError`; what was not taken stays."""
        while True:
            if not self._left:
                self._left = list(islice(self._rest, APPENDED_MAX))
            if not self._left:
                return
            self._coordinator.append(self._run, tuple(self._left[:APPENDED_MAX]))
            del self._left[:APPENDED_MAX]


__all__ = ["Campaign", "CampaignCoordinator", "Nodes", "Scope"]

FAILURES = frozenset({Outcome.FAILED, Outcome.QUARANTINED, Outcome.INTERRUPTED})
"""Outcomes of a started device that the breaker counts; a lost node says nothing of its devices."""
STARTS_MAX = 512
"""Devices started at one step: one batch of leases, which holds the store up for a moment only."""
BATCH_TRIES = 3
"""How often one step looks for devices to start, where nodes show another state than before."""


class Campaign:
    """One run. Single-threaded: call `tick` from one place, as often as progress is wanted."""

    def __init__(
        self,
        run: str,
        nodes: Nodes,
        coordinator: CampaignCoordinator,
        policy: CampaignPolicy,
        scope: Scope | None = None,
    ) -> None:
        self.run = run
        self._nodes = nodes
        self._coordinator = coordinator
        self._policy = policy
        scope = scope or Scope()
        self._scope = replace(scope, results=())
        self._keeping = Keeping(run, coordinator)
        self._ordering = Ordering(run, nodes, coordinator, policy, self._scope.wipe)
        self.breaker = Breaker(policy)
        if self._scope.exit_reason == ExitReason.BREAKER:
            self.breaker = Breaker(policy, stance=Stance.HALF_OPEN)
        self._names: Sequence[str] | None = None
        self._roster = Roster()
        self._sight = Sight()
        self._kept, self._earlier = scope.certified(), scope.attempts_made()
        self._heard_at: dict[str, float] = {}
        self._whole: dict[str, DeviceResult] = {}
        self._started_at: float | None = None
        self._now = 0.0
        self._stopping = self._looking = False
        self._blocked_at: float | None = None
        self._over_at: float | None = None
        self._reason: ExitReason | None = None
        self._closed = False
        self._notes: list[str] = []

    # --- the step --------------------------------------------------------------------------------

    def tick(self, now: float) -> bool:
        """One step at `now` (seconds since the epoch). True while work remains. Never waits itself.

        Errors of nodes and stores become outcomes, retries and notes; none is raised.
        """
        if self._closed:
            return False
        self._now = now
        if self._started_at is None:
            self._started_at = now
        self._roster.turn()
        if self._reason is None:
            self._look(now)
            self._ordering.renew(self._roster.flying.values(), now)
            self._start(now)
            self._reason = self._ending(now)
            if self._reason is not None:
                self._over_at = now
                self._keeping.end_with(status_text.uncovered(self._standing()))
        self._save(now)
        return not self._closed

    def stop(self, *, cancel: bool = False) -> None:
        """Start nothing more; what runs is waited for, or cancelled too. The run can be resumed."""
        self._stopping = True
        if cancel:
            self._ordering.cancel(self._roster.flying.values())

    def resume_breaker(self) -> None:
        """An operator says go on: one device at a time until the first one comes out well."""
        self.breaker = self.breaker.resume()

    # --- look ------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        """Ask the nodes whose turn it is and follow what they answer."""
        if self._names is None:
            try:
                self._names = self._nodes.names()
            except FleetError as error:
                self._give_up_on_names(error, now)
            if self._names is None:
                return
            self._sight.begin(self._names)
        flying = self._roster.flying_by_node()
        self._ask(self._sight.turn(now, flying), flying, now)

    def _ask(self, names: Sequence[str], flying: Mapping[str, list[Track]], now: float) -> None:
        """Ask these nodes, and about the operations that are `flying` on them."""
        asked = {name: [track.operation for track in flying.get(name, ())] for name in names}
        if not asked:
            return
        answers: Mapping[str, NodeView | FleetError]
        try:
            answers = self._nodes.views(asked)
        except FleetError as error:
            answers = dict.fromkeys(asked, error)
        for name in asked:
            self._sight.asked(name, now)
            answer = answers.get(name, errors.RayUnavailable(f"node {name} gave no answer"))
            if isinstance(answer, FleetError):
                self._silent(name, answer, now)
            else:
                self._seen(name, answer, now)
                for track in flying.get(name, ()) if name in self._sight.views else ():
                    self._follow(track, answer, now)
                    self._roster.note(track)

    def _give_up_on_names(self, error: FleetError, now: float) -> None:
        assert self._started_at is not None  # noqa: S101 - set by tick before anything looks
        expired = now - self._started_at >= self._policy.device_timeout_s
        if expired or isinstance(error, errors.Permanent):
            self._names = ()
            self._note(f"the nodes of the fleet are not known: {error}")

    def _silent(self, name: str, error: FleetError, now: float) -> None:
        """A node that gives no view: waited for, then its devices are unreachable."""
        self._sight.unheard(name)
        since = self._heard_at.setdefault(name, now)
        waiting = now - since < self._policy.device_timeout_s
        if waiting and not isinstance(error, errors.Permanent):
            return
        tracks = self._roster.of_node(name)
        for track in tracks:
            if track.phase is not Phase.DONE:
                track.lease = None
                self._finish(track, track.tell(Outcome.UNREACHABLE, of_error("node", error)), now)
        self._sight.give_up(name)
        if not tracks and not self._scope.selector.excludes_node(name):
            self._whole[name] = whole_node(name, error)

    def _seen(self, name: str, view: NodeView, now: float) -> None:
        if view.node != name:
            error = errors.WrongNode(f"asked node {name}, node {view.node} answered")
            self._silent(name, error, now)
            return
        self._heard_at[name] = now
        if self._sight.heard(view):
            self._discover(view)

    def _discover(self, view: NodeView) -> None:
        """The devices of a node seen for the first time become tracks, or keep their result."""
        if not view.devices and not self._scope.selector.excludes_node(view.node):
            error = errors.DriverAbsent(f"node {view.node} reports no device at all")
            self._whole[view.node] = whole_node(view.node, error)
            self._sight.give_up(view.node)
        for device in choose(view, lambda device: self._scope.takes(view, device)):
            if (known := self._roster.tracks.get(device.uuid)) is not None:
                other = known.target.node
                self._note(f"{device.uuid} is reported by {other} and by {view.node}: left alone")
                continue
            track = Track(target_of(view, device), self.run)
            track.attempt += self._earlier.get(device.uuid, 0)
            kept = self._kept.pop(device.uuid, None)
            if stands(kept, device):
                track.phase, track.result = Phase.DONE, kept
            elif self._scope.resumed:
                track.phase = Phase.STARTING  # an earlier job may have given the order: read back
            self._roster.add(track)

    def _follow(self, track: Track, view: NodeView, now: float) -> None:
        """One device in flight, as its node tells it."""
        result = next((r for r in view.results if r.operation == track.operation), None)
        if result is not None:
            self._result(track, result, now)
            return
        device = view_of(view, track.target.uuid)
        if device is not None and device.operation == track.operation:
            track.phase, track.incarnation = Phase.RUNNING, view.incarnation
            track.resend, track.progress = False, device.progress
            track.first_at = now if track.first_at is None else track.first_at
            track.ordered_at = now if track.ordered_at is None else track.ordered_at
        elif track.phase is Phase.STARTING:
            track.resend = track.lease is not None and not self._stopping
            if not track.resend:
                self._ordering.release(track)
                track.wait()
        elif track.incarnation != view.incarnation:
            lost = finding("node", "the node restarted during the wipe", "see the node's log")
            self._result(track, track.tell(Outcome.INTERRUPTED, lost, state="unknown"), now)
            return
        self._check_time(track, now)

    def _check_time(self, track: Track, now: float) -> None:
        """Past its time a device is cancelled; its slot is free when the node says it is over.

        A node that cannot end it within one lease lifetime is not waited for any longer.
        """
        limit = self._policy.device_timeout_s
        if track.ordered_at is None or now - track.ordered_at < limit:
            return
        if track.cancelled_at is None:
            track.cancelled_at = now
            self._ordering.cancel([track])
        elif now - track.cancelled_at >= self._policy.lease_ttl_s:
            track.lease = None  # the wipe may still be going on: let the lease run out
            self._finish(track, track.tell(Outcome.FAILED, late(limit), state="unknown"), now)

    # --- start -----------------------------------------------------------------------------------

    def _start(self, now: float) -> None:
        """Settle devices that must not be touched, then order what the limits allow."""
        if self._stopping or not self._sight.all_asked:
            return
        self._settle(tuple(self._sight.views), now)
        batch = self._batch(now)
        self._note_blocked(batch, now)
        resend = self._roster.resends(self._sight.views)
        for track, result in self._ordering.order(batch, resend, self._sight.views, now):
            self._finish(track, result, now)
        for track in (*batch, *resend):
            self._roster.note(track)

    def _settle(self, names: Iterable[str], now: float) -> None:
        """End what waits on these nodes and must not be touched, as the nodes are now."""
        for name in names:
            for track in self._roster.waiting_on(name):
                view = self._sight.views[name]
                listed = self._scope.may_touch(view, track.target)
                result = unfit(track, view) if listed else unlisted(track)
                if result is not None:
                    self._finish(track, result, now)

    def _batch(self, now: float) -> list[Track]:
        """What may start, each on a view of this step: who was not asked yet is asked now."""
        sight, self._looking = self._sight, False
        for _ in range(BATCH_TRIES):
            batch = self._fitting(now)
            unasked = {target.node: None for target in batch if target.node not in sight.views}
            if not unasked:
                break
            self._ask(list(unasked), self._roster.flying_by_node(), now)
            self._settle([name for name in unasked if name in sight.views], now)
        else:  # the last answers count for the limits too, and the next step looks on
            batch = self._fitting(now, asked=True)
            self._looking = not batch and bool(self._fitting(now))
        return [self._roster.tracks[target.uuid] for target in batch]

    def _fitting(self, now: float, *, asked: bool = False) -> tuple[Target, ...]:
        """What the limits allow to start, as the fleet was last seen; `asked`: at this step."""
        roster, sight = self._roster, self._sight

        def ready(target: Target) -> bool:
            out = asked or target.node in sight.mute or target.node in sight.lost
            heard = target.node in sight.views or not out
            return heard and roster.tracks[target.uuid].retry_at <= now

        most = self.breaker.starts_allowed(len(roster.flying))
        room = plan.Room([t.target for t in roster.flying.values()], sight.service, self._policy)
        return roster.line.batch(room, STARTS_MAX if most is None else most, ready)

    def _note_blocked(self, batch: Sequence[Track], now: float) -> None:
        """Remember since when nothing runs and limits alone keep the rest waiting."""
        more = batch or self._looking or self._roster.flying
        if more or not self._roster.waits(now, but=self._sight.mute):
            self._blocked_at = None
        elif self._blocked_at is None:
            self._blocked_at = now

    # --- ends ------------------------------------------------------------------------------------

    def _result(self, track: Track, result: DeviceResult, now: float) -> None:
        """A result for the order in flight: final, or one more attempt after a lost worker."""
        result = track.overdue(result, self._policy.device_timeout_s)
        interrupted = result.outcome is Outcome.INTERRUPTED and not self._stopping
        if interrupted and track.first_at is None:
            # It ended with an earlier job of this run, which takes no attempt away from us. Still
            # STARTING: that job may have given the next order too.
            self._earlier[track.target.uuid] = track.attempt
            track.attempt += 1
            return
        last = self._policy.attempts + self._earlier.get(track.target.uuid, 0)
        if interrupted and track.attempt < last:
            self._ordering.release(track)
            track.attempt += 1
            track.wait()
            return
        self._finish(track, track.told(result), now)

    def _finish(self, track: Track, result: DeviceResult, now: float) -> None:
        """The device's one outcome."""
        started, result = track.first_at is not None, track.timed(result, now)
        track.phase, track.ended_at = Phase.DONE, now
        track.progress, track.resend = None, False
        self._roster.ended(track, result)
        self._keeping.add(result)
        self._ordering.release(track)
        if started and result.outcome in FAILURES | {Outcome.CERTIFIED}:
            self.breaker = self.breaker.record(now, failed=result.outcome in FAILURES)

    def _ending(self, now: float) -> ExitReason | None:
        """Why the run is over at `now`; None while it is not."""
        roster, sight = self._roster, self._sight
        if roster.flying:
            return None
        if self._stopping:
            return ExitReason.STOPPED
        if self._names is None or not sight.all_seen:
            return None
        if not roster.line:
            return self._all_done()
        if self.breaker.stance is Stance.OPEN:
            return ExitReason.BREAKER
        silent = any(node in sight.mute for node in roster.line.nodes)
        if self._blocked_at is None or silent:
            return None
        patient = now - self._blocked_at < self._policy.device_timeout_s
        return None if sight.working and patient else ExitReason.LIMITS

    def _all_done(self) -> ExitReason:
        if self._roster.tracks:
            return ExitReason.COMPLETE
        return ExitReason.UNREACHABLE if self._whole or not self._names else ExitReason.NO_DEVICES

    def _save(self, now: float) -> None:
        """Keep results with the run; at the end close it, for at most one lease lifetime."""
        give_up = self._over_at is not None and now - self._over_at >= self._policy.lease_ttl_s
        try:
            self._keeping.save()
            self._ordering.flush()
            if self._reason is not None:
                self._coordinator.close(self.run, self._reason)
                self._closed = True
        except FleetError as error:
            if give_up or (self._reason is not None and isinstance(error, errors.Permanent)):
                self._note(f"the run record is incomplete: {error}")
                self._closed = True

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    # --- telling ---------------------------------------------------------------------------------

    def status(self) -> CampaignStatus:
        """Where the campaign stands as of the last tick."""
        return status_text.status(self._standing())

    def report(self) -> RunReport:
        """The final document. Devices that were not brought to an end say so and how to go on."""
        return status_text.report(self._standing())

    def _standing(self) -> status_text.Standing:
        return status_text.Standing(
            run=self.run,
            now=self._now,
            started_at=self._started_at,
            ended_at=self._over_at,
            roster=self._roster,
            nodes=tuple(row for _, row in sorted(self._whole.items())),
            simulated=self._sight.simulated,
            reason=self._reason,
            breaker=self.breaker,
            service=self._sight.service,
            notes=tuple(self._notes),
        )
