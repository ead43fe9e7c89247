"""Claims that wait while no coordinator steps: they and their pods are told, by one plugin.

A pod of a strict class waits in PreBind until the coordinator has its device proven, and its owner
sees nothing of that while the coordinator is gone, stands or lacks a right. Every plugin follows
the coordinator's Lease, which costs one request each; the one that has the turn lists the claims of
the cluster and says it. It says nothing of itself: telling is a courtesy, in nobody's way.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fleet.control.binding.liveness import Alive, Observer, Signs
from fleet.core import errors
from fleet.core.clock import Clock
from fleet.evidence import dsse
from fleet.kube.base import CLAIMS, LEASES, PODS, Cluster, Name, PatchKind, object_in, version_of
from fleet.kube.claim import ClaimReading, read
from fleet.kube.events import Events, Kind, Regarding
from fleet.kube.marks import Marks

COMPONENT = "fleetscrub-node-plugin"
"""Who reports these events."""
REASON = "WaitsForCoordinator"
TURN = "fleetscrub-waiting"
"""Name of the Lease of who tells."""
TURN_S = 60.0
"""Time, s, after which a turn that is not prolonged passes on."""
PERIOD_S = 30.0
"""Period, s, in which the coordinator is looked at."""
BAD_PERIOD_S = 10.0
"""The same while it does not step."""
ABSENT_S = 120.0
"""Time, s, a coordinator may need to report for the first time."""
TOLD_MAX = 50
"""Claims told in one step: each may cost writes."""
NEEDED = frozenset({"resourceclaims", "resourceslices", "pods", "configmaps", "deviceclasses"})
"""Resources without a right on which claims stay where they are."""


@dataclass
class Turn:
    """Of many processes one at a time, by a Lease."""

    cluster: Cluster
    name: Name
    who: str
    clock: Clock
    _seen: tuple[str, str] = ("", "")
    _since: float = 0.0

    def mine(self) -> bool:
        """Whether it is ours for `TURN_S` from now. Raises what `Cluster.get` raises."""
        found = self.cluster.get(LEASES, self.name)
        spec = object_in(found.get("spec"))
        holder = str(spec.get("holderIdentity") or "")
        seen, now = (holder, str(spec.get("renewTime") or "")), self.clock.monotonic()
        if seen != self._seen:
            self._seen, self._since = seen, now
        if holder not in ("", self.who) and now - self._since < TURN_S:
            return False
        moment = datetime.fromtimestamp(self.clock.now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = {
            "metadata": {"resourceVersion": version_of(found)},
            "spec": {
                "holderIdentity": self.who,
                "leaseDurationSeconds": int(TURN_S),
                "renewTime": moment,
            },
        }
        try:
            self.cluster.patch(LEASES, self.name, body, kind=PatchKind.MERGE)
        except errors.ApiConflict:
            return False
        return True


@dataclass
class Uncoordinated:
    """Tells claims that wait for a coordinator which does not serve them. For one thread."""

    cluster: Cluster
    marks: Marks
    namespace: str
    """Of our own Leases."""
    node: str
    events: Events
    clock: Clock
    _observer: Observer = field(init=False)
    _turn: Turn = field(init=False)
    _began: float = field(init=False)
    _waiting: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Nothing is asked yet."""
        self._observer = Observer(self.cluster, self.namespace, self.clock)
        self._turn = Turn(self.cluster, Name(TURN, self.namespace), self.node, self.clock)
        self._began = self.clock.monotonic()

    def step(self) -> float:
        """Look at the coordinator, and tell who waits for it; the pause after it, s.

        Raises what the cluster raises where it does not answer or a right is missing.
        """
        why = self._wrong(self._observer.look())
        if not why:
            self._waiting = frozenset()
            return PERIOD_S
        if self._turn.mine():
            self._tell(why)
        return BAD_PERIOD_S

    def _wrong(self, signs: Signs) -> str:
        """Why claims stay where they are, as all may read it; no figure of it grows."""
        if signs.found is None:
            late = self.clock.monotonic() - self._began > ABSENT_S
            return "has never reported" if late else ""
        return next(filter(None, map(_why, (signs.found, *signs.found.others))), "")

    def _tell(self, why: str) -> None:
        """Who waited at the last look already is told: others may have been allocated just now."""
        waiting = {one.uid: one for one in self._claims()}
        told = [one for uid, one in waiting.items() if uid in self._waiting]
        self._waiting = frozenset(waiting)
        message = (
            f"not ready yet: the coordinator of {self.marks.driver} {why}, and the scheduler waits"
            " for it; whoever runs the cluster sees more in `fleet status` and in the log of the"
            " pod of Ray's head"
        )
        for reading in itertools.islice(told, TOLD_MAX):
            abouts = [Regarding(CLAIMS, reading.name, reading.uid)]
            abouts += [
                Regarding(PODS, Name(pod.name, reading.name.namespace), pod.uid)
                for pod in reading.pods
            ]
            for about in abouts:
                self.events.record(about, REASON, message, kind=Kind.WARNING)

    def _claims(self) -> Iterator[ClaimReading]:
        """Claims allocated to devices of ours whose conditions are still awaited."""
        for found in self.cluster.list(CLAIMS).items:
            try:
                reading = read(found, self.marks)
            except errors.ClaimUnready:
                continue
            open_ = reading.gated and not (reading.bound or reading.failed or reading.terminating)
            if reading.allocated and open_:
                yield reading


def _why(one: Alive) -> str:
    if one.gone:
        return f"{one.of.strip()} has said nothing since {dsse.stamp(one.at)}".strip()
    if one.stands_s:
        return f"{one.of.strip()} has not stepped since {dsse.stamp(one.stepped_at)}".strip()
    needed = [right for right in one.binding.missing if right.resource.split("/")[0] in NEEDED]
    return f"lacks a right: {needed[0]}" if needed else ""
