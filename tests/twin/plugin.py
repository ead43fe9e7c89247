"""The node plugin of a twin node: the product's own serving and keeping, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.core.settings import Settings
from fleet.kube.base import Change, Cluster, Event, Object
from fleet.kube.claim_holds import Holds
from fleet.kube.marks import Marks
from fleet.node import outbox
from fleet.plugin.claims import ClaimServing, Seat
from fleet.plugin.holds import Marking, MarkingRules
from fleet.plugin.orphans import Orphans
from fleet.plugin.reconciler import Keeper
from fleet.plugin.retries import Waiting, leaving
from fleet.plugin.slices.publisher import Publisher, PublisherTerms
from tests.twin.clock import Alarm, Timeline
from tests.twin.node import TwinNode

IDLE_PERIOD_S = 20.0
ORPHANS_S = 30.0
PAUSES_MAX = 4
"""Pauses that nobody can wait out: time stands still within an event."""


class Patience:
    """A pause in a world where time stands still: a few pass at once, then the call gives up."""

    def __init__(self, timeline: Clock) -> None:
        self._timeline = timeline
        self._at = -1.0
        self._count = 0

    def __call__(self, seconds: float) -> None:
        """Raises `ApiUnavailable` for the fifth pause of one moment."""
        if self._at != self._timeline.now():
            self._at, self._count = self._timeline.now(), 0
        self._count += 1
        if self._count > PAUSES_MAX:
            raise errors.ApiUnavailable(f"no time to wait {seconds} s")


@dataclass
class Plugin:
    """One plugin process. A new object is a restarted one."""

    node: TwinNode
    cluster: Cluster
    timeline: Timeline
    settings: Settings
    delay_s: Callable[[], float]
    """Time from a change to the step that sees it."""
    serving: ClaimServing = field(init=False)
    keeper: Keeper = field(init=False)
    publisher: Publisher = field(init=False)
    alarm: Alarm = field(init=False)
    _orphans: Orphans = field(init=False)
    _orphans_at: float = field(init=False)
    _stepped: tuple[int, float] = (-1, float("-inf"))
    _heard: bool = True

    def __post_init__(self) -> None:
        kubernetes, name, clock = self.settings.kubernetes, self.node.name, self.node.clock
        seat = Seat(kubernetes.driver, name, name)
        patience = Patience(clock)
        holds = Holds(self.cluster, Marks(kubernetes.driver), clock, patience)
        rules = MarkingRules(self.settings.profile)
        marking = Marking(self.node, holds, rules, clock)
        self.serving = ClaimServing(
            seat=seat,
            node=self.node,
            cluster=self.cluster,
            waiting=Waiting(clock, patience, leaving(self.node)),
            clock=clock,
            policy=self.settings.wipe,
            checkpoint=Path("/nonexistent/twin"),
            marking=marking,
            budget_s=0.0,
        )
        terms = PublisherTerms.from_settings(self.settings, node=name)
        self.publisher = Publisher(self.cluster, terms, monotonic=clock.monotonic)
        self.keeper = Keeper(
            self.node,
            self.publisher,
            lambda verdicts: None,  # noqa: ARG005 - nobody looks
            marking=marking,
            unexposed=self.serving.unexposed,
        )
        self._orphans = Orphans(seat, self.node, self.cluster)
        self._orphans_at = self.timeline.now() + ORPHANS_S
        self.alarm = Alarm(self.timeline, self._step, f"plugin {name}")
        self.alarm.wake(self.delay_s())

    def stop(self) -> None:
        """The process ends."""
        self.alarm.stop()
        self.publisher.close()

    def node_changed(self) -> None:
        """The node may show something new."""
        if not self.alarm.stopped:
            self.alarm.wake(self.delay_s())

    def slice_changed(self, before: Object | None, after: Object | None) -> None:
        """What the watch on the node's slices reports."""
        if after is None:
            event = Event(Change.DELETED, before or {})
        else:
            event = Event(Change.MODIFIED if before is not None else Change.ADDED, after)
        self.publisher.changed(event)
        self._heard = True
        self.node_changed()

    def _step(self) -> float:
        now = self.timeline.now()
        mark = (self.node.revision, now)
        self._stepped, self._heard = mark, False
        self.keeper.step(self.node.clock.now())
        if now >= self._orphans_at:
            self._orphans_at = now + ORPHANS_S
            with suppress(errors.FleetError):  # the next look
                self._orphans.step()
        settled = self.keeper.report.settled and not self.node_owes()
        return now + (IDLE_PERIOD_S if settled else 1.0)

    def node_owes(self) -> bool:
        """Whether claims are still to be let go."""
        return self.node.alive and bool(outbox.shown(self.node.registry)[1])
