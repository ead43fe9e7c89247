"""Keeping API, kubelet and node of one mind: the step a plugin runs once a second.

The node's view goes out as slices and health, what was read back of the slices goes in to the
node. A silent owner or a silent API stops nothing: the other half goes on, and the next step tries
again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fleet.core import errors
from fleet.core.messages import DeviceView, NodeView, Published, Right
from fleet.core.model import State
from fleet.plugin.health import HealthVerdict, verdicts
from fleet.plugin.holds import Marking
from fleet.plugin.slices.report import PublishReport
from fleet.plugin.slices.takeover import COORDINATOR, Record
from fleet.rpc.node_api import NodeApi

LOG = logging.getLogger(__name__)


class Publishing(Protocol):
    """What publishes slices; see `fleet.plugin.slices.publisher`."""

    def step(self, now: float, view: NodeView | None) -> PublishReport:
        """Bring the slices in line with the view."""
        ...

    def evicting(self, uuids: Iterable[str]) -> None:
        """Devices bound to a pod but not exposed to it: a quarantine of these evicts the pod."""
        ...

    def merged(self, records: Iterable[Record]) -> None:
        """The node has taken the reasons of these."""
        ...


HealthShown = Callable[[Mapping[str, HealthVerdict]], None]
"""Takes the verdicts by device name."""


@dataclass
class Keeper:
    """One node's keeper. `step` about once a second, on one thread."""

    node: NodeApi
    publisher: Publishing
    show: HealthShown
    view: NodeView | None = None
    """The view of the last step; None while no owner answered."""
    report: PublishReport = field(default_factory=PublishReport)
    published_at: float | None = None
    """When the slices were last read back as wanted, seconds since the epoch."""
    unviewed: str = ""
    """Why the last step had no view, with what to do; "": it had one."""
    marking: Marking | None = None
    """Takes our marks off claims that are buried; None: somebody else does."""
    unexposed: Callable[[NodeView], frozenset[str]] | None = None
    """Devices that a bound pod was refused; None: neither these nor those of the node's own claims
    evict (setting kubernetes.unexposed)."""
    missing: Callable[[], tuple[Right, ...]] = tuple
    """Rights that the plugin lacks."""
    _said: str = ""

    def step(self, now: float) -> None:
        """Publish, confirm, show. Raises nothing; troubles are logged once and reported."""
        trouble = ""
        try:
            self.view, self.unviewed = self.node.view(), ""
        except errors.FleetError as error:
            self.view, self.unviewed = None, str(error)
            trouble = error.detail
        if self.view is not None:
            self._evict(self.view)
        try:
            self.report = self.publisher.step(now, self.view)
        except errors.FleetError as error:
            trouble = trouble or error.detail
        else:
            trouble = trouble or "; ".join(t.detail for t in self.report.trouble)
            self._tell(now)
            trouble = trouble or self._merge(self.report.taken_over)
        if self.view is not None and self.marking is not None:
            # Only now: what keeps others off the devices from here on has been published.
            self.marking.step(self.view, self.report.confirmed_quarantine)
        self._say(trouble)

    def _say(self, trouble: str) -> None:
        """Log a trouble once, and its end once it has ended: a step in which nothing was tried
        (the pause after a refusal) has mended nothing."""
        if trouble and trouble != self._said:
            LOG.warning("%s", trouble)
        if self._said and not trouble and self.report.settled:
            LOG.warning("slices and node are of one mind again")
        if trouble or self.report.settled or self.report.elsewhere:
            self._said = trouble

    def _evict(self, view: NodeView) -> None:
        if self.unexposed is None:
            return
        try:
            self.publisher.evicting(self._bound(view) | self.unexposed(view))
        except errors.FleetError as error:
            # Who to evict is not known now; that a device is bad is published all the same.
            LOG.debug("the claims of the node are not known now: %s", error)

    def _bound(self, view: NodeView) -> frozenset[str]:
        """Quarantined devices whose claim waits for them and has never had them: its pod cannot
        start here, and its owner makes it again elsewhere once it is evicted (DESIGN 5).
        """
        stuck = {device.uuid: device.claim for device in view.devices if _waited_for(device)}
        if not stuck:
            return frozenset()
        waiting = {claim.uid for claim in self.node.claims() if claim.state == "PREPARING"}
        return frozenset(uuid for uuid, claim in stuck.items() if claim in waiting)

    def _merge(self, records: Iterable[Record]) -> str:
        """Let the node take the reasons that only its slices know of; what went wrong, or "".

        In this order: the node has them in its journal, then the publisher is told, then its next
        step may replace the mark. Ended in between, all of it is done again, which adds nothing.
        """
        trouble = ""
        for record in records if self.view is not None else ():
            try:
                self.node.quarantine_add(
                    record.uuid,
                    detail=record.told,
                    operator=COORDINATOR,
                    codes=record.codes,
                )
            except errors.FleetError as error:
                trouble = error.detail  # it stays marked until the node takes it
            else:
                self.publisher.merged((record,))
        return trouble

    def _tell(self, now: float) -> None:
        if self.report.settled:
            self.published_at = now
        if self.view is None:
            return
        self.show(verdicts(self.view))
        if self.report.elsewhere:
            return  # it is that instance which knows what can be seen
        try:
            confirmed = dict(self.report.confirmed_quarantine)
            self.node.published(
                Published(
                    quarantined=confirmed,
                    unlisted_at=self.report.unlisted_at,
                    missing=self.missing(),
                )
            )
        except errors.FleetError as error:
            LOG.debug("the owner went away meanwhile: %s", error)


def _waited_for(device: DeviceView) -> bool:
    return device.state == State.QUARANTINED and bool(device.claim)
