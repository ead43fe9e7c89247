"""Events about the plugin's own pod: why it is not ready, and what its node cannot do.

Of a failed probe kubelet tells the status code alone, and a log is read by whoever knows whose. So
whatever lasts is told where an operator looks first: `kubectl describe pod`. These events are in
our own namespace, which no tenant reads; with the plugin outside of a pod there are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fleet.kube.base import PODS, Name
from fleet.kube.events import Events, Kind, Regarding
from node_plugin.ports import Lack

PERIOD_S = 5.0
"""Period, s, in which is looked at what there is to tell."""
TOLD_AFTER_S = 10.0
"""Time, s, something has to last: a start and a change of owners pass by themselves."""
TEXTS_MAX = 8
"""Texts told under one reason while it lasts: one that is another each time fills no server."""
_FIGURES = re.compile(r"\d+")


def pod_of(name: str, uid: str) -> Regarding | None:
    """The pod ``namespace/name`` with this UID; None where the plugin runs in none."""
    namespace, slash, own = name.partition("/")
    return Regarding(PODS, Name(own, namespace), uid) if uid and slash and own else None


class PodEvents:
    """Tells of one pod. For one thread."""

    def __init__(self, events: Events, pod: Regarding) -> None:
        self._events = events
        self._pod = pod
        self._since: dict[str, float] = {}
        self._told: dict[str, dict[str, str]] = {}
        """By reason the texts of this time, as they were first, by what they are without their
        figures: a figure that grows is no news."""

    def step(self, lacks: Iterable[Lack], now: float) -> None:
        """Tell of what has lasted. Raises nothing the API can cause. `now`: s, never going back."""
        found = [*lacks]
        there = {one.reason for one in found}
        self._since = {reason: self._since.get(reason, now) for reason in there}
        self._told = {reason: self._told.get(reason, {}) for reason in there}
        for one in found:
            told, key = self._told[one.reason], _FIGURES.sub("", one.text)
            if now - self._since[one.reason] < TOLD_AFTER_S:
                continue
            if key in told or len(told) < TEXTS_MAX:
                text = told.setdefault(key, one.text)
                self._events.record(self._pod, one.reason, text, kind=Kind.WARNING)
