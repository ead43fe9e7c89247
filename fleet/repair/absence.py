"""Nodes whose Node object is gone for long count as lost, and are given up for (DESIGN 4, Leases).

The time of absence is the coordinator's own watching: one that starts anew begins to count anew,
which only makes it later. A node that still answers is never given up, nor one that the API server
does not deny when it is asked for it by name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from fleet import errors
from fleet.binding.claim import read
from fleet.binding.watching import Cached
from fleet.kube.base import NODES, Cluster, Name, name_of
from fleet.messages import NodeView
from fleet.model import HolderKind, UnitId
from fleet.repair.facts import accelerator_of, hold_nodes
from fleet.repair.forgetting import Parting, forget

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
    _devices: dict[str, frozenset[str]] = field(default_factory=dict)
    """Accelerators of each node that ever answered: garbage collection takes slices with Nodes."""
    _since: dict[str, float] = field(default_factory=dict)
    """When a node was first missed, seconds since the epoch."""
    _given_up: set[str] = field(default_factory=set)
    _looked_at: float = float("-inf")

    def step(self, views: Mapping[str, NodeView | errors.FleetError], now: float) -> None:
        """Look once a minute. `now`: seconds since the epoch.

        Raises what store or API raise when they do not answer, and `ApiFailed` naming what could
        not be given up; both are tried again.
        """
        if 0.0 <= now - self._looked_at < LOOK_S or not self.nodes.synced:
            return
        self._looked_at = now
        here = {name_of(found).name for found in self.nodes.items.values()}
        answering = {name: view for name, view in views.items() if isinstance(view, NodeView)}
        self._devices |= {name: _accelerators(view) for name, view in answering.items()}
        here |= answering.keys()
        missing = set(self._wanted()) - here
        self._given_up -= here
        self._since = {node: min(self._since.get(node, now), now) for node in missing}
        failed = [
            why
            for node, since in sorted(self._since.items())
            if now - since >= self.lost_after_s and node not in self._given_up
            for why in self._give_up(node)
        ]
        if failed:
            raise errors.ApiFailed(
                f"not everything of a lost node can be given up: {'; '.join(failed)}",
                remedy="tried again every minute; `fleet node forget` does the same by hand",
            )

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
