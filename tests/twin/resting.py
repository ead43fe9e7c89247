"""What must be left when nobody uses anything any more: nothing (promise 7, "nothing leaks")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fleet.core.messages import DeviceView
from fleet.core.model import HolderKind, State, UnitId
from fleet.kube.base import CLAIMS, SLICES, Object
from fleet.kube.marks import Marks
from fleet.plugin.slices.pool_view import devices_of
from tests.lab.stores import MemoryLeaseStore
from tests.twin import objects
from tests.twin.node import TwinNode
from tests.twin.sight import Sight


@dataclass(frozen=True)
class Rest:
    """Looks at API, store and nodes for what is left over."""

    sight: Sight
    store: MemoryLeaseStore
    nodes: Mapping[str, TwinNode]
    marks: Marks

    def unsettled(self) -> list[str]:
        """What is left over; empty: all is well."""
        return [*self._at_api(), *self._in_store(), *self._on_nodes()]

    def _at_api(self) -> Iterator[str]:
        for name, claim in self.sight.all(CLAIMS).items():
            if any(map(self.marks.is_hold, objects.reserved(claim))):
                yield f"claim {name} is held"
            if self.marks.finalizer in (claim["metadata"].get("finalizers") or ()):
                yield f"claim {name} has our finalizer"
            if objects.deleting(claim):
                yield f"claim {name} is Terminating"
            if objects.allocation(claim) is not None:
                yield f"claim {name} is allocated"

    def _in_store(self) -> Iterator[str]:
        """A card that was taken out keeps its quarantine: nobody offers its memory any more.

        Where the journal that knew of it is lost as well, so does the lease of its last claim.
        """
        present = {
            unit: node.registry.journal.units[unit].state
            for node in self.nodes.values()
            for device in node.registry.devices.values()
            for unit in device.units
        }
        known = {unit for node in self.nodes.values() for unit in node.registry.journal.units}
        out = {unit for unit, state in present.items() if state is State.QUARANTINED}
        held: set[UnitId] = set()
        for lease in self.store.leases():
            if lease.holder.kind is HolderKind.QUARANTINE:
                held |= lease.units
            elif lease.units & known:  # no node can close a token for memory no journal knows
                yield f"lease of {lease.holder} on {sorted(lease.units)}"
        for unit in sorted(out ^ (held & present.keys())):
            yield f"quarantine of {unit}: on the node {unit in out}, in the store {unit in held}"

    def _on_nodes(self) -> Iterator[str]:
        for name, node in self.nodes.items():
            if not node.alive:
                yield f"node {name} is down"
                continue
            journal = node.registry.journal
            yield from (f"{name}: record of {uid}" for uid in journal.claims)
            yield from (f"{name}: spec of {uid}" for uid in node.hardware.specs)
            yield from (f"{name}: container of {pod}" for pod in node.hardware.containers)
            yield from (f"{name}: outbox row {row.body}" for row in journal.outbox())
            yield from (f"{name}: order {row.id} has no answer" for row in journal.unfinished())
            for device in node.view().devices:
                yield from self._device(name, device)

    def _device(self, node: str, device: DeviceView) -> Iterator[str]:
        if device.state not in (State.CLEAN, State.QUARANTINED):
            yield f"{node}: {device.name} is {device.state}"
        entries = [entry for entry in self.entries(node) if entry["name"] == device.name]
        taints = sorted(t["key"] for entry in entries for t in entry.get("taints") or ())
        wanted = []
        if device.state == State.QUARANTINED:
            wanted = [f"{self.marks.driver}/not-clean", f"{self.marks.driver}/quarantined"]
        if len(entries) != 1 or taints != wanted:
            yield f"{node}: {device.name} ({device.state}) has taints {taints}"

    def entries(self, node: str) -> Iterator[Object]:
        """Devices in the slices of a node."""
        for found in self.sight.all(SLICES).values():
            if found["spec"].get("nodeName") == node:
                yield from devices_of(found)
