"""Nodes whose Node object is gone for long count as lost, and are given up for (DESIGN 4, Leases).

The time of absence is the coordinator's own watching, without leaps of its clock: one that starts
anew begins to count anew, which only makes it later. A node that still answers is never given up,
nor one that the API server does not deny when it is asked for it by name. Where several
coordinators share the nodes each gives up its own: those it saw as its own last. One that was gone
before it began, or was nobody's when it was seen last, is told and left alone, for another
coordinator may still reach it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from fleet.control.binding.object_cache import Cached
from fleet.control.binding.shard import Charge
from fleet.control.binding.tracking import Watch
from fleet.control.repair.facts import accelerator_of, hold_nodes
from fleet.control.repair.lost_nodes import Parting, forget
from fleet.core import errors
from fleet.core.messages import NodeView
from fleet.core.model import HolderKind, UnitId
from fleet.kube.base import NODES, Cluster, Name, name_of
from fleet.kube.claim import read

LOG = logging.getLogger(__name__)

LOOK_S = 60.0
"""Period, s, of looking: far below any time after which a node is lost."""
OPERATOR = "coordinator"
"""Who decides, in the record."""


@dataclass
class AbsentNodes:
    """Gives nodes up whose Node object was absent for `lost_after_s`. `step` on one thread."""

    cluster: Cluster
    nodes: Cached
    """All Nodes."""
    claims: Cached
    """All claims: what is to be given up stands on them."""
    parting: Parting
    lost_after_s: float
    charge: Charge = field(default_factory=Charge)
    _devices: dict[str, frozenset[str]] = field(default_factory=dict)
    """Accelerators of each node that ever answered: garbage collection takes slices with Nodes."""
    _since: dict[str, float] = field(default_factory=dict)
    """When a node was first missed, by the time watched, s."""
    _given_up: set[str] = field(default_factory=set)
    _failed: tuple[str, ...] = ()
    """What the last look could not give up: true until the next one, a minute later."""
    _looked_at: float = float("-inf")
    _watch: Watch = field(default_factory=Watch)

    def step(self, views: Mapping[str, NodeView | errors.FleetError], now: float) -> None:
        """Look once a minute. `now`: seconds since the epoch.

        Raises what store or API raise when they do not answer, and `ApiFailed` naming what could
        not be given up; both are tried again.
        """
        self._watch.step(now)
        seen = self._watch.seconds
        if self.nodes.synced and seen - self._looked_at >= LOOK_S:
            self._looked_at, self._failed = seen, ()
            self._failed = tuple(self._look(views, seen))
        if self._failed:
            raise errors.ApiFailed(
                f"not everything of a lost node can be given up: {'; '.join(self._failed)}",
                remedy="tried again every minute; `fleet node forget` does the same by hand",
            )

    def _look(
        self, views: Mapping[str, NodeView | errors.FleetError], seen: float
    ) -> Iterator[str]:
        """Give up whose time is over; what cannot be, and why. `seen`: time watched, s."""
        here = {name_of(found).name for found in self.nodes.items.values()}
        answering = {name: view for name, view in views.items() if isinstance(view, NodeView)}
        self._devices |= {name: _accelerators(view) for name, view in answering.items()}
        here |= answering.keys()
        missing = {node for node in {*self._wanted()} - here if self._concerns(node)}
        self._given_up -= here
        self._since = {node: self._since.get(node, seen) for node in missing}
        for node, since in sorted(self._since.items()):
            if seen - since >= self.lost_after_s and node not in self._given_up:
                yield from self._give_up(node)

    def _concerns(self, node: str) -> bool:
        return self.charge.has_node(node) or not self.charge.knows(node)

    def _wanted(self) -> Iterator[str]:
        """Nodes that claims are held for, were given devices of, or have leases on."""
        for found in self.claims.items.values():
            try:
                reading = read(found, self.parting.marks)
            except errors.FleetError:
                continue  # what cannot be read is no reason to give anything up
            yield from reading.nodes
            yield from hold_nodes(reading, self.parting.marks)
        leased = {
            accelerator_of(unit)
            for lease in self.parting.coordinator.leases()
            if lease.holder.kind is HolderKind.CLAIM
            for unit in lease.units
        }
        yield from (node for node, mine in self._devices.items() if not leased.isdisjoint(mine))

    def _give_up(self, node: str) -> tuple[str, ...]:
        if not self.charge.has_node(node):
            why = "is gone, and what is known does not tell which coordinator's it was"
            return (f"{node} {why}: `fleet node forget {node}` decides",)
        try:
            self.cluster.get(NODES, Name(node))
        except errors.ApiNotFound:
            devices = frozenset({*self.parting.devices, *self._devices.get(node, ())})
            told = forget(node, replace(self.parting, devices=devices), operator=OPERATOR)
        else:
            return ()  # it is back, and the watch will say so
        LOG.warning(
            "node %s is lost: its Node was gone for %g s; leases given back: %s; claims let go: %s",
            node,
            self.lost_after_s,
            ", ".join(told.leases) or "none",
            ", ".join(told.claims) or "none",
        )
        if not told.failed:
            self._given_up.add(node)
        return told.failed


def _accelerators(view: NodeView) -> frozenset[str]:
    return frozenset(accelerator_of(UnitId(u)) for device in view.devices for u in device.units)
