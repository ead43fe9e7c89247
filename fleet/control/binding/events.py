"""Events that owners of claims and pods get from the coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from fleet.control.binding import notices
from fleet.control.binding.decisions import PodFact
from fleet.kube.base import CLAIMS, PODS, Name
from fleet.kube.claim import ClaimReading
from fleet.kube.events import Kind, Regarding


class Recording(Protocol):
    """Records events; see `fleet.kube.events.Events`."""

    def record(
        self, about: Regarding, reason: str, message: str, *, kind: Kind = Kind.NORMAL
    ) -> None: ...


def users(reading: ClaimReading) -> Iterator[Regarding]:
    """The claim, and the pods it is reserved for."""
    yield Regarding(CLAIMS, reading.name, reading.uid)
    for pod in reading.pods:
        yield Regarding(PODS, Name(pod.name, reading.name.namespace), pod.uid)


@dataclass(frozen=True, slots=True)
class Telling:
    """What there is to say about one claim or one pod. Nothing of other tenants is ever in them.

    An event repeats as long as its message is the same: no figure that grows belongs into one.
    """

    events: Recording

    def claim(self, reading: ClaimReading, reason: str, message: str) -> None:
        """Tell the owner of a claim."""
        about = Regarding(CLAIMS, reading.name, reading.uid)
        self.events.record(about, reason, message, kind=Kind.WARNING)

    def waiting(self, reading: ClaimReading, why: str) -> None:
        """Tell owners of a claim, and of the pods it is for, what they wait for."""
        notice = notices.waits(str(reading.name), why)
        for about in users(reading):
            self.events.record(about, notice.reason, notice.message, kind=notice.kind)

    def pod(self, namespace: str, pod: PodFact, reason: str, message: str) -> None:
        """Tell the owner of a pod."""
        about = Regarding(PODS, Name(pod.name, namespace), pod.uid)
        self.events.record(about, reason, message, kind=Kind.WARNING)
