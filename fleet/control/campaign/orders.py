"""Leases and orders of a campaign: acquire, renew, give, cancel, give back. Pure.

A lease is asked for per device and only when the device starts, so nothing is held idle while it
waits. An order goes out under a stable operation id; an answer that may have been lost leaves the
device STARTING, and the next look at the node says what became of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fleet.control.campaign.ports import CampaignCoordinator, Nodes
from fleet.control.campaign.report import Phase
from fleet.control.campaign.track import Track, error_of, of_error, view_of
from fleet.core import errors
from fleet.core.errors import FleetError
from fleet.core.leases import AcquireRequest
from fleet.core.messages import Acceptance, DeviceResult, NodeView, Outcome, ScrubOrder
from fleet.core.model import WORKING, Holder, HolderKind, Lease, State, Token, UnitId
from fleet.core.settings import CampaignPolicy, WipePolicy
from fleet.stores.base import Release, Renewal

RETRY_S = 1.0
"""Time, s, before a refused device is tried again: a tick may come ten times a second."""
PATIENCE_TTLS = 2.0
"""How many lease lifetimes a refusal is borne: the lease of a dead campaign has run out by then."""

Ended = list[tuple[Track, DeviceResult]]


class Ordering:
    """The campaign's hand on leases and nodes."""

    def __init__(
        self,
        run: str,
        nodes: Nodes,
        coordinator: CampaignCoordinator,
        policy: CampaignPolicy,
        wipe: WipePolicy | None,
    ) -> None:
        self._run = run
        self._holder = Holder(HolderKind.CAMPAIGN, run)
        self._nodes = nodes
        self._coordinator = coordinator
        self._policy = policy
        self._wipe = wipe
        self._returning: set[Token] = set()

    # --- orders ----------------------------------------------------------------------------------

    def order(
        self,
        batch: Sequence[Track],
        resend: Sequence[Track],
        views: Mapping[str, NodeView],
        now: float,
    ) -> Ended:
        """Lease and order `batch`, repeat `resend`. Returns the devices this brought to an end."""
        ended = self._acquire(batch, views, now)
        sent = [track for track in (*batch, *resend) if track.lease is not None]
        orders: dict[str, list[ScrubOrder]] = {}
        for track in sent:
            track.phase, track.resend = Phase.STARTING, False
            track.incarnation = views[track.target.node].incarnation
            track.first_at = now if track.first_at is None else track.first_at
            track.ordered_at = now if track.ordered_at is None else track.ordered_at
            orders.setdefault(track.target.node, []).append(self._order(track))
        if not orders:
            return ended
        try:
            answers = self._nodes.scrub_all(orders)
        except FleetError as error:
            answers = dict.fromkeys(orders, error)
        for track in sent:
            answer = answers.get(track.target.node)
            result = self._answered(track, answer, views[track.target.node], now)
            if result is not None:
                ended.append((track, result))
        return ended

    def _order(self, track: Track) -> ScrubOrder:
        assert track.lease is not None  # noqa: S101 - only leased tracks are ordered
        return ScrubOrder(
            operation=track.operation,
            node=track.target.node,
            device=track.target.uuid,
            token=str(track.lease.token),
            run=self._run,
            wipe=self._wipe,
        )

    def _answered(
        self,
        track: Track,
        answer: Sequence[Acceptance] | FleetError | None,
        view: NodeView,
        now: float,
    ) -> DeviceResult | None:
        """What a node's answer means for one order; None while the device is not at its end."""
        if isinstance(answer, FleetError):
            if isinstance(answer, errors.Retryable):
                return None  # may have arrived: the next view tells
            self.release(track)
            return track.tell(Outcome.REFUSED, of_error("order", answer))
        found = next((a for a in answer or () if a.operation == track.operation), None)
        if found is None:
            return None
        if found.accepted:
            track.phase, track.refused_since, track.holder = Phase.RUNNING, None, ""
            return None
        self.release(track)
        return self._refused(track, error_of(found), view, now)

    def _refused(
        self, track: Track, error: FleetError, view: NodeView | None, now: float
    ) -> DeviceResult | None:
        """A definite no: wait and try again, or the end when patience runs out or nobody will."""
        transient = isinstance(error, errors.Retryable | errors.TokenStale)
        if isinstance(error, errors.DeviceUnfit):
            return track.tell(Outcome.QUARANTINED, of_error("order", error))
        if not transient:
            return track.tell(Outcome.REFUSED, of_error("order", error))
        track.holder = str(error.fields.get("holder", ""))
        since = track.refused_since = now if track.refused_since is None else track.refused_since
        device = view_of(view, track.target.uuid) if view is not None else None
        working = device is not None and State(device.state) in WORKING
        patience = PATIENCE_TTLS * self._policy.lease_ttl_s
        if now - since < (self._policy.device_timeout_s if working else patience):
            first_at = track.first_at
            track.wait(retry_at=now + RETRY_S)
            track.first_at = first_at
            return None
        busy = isinstance(error, errors.LeaseHeld | errors.DeviceBusy)
        outcome = Outcome.BUSY if busy else Outcome.REFUSED
        return track.tell(outcome, of_error("order", error))

    def cancel(self, tracks: Iterable[Track]) -> None:
        """Ask the nodes to drop these operations. An unheard request is not repeated."""
        asked: dict[str, list[str]] = {}
        for track in tracks:
            asked.setdefault(track.target.node, []).append(track.operation)
        if not asked:
            return
        try:
            self._nodes.cancel(asked)
        except FleetError:
            return  # the wipe goes on and ends as hygiene; the node lists its result

    # --- leases ----------------------------------------------------------------------------------

    def _acquire(self, batch: Sequence[Track], views: Mapping[str, NodeView], now: float) -> Ended:
        """Ask for the leases of `batch`; tracks that got one have `lease` set."""
        if not batch:
            return []
        requests = [self._request(track, views) for track in batch]
        answers: Sequence[Lease | FleetError]
        try:
            answers = self._coordinator.acquire(requests)
        except FleetError as error:
            answers = [error] * len(batch)
        ended: Ended = []
        for track, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Lease):
                track.lease, track.renewed_at, track.lease_lost = answer, now, False
                self._returning.discard(answer.token)
                continue
            result = self._not_leased(track, answer, now)
            if result is not None:
                ended.append((track, result))
        return ended

    def _request(self, track: Track, views: Mapping[str, NodeView]) -> AcquireRequest:
        device = view_of(views[track.target.node], track.target.uuid)
        floor = Token.parse(device.floor) if device is not None else track.target.floor
        return AcquireRequest(
            units=frozenset(UnitId(unit) for unit in track.target.units),
            holder=self._holder,
            ttl_s=self._policy.lease_ttl_s,
            min_token=floor,
            closed=device is not None and device.closed,
        )

    def _not_leased(self, track: Track, error: FleetError, now: float) -> DeviceResult | None:
        holder = str(error.fields.get("holder", ""))
        if isinstance(error, errors.LeaseHeld) and holder.startswith(f"{HolderKind.CLAIM}:"):
            return track.tell(Outcome.IN_USE, of_error("lease", error))
        return self._refused(track, error, None, now)

    def renew(self, tracks: Iterable[Track], now: float) -> None:
        """Renew leases in flight at a third of their lifetime; a lost one is noted, not mourned."""
        ttl_s = self._policy.lease_ttl_s
        due = [
            (track, track.lease.token)
            for track in tracks
            if track.lease is not None and now - track.renewed_at >= ttl_s / 3
        ]
        if not due:
            return
        answers: Sequence[Lease | FleetError]
        try:
            answers = self._coordinator.renew_all(
                [Renewal(self._holder, token, ttl_s) for _, token in due]
            )
        except FleetError as error:
            answers = [error] * len(due)
        for (track, _), answer in zip(due, answers, strict=True):
            if not isinstance(answer, FleetError):
                track.renewed_at = now
                continue
            away = isinstance(answer, errors.Retryable) and not isinstance(answer, errors.LeaseLost)
            if not away or now - track.renewed_at >= ttl_s:
                track.lease, track.lease_lost = None, True

    def release(self, track: Track) -> None:
        """Give the track's lease back with the next `flush`."""
        if track.lease is not None:
            self._returning.add(track.lease.token)
            track.lease = None

    def flush(self) -> None:
        """Release what is due. What the store does not hear now runs out by itself."""
        tokens = sorted(self._returning)
        if not tokens:
            return
        answers: Sequence[bool | FleetError]
        try:
            answers = self._coordinator.release_all([Release(self._holder, t) for t in tokens])
        except FleetError as error:
            answers = [error] * len(tokens)
        for token, answer in zip(tokens, answers, strict=True):
            away = isinstance(answer, errors.Retryable) and not isinstance(answer, errors.LeaseLost)
            if not away:
                self._returning.discard(token)
