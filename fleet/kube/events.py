"""Events on claims, pods and nodes: what an owner must know and can find nowhere else.

Telling is a courtesy and never in anybody's way: it raises nothing, is bounded in size, number and
time, and what cannot be told is dropped. What kubelet and the scheduler say themselves (a failed
prepare, a pod that does not fit) is not said again.

An event is named after what it says about whom. So a process that starts anew, or another
coordinator, says the same thing under the same name: the server has it already, and its count goes
up, at most every ten minutes.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.kube.base import EVENTS, Cluster, Name, Object, PatchKind, Resource, name_of, uid_of

LOG = logging.getLogger(__name__)

REPEAT_S = 600.0
"""Shortest time, s, between two writes of one event."""
SILENCE_S = 10.0
"""Time, s, in which nothing is tried after the server did not answer."""
REMEMBERED = 4096
"""Events remembered, so that a repeat costs no call; one forgotten costs two."""
MESSAGE_MAX = 1024
"""The server's limit of an event's message."""
NAME_MAX = 200
"""Characters of the object's name in the event's, which has 253 in all."""
DEFAULT_NAMESPACE = "default"
"""Where events about objects without a namespace are kept."""
_REASON = re.compile(r"[A-Z][A-Za-z0-9]{0,127}")


class Kind(StrEnum):
    """Type of an event."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Regarding:
    """The object an event is about."""

    resource: Resource
    name: Name
    uid: str


def regarding(found: Object, resource: Resource) -> Regarding:
    """The object as an event names it."""
    return Regarding(resource, name_of(found), uid_of(found))


class Events:
    """Records events. Safe for threads."""

    def __init__(self, cluster: Cluster, component: str, clock: Clock) -> None:
        """`component`: who reports, such as ``fleetscrub-coordinator``."""
        self._cluster = cluster
        self._component = component
        self._clock = clock
        self._lock = threading.Lock()
        self._written: OrderedDict[Name, float] = OrderedDict()
        self._quiet_until = float("-inf")

    def record(
        self, about: Regarding, reason: str, message: str, *, kind: Kind = Kind.NORMAL
    ) -> None:
        """Say `message` about an object; nothing when it was said within `REPEAT_S`.

        `reason` is CamelCase, for machines: anything else is a ValueError. `message` is for people
        who may read the object, so it names nothing of other tenants.
        """
        if not _REASON.fullmatch(reason):
            raise ValueError(f"not a reason of an event: {reason!r}")
        name = self._name(about, reason, message)
        if not self._due(name):
            return
        try:
            self._write(name, self._body(name, about, reason, message, kind))
        except (errors.ApiUnavailable, errors.ApiFailed) as error:
            with self._lock:
                self._written.pop(name, None)
                self._quiet_until = self._clock.monotonic() + SILENCE_S
            LOG.debug("event %s is not told: %s", name, error)
        except errors.FleetError as error:
            LOG.debug("event %s is not told: %s", name, error)

    def _due(self, name: Name) -> bool:
        """Whether to write now; the answer counts as written, so that one thread does it."""
        now = self._clock.monotonic()
        with self._lock:
            if now < self._quiet_until or now - self._written.get(name, float("-inf")) < REPEAT_S:
                return False
            self._written[name] = now
            self._written.move_to_end(name)
            while len(self._written) > REMEMBERED:
                self._written.popitem(last=False)
        return True

    def _write(self, name: Name, body: Object) -> None:
        try:
            self._cluster.create(EVENTS, body)
        except errors.ApiConflict:
            self._repeat(name, body)

    def _repeat(self, name: Name, body: Object) -> None:
        """Count an event up that is there from earlier times."""
        stored = self._cluster.get(EVENTS, name)
        if _seconds(stored.get("lastTimestamp")) > self._clock.now() - REPEAT_S:
            return
        count = stored.get("count")
        self._cluster.patch(
            EVENTS,
            name,
            {
                "metadata": {"resourceVersion": stored["metadata"]["resourceVersion"]},
                "count": (count if isinstance(count, int) else 1) + 1,
                "lastTimestamp": body["lastTimestamp"],
            },
            kind=PatchKind.MERGE,
        )

    def _name(self, about: Regarding, reason: str, message: str) -> Name:
        told = f"{self._component}\0{about.uid}\0{reason}\0{message}"
        digest = hashlib.sha256(told.encode(errors="replace")).hexdigest()[:16]
        head = about.name.name[:NAME_MAX].rstrip("-.")
        return Name(f"{head}.{digest}", about.name.namespace or DEFAULT_NAMESPACE)

    def _body(self, name: Name, about: Regarding, reason: str, message: str, kind: Kind) -> Object:
        now = _stamp(self._clock.now())
        involved = {
            "apiVersion": about.resource.api_version,
            "kind": about.resource.kind,
            "name": about.name.name,
            "uid": about.uid,
        }
        if about.name.namespace:
            involved["namespace"] = about.name.namespace
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name.name, "namespace": name.namespace},
            "involvedObject": involved,
            "reason": reason,
            "message": _cut(message),
            "type": kind.value,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._component,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def _cut(message: str) -> str:
    """At most `MESSAGE_MAX` bytes, cut between characters."""
    raw = message.encode(errors="replace")
    return message if len(raw) <= MESSAGE_MAX else raw[:MESSAGE_MAX].decode(errors="ignore")


def _stamp(now: float) -> str:
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(text: object) -> float:
    """A stored time, seconds since the epoch; 0.0 for anything that is none."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0
