"""Who has to know of a quarantine is told: the node's people, and whoever used the device.

Level-triggered over the views of nodes, like all followers of a survey: what is still true is said
again, and `fleet.kube.telling` sees to it that this costs nothing. The claim a device is being
given back by is told, and the pods it is still reserved for: their data may not be proven wiped. A
running tenant is told nothing here, since kubelet shows the health of its device in the pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from fleet import errors
from fleet.binding import notices
from fleet.binding.claim import ClaimReading, read
from fleet.binding.names import Marks
from fleet.binding.notices import Notice
from fleet.binding.telling import Recording
from fleet.kube.base import CLAIMS, NODES, PODS, Name, Object
from fleet.kube.telling import Regarding
from fleet.messages import DeviceView, NodeView
from fleet.model import State
from fleet.slices.gate import is_quarantined

LINGERS = "tenant-not-gone"
"""Reason code of a device that a process of the claim's pods still has."""
_WAITED_FOR = "PREPARING"
"""State of a claim that never had its devices; its pod is told where it is dealt with."""


class Claims(Protocol):
    """The claims of the cluster, as a cache has them."""

    def get(self, uid: str) -> Object | None: ...


@dataclass(frozen=True, slots=True)
class QuarantineNotices:
    """Tells of quarantines. `step` raises nothing that a claim or an API can cause."""

    events: Recording
    claims: Claims
    marks: Marks

    def step(self, views: Mapping[str, NodeView | errors.FleetError | None], now: float) -> None:
        """Say what these views show. `now` is not asked: events keep time themselves."""
        del now
        for view in views.values():
            if not isinstance(view, NodeView):
                continue
            states = {claim.uid: claim.state for claim in view.claims}
            for device in filter(is_quarantined, view.devices):
                codes = [reason.code for reason in device.reasons]
                # Kubelet names a node by its name where a UID is asked for, and so is it found.
                node = Regarding(NODES, Name(view.node), view.node)
                self._tell(node, notices.quarantined(device.name, codes))
                if states.get(device.claim, _WAITED_FOR) != _WAITED_FOR:
                    self._tell_users(device, codes)

    def _tell_users(self, device: DeviceView, codes: list[str]) -> None:
        reading = self._reading(device.claim)
        if reading is None or State(device.state) is State.IN_USE:
            return
        for about in _users(reading):
            self._tell(about, notices.not_proven_wiped(device.name, codes))
        if LINGERS in codes:
            about = Regarding(CLAIMS, reading.name, reading.uid)
            self._tell(about, notices.tenant_lingers(device.name))

    def _reading(self, uid: str) -> ClaimReading | None:
        found = self.claims.get(uid)
        try:
            return None if found is None else read(found, self.marks)
        except errors.ClaimUnready:
            return None

    def _tell(self, about: Regarding, notice: Notice) -> None:
        self.events.record(about, notice.reason, notice.message, kind=notice.kind)


def _users(reading: ClaimReading) -> Iterator[Regarding]:
    """The claim, and the pods it is reserved for."""
    yield Regarding(CLAIMS, reading.name, reading.uid)
    for pod in reading.pods:
        yield Regarding(PODS, Name(pod.name, reading.name.namespace), pod.uid)
