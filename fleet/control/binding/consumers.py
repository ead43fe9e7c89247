"""Who uses a claim: its pods, read from the API a few at a time.

A claim may be reserved for 256 pods, and whoever owns the namespace decides for how many. Each look
reads at most `PODS_MAX` of them, and not again before `KEPT_S` is over or the claim has changed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from fleet.control.binding.decisions import PodFact
from fleet.core import errors
from fleet.kube.base import PODS, Cluster, Name, uid_of
from fleet.kube.claim import ClaimReading

ENDED = frozenset({"Succeeded", "Failed"})
"""Phases of a pod whose containers have all ended."""
PODS_MAX = 8
"""Pods read in one look."""
KEPT_S = 2.0
"""Time, s, for which what was read of an unchanged claim is believed."""
CLAIMS_MAX = 4096
"""Claims whose pods are remembered."""
UNREAD = PodFact("", "", bound=True, leaving=False)
"""Stands for pods that were not read: one of them may be bound, and one may stay."""


@dataclass
class Consumers:
    """Reads pods of claims. For one thread."""

    cluster: Cluster
    _known: OrderedDict[str, tuple[str, float, tuple[PodFact, ...]]] = field(
        default_factory=OrderedDict
    )

    def of(self, reading: ClaimReading, now: float) -> tuple[PodFact, ...]:
        """The live pods of the claim at `now` (s, any clock that does not jump).

        Raises the errors of `Cluster.get` but for pods that are gone.
        """
        version, at, pods = self._known.get(reading.uid, ("", 0.0, ()))
        if version == reading.version and 0 <= now - at < KEPT_S:
            return pods
        found = [self._pod(reading, pod.name, pod.uid) for pod in reading.pods[:PODS_MAX]]
        pods = tuple(pod for pod in found if pod is not None)
        if len(reading.pods) > PODS_MAX:
            pods = (*pods, UNREAD)
        self._known[reading.uid] = (reading.version, now, pods)
        self._known.move_to_end(reading.uid)
        if len(self._known) > CLAIMS_MAX:
            self._known.popitem(last=False)
        return pods

    def _pod(self, reading: ClaimReading, name: str, uid: str) -> PodFact | None:
        try:
            found = self.cluster.get(PODS, Name(name, reading.name.namespace))
        except errors.ApiNotFound:
            return None
        phase = (found.get("status") or {}).get("phase")
        if uid_of(found) != uid or phase in ENDED:
            return None
        return PodFact(
            name,
            uid,
            bound=bool((found.get("spec") or {}).get("nodeName")),
            leaving="deletionTimestamp" in found["metadata"],
        )
