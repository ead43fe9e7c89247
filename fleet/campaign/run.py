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

from collections.abc import Sequence

from fleet import errors
from fleet.campaign import budget, plan, telling
from fleet.campaign.breaker import Breaker, Stance
from fleet.campaign.ordering import Ordering
from fleet.campaign.ports import CampaignCoordinator, Nodes
from fleet.campaign.report import CampaignStatus, ExitReason, Phase, RunReport
from fleet.campaign.scope import Scope
from fleet.campaign.targets import Target, choose, target_of
from fleet.campaign.track import Track, finding, late, of_error, unfit, view_of
from fleet.errors import FleetError
from fleet.messages import DeviceResult, NodeView, Outcome
from fleet.model import WORKING
from fleet.settings import CampaignPolicy

__all__ = ["Campaign", "CampaignCoordinator", "Nodes", "Scope"]

FAILURES = frozenset({Outcome.FAILED, Outcome.QUARANTINED, Outcome.INTERRUPTED})
"""Outcomes of a started device that the breaker counts; a lost node says nothing of its devices."""


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
        self._scope = scope or Scope()
        self._attempts = policy.attempts
        self._ordering = Ordering(run, nodes, coordinator, policy, self._scope.wipe)
        self.breaker = Breaker(policy)
        if self._scope.exit_reason == ExitReason.BREAKER:
            self.breaker = Breaker(policy, stance=Stance.HALF_OPEN)
        self._names: tuple[str, ...] | None = None
        self._tracks: dict[str, Track] = {}
        self._kept = self._scope.certified()
        self._earlier = self._scope.attempts_made()
        self._views: dict[str, NodeView] = {}
        self._answered: set[str] = set()
        self._heard_at: dict[str, float] = {}
        self._lost: dict[str, DeviceResult | None] = {}
        self._unsaved: list[DeviceResult] = []
        self._started_at: float | None = None
        self._now = 0.0
        self._stopping = False
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
        if self._reason is None:
            self._look(now)
            self._ordering.renew(self._tracks.values(), now)
            self._start(now)
            self._reason = self._ending(now)
            if self._reason is not None:
                self._over_at = now
                self._unsaved += telling.uncovered(self._standing())
        self._save(now)
        return not self._closed

    def stop(self, *, cancel: bool = False) -> None:
        """Start nothing more; what runs is waited for, or cancelled too. The run can be resumed."""
        self._stopping = True
        if cancel:
            self._ordering.cancel(self._in_flight())

    def resume_breaker(self) -> None:
        """An operator says go on: one device at a time until the first one comes out well."""
        self.breaker = self.breaker.resume()

    # --- look ------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        """Ask all nodes and follow what they answer."""
        self._answered = set()
        if self._names is None:
            try:
                self._names = tuple(sorted(self._nodes.names()))
            except FleetError as error:
                self._give_up_on_names(error, now)
                return
        flying: dict[str, list[Track]] = {n: [] for n in self._names if n not in self._lost}
        for track in self._in_flight():
            flying.setdefault(track.target.node, []).append(track)
        asked = {name: [t.operation for t in tracks] for name, tracks in flying.items()}
        try:
            answers = self._nodes.views(asked)
        except FleetError as error:
            answers = dict.fromkeys(asked, error)
        for name in asked:
            answer = answers.get(name, errors.RayUnavailable(f"node {name} gave no answer"))
            if isinstance(answer, FleetError):
                self._silent(name, answer, now)
            else:
                self._seen(name, answer, now)
                for track in flying[name] if name in self._answered else ():
                    self._follow(track, answer, now)

    def _give_up_on_names(self, error: FleetError, now: float) -> None:
        assert self._started_at is not None  # noqa: S101 - set by tick before anything looks
        expired = now - self._started_at >= self._policy.device_timeout_s
        if expired or isinstance(error, errors.Permanent):
            self._names = ()
            self._note(f"the nodes of the fleet are not known: {error}")

    def _silent(self, name: str, error: FleetError, now: float) -> None:
        """A node that gives no view: waited for, then its devices are unreachable."""
        since = self._heard_at.setdefault(name, now)
        waiting = now - since < self._policy.device_timeout_s
        if waiting and not isinstance(error, errors.Permanent):
            return
        tracks = [t for t in self._tracks.values() if t.target.node == name]
        for track in tracks:
            if track.phase is not Phase.DONE:
                track.lease = None
                self._finish(track, track.tell(Outcome.UNREACHABLE, of_error("node", error)), now)
        wanted = not tracks and not self._scope.selector.excludes_node(name)
        self._lost[name] = _whole_node(name, error) if wanted else None

    def _seen(self, name: str, view: NodeView, now: float) -> None:
        if view.node != name:
            self._silent(
                name, errors.WrongNode(f"asked node {name}, node {view.node} answered"), now
            )
            return
        first = name not in self._views
        self._views[name], self._heard_at[name] = view, now
        self._answered.add(name)
        if first:
            self._discover(view)

    def _discover(self, view: NodeView) -> None:
        """The devices of a node seen for the first time become tracks, or keep their result."""
        if not view.devices and not self._scope.selector.excludes_node(view.node):
            error = errors.DriverAbsent(f"node {view.node} reports no device at all")
            self._lost[view.node] = _whole_node(view.node, error)
        wanted = self._scope.selector.matches
        for device in choose(view, lambda device: wanted(view, device)):
            if device.uuid in self._tracks:
                other = self._tracks[device.uuid].target.node
                self._note(f"{device.uuid} is reported by {other} and by {view.node}: left alone")
                continue
            track = Track(target_of(view, device), self.run)
            track.attempt += self._earlier.get(device.uuid, 0)
            kept = self._kept.get(device.uuid)
            if kept is not None and kept.certificate in device.certificate.split(", "):
                track.phase, track.result = Phase.DONE, kept
            elif self._scope.resumed:
                track.phase = Phase.STARTING  # an earlier job may have given the order: read back
            self._tracks[device.uuid] = track

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
        if self._stopping:
            return
        ready = [track for track in self._waiting() if track.target.node in self._answered]
        for track in ready:
            result = unfit(track, self._views[track.target.node])
            if result is not None:
                self._finish(track, result, now)
        ready = [track for track in ready if track.phase is Phase.WAITING]
        batch = self._batch([track for track in ready if track.retry_at <= now])
        self._note_blocked(ready, batch, now)
        resend = [t for t in self._tracks.values() if t.resend and t.phase is Phase.STARTING]
        for track, result in self._ordering.order(batch, resend, self._views, now):
            self._finish(track, result, now)

    def _batch(self, ready: Sequence[Track]) -> list[Track]:
        running = [track.target for track in self._in_flight()]
        by_target: dict[Target, Track] = {track.target: track for track in ready}
        batch = plan.next_batch(
            by_target,
            running,
            budget.in_service(self._views.values()),
            self._policy,
            most=self.breaker.starts_allowed(len(running)),
        )
        return [by_target[target] for target in batch]

    def _note_blocked(self, ready: Sequence[Track], batch: Sequence[Track], now: float) -> None:
        """Remember since when nothing runs and limits alone keep the rest waiting."""
        tried = any(track.retry_at <= now for track in ready)
        if batch or not tried or self._in_flight():
            self._blocked_at = None
        elif self._blocked_at is None:
            self._blocked_at = now

    # --- ends ------------------------------------------------------------------------------------

    def _result(self, track: Track, result: DeviceResult, now: float) -> None:
        """A result for the order in flight: final, or one more attempt after a lost worker."""
        if track.cancelled_at is not None and result.outcome is Outcome.INTERRUPTED:
            told = (*result.findings, late(self._policy.device_timeout_s))
            result = result.model_copy(update={"outcome": Outcome.FAILED, "findings": told})
        interrupted = result.outcome is Outcome.INTERRUPTED and not self._stopping
        if interrupted and track.first_at is None:
            # It ended with an earlier job of this run, which takes no attempt away from us. Still
            # STARTING: that job may have given the next order too.
            self._earlier[track.target.uuid] = track.attempt
            track.attempt += 1
            return
        if interrupted and track.attempt < self._last(track):
            self._ordering.release(track)
            track.attempt += 1
            track.wait()
            return
        self._finish(track, track.told(result), now)

    def _last(self, track: Track) -> int:
        """The number of the last attempt this campaign may make at the device."""
        return self._attempts + self._earlier.get(track.target.uuid, 0)

    def _finish(self, track: Track, result: DeviceResult, now: float) -> None:
        """The device's one outcome."""
        started, result = track.first_at is not None, track.timed(result, now)
        track.phase, track.result, track.ended_at = Phase.DONE, result, now
        track.progress, track.resend = None, False
        self._unsaved.append(result)
        self._ordering.release(track)
        if started and result.outcome in FAILURES | {Outcome.CERTIFIED}:
            self.breaker = self.breaker.record(now, failed=result.outcome in FAILURES)

    def _ending(self, now: float) -> ExitReason | None:
        """Why the run is over at `now`; None while it is not."""
        if self._in_flight():
            return None
        if self._stopping:
            return ExitReason.STOPPED
        if self._names is None or any(
            name not in self._lost and name not in self._views for name in self._names
        ):
            return None
        if not self._waiting():
            return self._all_done()
        if self.breaker.stance is Stance.OPEN:
            return ExitReason.BREAKER
        silent = any(t.target.node not in self._answered for t in self._waiting())
        if self._blocked_at is None or silent:
            return None
        # What a lost node was last seen doing is nothing to wait for.
        heard = [view for name, view in self._views.items() if name not in self._lost]
        busy = any(device.state in WORKING for view in heard for device in view.devices)
        patient = now - self._blocked_at < self._policy.device_timeout_s
        return None if busy and patient else ExitReason.LIMITS

    def _all_done(self) -> ExitReason:
        if self._tracks:
            return ExitReason.COMPLETE
        lost = any(result is not None for result in self._lost.values())
        return ExitReason.UNREACHABLE if lost or not self._names else ExitReason.NO_DEVICES

    def _in_flight(self) -> list[Track]:
        return [track for track in self._tracks.values() if track.in_flight]

    def _waiting(self) -> list[Track]:
        return [track for track in self._tracks.values() if track.phase is Phase.WAITING]

    def _save(self, now: float) -> None:
        """Keep results with the run; at the end close it, for at most one lease lifetime."""
        give_up = self._over_at is not None and now - self._over_at >= self._policy.lease_ttl_s
        try:
            if self._unsaved:
                self._coordinator.append(self.run, tuple(self._unsaved))
                self._unsaved.clear()
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

    @property
    def simulated(self) -> bool:
        """Whether any node of the run is simulated (promise 10)."""
        return any(view.simulated for view in self._views.values())

    def status(self) -> CampaignStatus:
        """Where the campaign stands as of the last tick."""
        return telling.status(self._standing())

    def report(self) -> RunReport:
        """The final document. Devices that were not brought to an end say so and how to go on."""
        return telling.report(self._standing())

    def _standing(self) -> telling.Standing:
        return telling.Standing(
            run=self.run,
            now=self._now,
            started_at=self._started_at,
            ended_at=self._over_at,
            tracks=tuple(sorted(self._tracks.values(), key=lambda track: track.target)),
            nodes=tuple(r for _, r in sorted(self._lost.items()) if r is not None),
            simulated=self.simulated,
            reason=self._reason,
            breaker=self.breaker,
            service=budget.in_service(self._views.values()),
            notes=tuple(self._notes),
        )


def _whole_node(name: str, error: FleetError) -> DeviceResult:
    """The row of a node that showed no devices: unknown, never "done, 0 devices"."""
    return DeviceResult(
        node=name,
        device="*",
        uuid=f"{name}/*",
        outcome=Outcome.UNREACHABLE,
        state="unknown",
        findings=(of_error("node", error),),
    )
