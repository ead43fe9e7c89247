"""Who has to know of a quarantine is told: the node's people, and whoever used the device.

Level-triggered over the views of nodes, like all followers of a survey: what is still true is said
again, and `fleet.kube.events` sees to it that this costs nothing. The claim a device is being
given back by is told, and the pods it is still reserved for: their data may not be proven wiped. A
running tenant is told nothing at first, since kubelet shows the health of its device in the pod;
one that still has it after a while (`DeviceView.kept_by`) is told that nobody ends its pod for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from fleet.control.binding import notices
from fleet.control.binding.events import Recording, users
from fleet.control.binding.notices import Notice
from fleet.core import errors
from fleet.core.messages import DeviceView, NodeView
from fleet.core.model import State
from fleet.kube.base import CLAIMS, NODES, PODS, Name, Object
from fleet.kube.claim import ClaimReading, read
from fleet.kube.events import Regarding
from fleet.kube.marks import Marks
from fleet.plugin.slices.gate import is_quarantined

LINGERS = "tenant-not-gone"
"""Reason code of a device that a process of the claim's pods still has."""
SURVEY_MAX = 20
"""Notices told in one survey: each may cost a write."""
_WAITED_FOR = "PREPARING"
"""State of a claim that never had its devices; its pod is told where it is dealt with."""


class Claims(Protocol):
    """The claims of the cluster, as a cache has them."""

    def get(self, uid: str) -> Object | None: ...


@dataclass(slots=True)
class QuarantineNotices:
    """Tells of quarantines. `step` raises nothing that a claim or an API can cause.

    Each survey tells `SURVEY_MAX` notices at most, going on where the one before ended: in a fleet
    in which much is out of service others must not wait for what is told.
    """

    events: Recording
    claims: Claims
    marks: Marks
    _told: tuple[str, str, str] = ("", "", "")
    """The last notice told, as `_rank` names it."""

    def step(self, views: Mapping[str, NodeView | errors.FleetError | None], now: float) -> None:
        """Say what these views show. `now` is not asked: events keep time themselves."""
        del now
        found, after = list(self._notices(views)), 0
        if len(found) > SURVEY_MAX:
            found.sort(key=_rank)
            after = bisect_right(found, self._told, key=_rank)
        for about, notice in [*found[after:], *found[:after]][:SURVEY_MAX]:
            self.events.record(about, notice.reason, notice.message, kind=notice.kind)
            self._told = _rank((about, notice))

    def _notices(
        self, views: Mapping[str, NodeView | errors.FleetError | None]
    ) -> Iterator[tuple[Regarding, Notice]]:
        """All that these views show."""
        for view in views.values():
            if not isinstance(view, NodeView):
                continue
            states = {claim.uid: claim.state for claim in view.claims}
            for device in view.devices:
                if device.kept_by:
                    yield from self._of_keeper(device)
            for device in filter(is_quarantined, view.devices):
                codes = [reason.code for reason in device.reasons]
                # Kubelet names a node by its name where a UID is asked for, and so is it found.
                node = Regarding(NODES, Name(view.node), view.node)
                yield node, notices.quarantined(device.name, codes)
                if states.get(device.claim, _WAITED_FOR) != _WAITED_FOR:
                    yield from self._tousers(device, codes)

    def _tousers(self, device: DeviceView, codes: list[str]) -> Iterator[tuple[Regarding, Notice]]:
        reading = self._reading(device.claim)
        if reading is None or State(device.state) is State.IN_USE:
            return
        for about in users(reading):
            yield about, notices.not_proven_wiped(device.name, codes)
        if LINGERS in codes:
            about = Regarding(CLAIMS, reading.name, reading.uid)
            yield about, notices.tenant_lingers(device.name)

    def _of_keeper(self, device: DeviceView) -> Iterator[tuple[Regarding, Notice]]:
        """Who has a device that should be free by now; what keeps it is not named to tenants.

        A pod that got its device through an extended resource is evicted by nobody: the taint is
        looked for in claims that the pod's own spec names (case B36).
        """
        reading = self._reading(device.claim)
        if reading is None:
            return
        codes = [reason.code for reason in device.reasons]
        in_use = State(device.state) is State.IN_USE
        for about in users(reading):
            pod = reading.pods[0].name if reading.pods else ""
            notice = notices.not_wiped(device.name)
            if in_use:
                notice = notices.still_used(device.name, codes, pod=pod, extended=reading.extended)
            yield about, notice

    def _reading(self, uid: str) -> ClaimReading | None:
        found = self.claims.get(uid)
        try:
            return None if found is None else read(found, self.marks)
        except errors.ClaimUnready:
            return None


def _rank(told: tuple[Regarding, Notice]) -> tuple[str, str, str]:
    """An order of notices that does not change: nodes first, then claims, then pods."""
    about, notice = told
    kinds = (NODES, CLAIMS, PODS)
    return f"{kinds.index(about.resource)} {about.uid}", notice.reason, notice.message
