"""Events that owners of claims and pods get from the coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fleet.binding.claim import ClaimReading
from fleet.binding.decisions import PodFact
from fleet.kube.base import CLAIMS, PODS, Name
from fleet.kube.telling import Kind, Regarding


class Recording(Protocol):
    """Records events; see `fleet.kube.telling.Events`."""

    def record(
        self, about: Regarding, reason: str, message: str, *, kind: Kind = Kind.NORMAL
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Telling:
    """Warnings about one claim or one pod. Nothing of other tenants is ever in them.

    An event repeats as long as its message is the same: no figure that grows belongs into one.
    """

    events: Recording

    def claim(self, reading: ClaimReading, reason: str, message: str) -> None:
        """Tell the owner of a claim."""
        about = Regarding(CLAIMS, reading.name, reading.uid)
        self.events.record(about, reason, message, kind=Kind.WARNING)

    def pod(self, namespace: str, pod: PodFact, reason: str, message: str) -> None:
        """Tell the owner of a pod."""
        about = Regarding(PODS, Name(pod.name, namespace), pod.uid)
        self.events.record(about, reason, message, kind=Kind.WARNING)
