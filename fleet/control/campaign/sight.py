"""Which nodes a campaign asks at each step, and what is left of their answers. Pure.

A step must not cost more the larger the fleet is, or it would last longer than leases do. Nodes
that work for the campaign are asked at every step, the others about once a second; where there are
more than the bounds below, those that were not asked for the longest come first. Views are kept for
one step: a device is started only on a view of the step that starts it, and what limits need of
older ones is kept by `fleet.control.campaign.budget.Service`.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from fleet.control.campaign.budget import Service
from fleet.core.messages import NodeView
from fleet.core.model import WORKING

LOOK_EVERY_S = 1.0
"""Period, s, in which an idle node is asked, as long as `LOOKS_MAX` allow it."""
LOOKS_MAX = 128
"""Idle nodes asked at one step: at ten steps a second 12,500 nodes are seen within ten seconds."""
ACTIVE_MAX = 512
"""Nodes asked at one step that work for the campaign: of 10,000, each about every two seconds."""
FIRST_LOOKS_MAX = 512
"""Nodes asked at one step that never were before; nothing starts until all have been."""


class Sight:
    """What is known of the nodes."""

    def __init__(self) -> None:
        self.service = Service()
        self.simulated = False
        """Whether any node seen is simulated."""
        self.lost: set[str] = set()
        """Nodes that are not asked any more."""
        self.mute: set[str] = set()
        """Nodes that gave no answer when they were asked last."""
        self._asked_at: dict[str, float] = {}
        """By node, the longest unasked first."""
        self._unasked: dict[str, None] = {}
        self._unseen: set[str] = set()
        self._working: set[str] = set()
        self._views: dict[str, NodeView] = {}

    def begin(self, names: Iterable[str]) -> None:
        """The nodes there should be."""
        self._unasked = dict.fromkeys(sorted(names))
        self._unseen = set(self._unasked)

    @property
    def views(self) -> Mapping[str, NodeView]:
        """The views of this step, by node."""
        return self._views

    @property
    def all_asked(self) -> bool:
        """Whether every node was asked at least once."""
        return not self._unasked

    @property
    def all_seen(self) -> bool:
        """Whether every node has shown itself or is lost."""
        return not self._unseen

    @property
    def working(self) -> bool:
        """Whether any node that is not lost was seen with a wipe of whomsoever in work."""
        return bool(self._working)

    def turn(self, now: float, active: Collection[str]) -> list[str]:
        """Begin a step: the nodes to ask, those `active` among them."""
        self._views = {}
        if len(active) > ACTIVE_MAX:
            active = heapq.nsmallest(ACTIVE_MAX, active, key=lambda n: self._asked_at.get(n, now))
        names = dict.fromkeys(active)
        names |= dict.fromkeys(islice(self._unasked, FIRST_LOOKS_MAX))
        most = len(names) + LOOKS_MAX
        for name, asked_at in self._asked_at.items():
            if len(names) >= most or now - asked_at < LOOK_EVERY_S:
                break
            names[name] = None
        return [name for name in names if name not in self.lost]

    def asked(self, name: str, now: float) -> None:
        """The node was asked at `now`."""
        self._unasked.pop(name, None)
        self._asked_at.pop(name, None)
        self._asked_at[name] = now

    def heard(self, view: NodeView) -> bool:
        """Take a view in; whether it is the node's first."""
        name = view.node
        first = name in self._unseen
        self._unseen.discard(name)
        self.mute.discard(name)
        self._views[name] = view
        self.simulated = self.simulated or view.simulated
        self.service.update(view)
        works = any(device.state in WORKING for device in view.devices)
        (self._working.add if works else self._working.discard)(name)
        return first

    def unheard(self, name: str) -> None:
        """The node gave no view, or none to be believed."""
        self.mute.add(name)
        self._views.pop(name, None)

    def give_up(self, name: str) -> None:
        """Ask the node no more. What it was last seen doing is nothing to wait for."""
        self.lost.add(name)
        self._asked_at.pop(name, None)
        self._unasked.pop(name, None)
        for known in (self._unseen, self._working, self.mute):
            known.discard(name)
