"""The checker: what must hold after every event, and what must be left when all is at rest.

It looks at the things themselves (memory, containers, specs, the store, the API), never at what the
product believes of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fleet.binding.names import Marks
from fleet.claims import Claim
from fleet.kube.base import CLAIMS, SLICES, Name, Object, Resource, uid_of
from fleet.messages import DeviceView
from fleet.model import ClaimUid, HolderKind, State, UnitId, Uuid
from fleet.profiles import Profile
from fleet.slices.reading import devices_of
from fleet.stores.memory import MemoryLeaseStore
from tests.twin import objects
from tests.twin.clock import Timeline
from tests.twin.journal import Hardware
from tests.twin.node import TwinNode
from tests.twin.sight import Sight


class Broken(AssertionError):
    """A promise was broken."""


@dataclass
class Checker:
    """Checks one world. Raises `Broken`."""

    timeline: Timeline
    sight: Sight
    store: MemoryLeaseStore
    nodes: dict[str, TwinNode]
    marks: Marks
    profile: Profile
    exposures: int = 0
    bindings: int = 0
    failures: int = 0
    excused: set[str] = field(default_factory=set)
    """Claims whose hold an administrator has taken away."""
    _revisions: dict[str, int] = field(default_factory=dict)
    _dirty: set[str] = field(default_factory=set)
    _used: set[str] = field(default_factory=set)
    """Claims that were exposed once."""

    # --- exposures -------------------------------------------------------------------------------

    def exposed(self, node: TwinNode, claim: Claim) -> None:
        """Promise 1 and 2 at the moment of an exposure."""
        self.exposures += 1
        self._used.add(claim.uid)
        for unit_id in claim.units:
            word, unit = node.hardware.memory[unit_id], node.journal.units[unit_id]
            mine = word.writer == f"claim:{claim.uid}" and unit.state is State.IN_USE
            clean = word.writer == "zeros"
            if self.profile is Profile.STRICT:
                clean = clean and word.token == claim.token
            if not (clean or mine):
                raise Broken(f"promise 1: {unit_id} is exposed to {claim.uid}, written by {word}")
            if unit.reasons:
                raise Broken(f"promise 6: {unit_id} is exposed with reasons {unit.reasons}")

    # --- after every event -----------------------------------------------------------------------

    def check(self, _: object = None) -> None:
        """Everything about nodes that changed."""
        for name, node in self.nodes.items():
            if self._revisions.get(name) != node.revision or name in self._dirty:
                self._revisions[name] = node.revision
                self._dirty.discard(name)
                self._node(node)

    def _node(self, node: TwinNode) -> None:
        hardware = node.hardware
        self._holders(hardware, node)
        for pod, uids in hardware.containers.items():
            for uid in uids:
                for uuid in hardware.given.get(uid, ()):
                    self._tenant(node, pod, uid, hardware.devices[uuid].units)

    def _holders(self, hardware: Hardware, node: TwinNode) -> None:
        """Promise 2: one holder, and the store says the same under the same token."""
        taken: dict[UnitId, ClaimUid] = {}
        for uid, uuids in hardware.specs.items():
            claim = node.journal.claims.get(uid)
            if claim is None:
                raise Broken(f"promise 3: a spec of {uid} without a record on {node.name}")
            for uuid in uuids:
                for unit in hardware.devices[uuid].units:
                    if unit in taken:
                        raise Broken(f"promise 2: {unit} has {taken[unit]} and {uid}")
                    taken[unit] = uid
                    row = self.store._rows.get(unit)
                    if row is None or str(row.holder) != f"claim:{uid}" or row.token != claim.token:
                        raise Broken(f"promise 2: {unit} is {uid}'s under {claim.token}: {row}")

    def _tenant(self, node: TwinNode, pod: str, uid: ClaimUid, units: Iterable[UnitId]) -> None:
        """Promise 4: nobody writes the memory of a living tenant; promise 2: nobody else has it."""
        for unit in units:
            word = node.hardware.memory[unit]
            if word.writer != f"claim:{uid}":
                raise Broken(f"promise 4: {unit} of living pod {pod} ({uid}) written by {word}")
            state = node.journal.units[unit].state
            if state not in (State.IN_USE, State.HELD, State.QUARANTINED, State.DIRTY):
                raise Broken(f"promise 4: {unit} of living pod {pod} is {state}")

    # --- what is said at the API -----------------------------------------------------------------

    def changed(
        self, resource: Resource, _name: Name, before: Object | None, after: Object | None
    ) -> None:
        """A claim or slice has changed at the API."""
        if resource != CLAIMS:
            return
        if before is not None:
            self._released(before, after)
        if after is not None:
            self._said(before or {}, after)

    def _said(self, before: Object, after: Object) -> None:
        then = objects.conditions(before)
        for place, found in objects.conditions(after).items():
            if place[0] != self.marks.driver:
                continue
            earlier = then.get(place, {})
            for kind, condition in found.items():
                was = earlier.get(kind, {}).get("status")
                if condition["status"] != "True" or was == "True":
                    continue
                if kind == self.marks.failed:
                    self._failed(place[1], place[2])
                elif kind == self.marks.sanitized:
                    self._sanitized(after, place[1], place[2])

    def _sanitized(self, claim: Object, node_name: str, device: str) -> None:
        """True only with a certificate of this device, made under the token of its lease."""
        self.bindings += 1
        node, uid = self.nodes[node_name], uid_of(claim)
        uuid = _uuid(node, device)
        for unit in node.hardware.devices[uuid].units:
            row = self.store._rows.get(unit)
            mine = row is not None and str(row.holder) == f"claim:{uid}"
            if not any(
                mine and row is not None and one.device == uuid and one.token == row.token
                for one in node.hardware.ledger
            ):
                raise Broken(f"promise 1: {device} on {node_name} Sanitized for {uid}: {row}")
        entries = objects.reserved(claim)
        if not any(self.marks.is_hold(entry) for entry in entries) and not objects.deleting(claim):
            raise Broken(f"hold: {device} is Sanitized for {uid} without our hold")

    def _failed(self, node_name: str, device: str) -> None:
        """Promise 6: what is out of service is seen to be so before the scheduler is told."""
        self.failures += 1
        node = self.nodes[node_name]
        unit = node.journal.units[node.hardware.devices[_uuid(node, device)].units[0]]
        fresh = self.timeline.now() - unit.since < 3.0
        if unit.state is State.QUARANTINED and not fresh and not self._tainted(node_name, device):
            raise Broken(f"promise 6: {device} on {node_name} failed, not quarantined in its slice")

    def _released(self, before: Object, after: Object | None) -> None:
        """The hold goes only once the devices are at rest, and a bad one is seen to be bad."""
        was = any(self.marks.is_hold(entry) for entry in objects.reserved(before))
        stays = after is not None and any(map(self.marks.is_hold, objects.reserved(after)))
        uid = uid_of(before)
        if not was or stays or uid not in self._used or uid in self.excused:
            return
        for result in objects.results(before):
            if result["driver"] != self.marks.driver:
                continue
            node = self.nodes[result["pool"]]
            device = node.hardware.devices[_uuid(node, result["device"])]
            for pod, uids in node.hardware.containers.items():
                if uid in uids:
                    raise Broken(f"promise 6: hold of {uid} goes while pod {pod} runs")
            unit = node.journal.units[device.units[0]]
            if unit.claim == uid:
                raise Broken(f"promise 6: hold of {uid} goes while {device.name} is its own")
            out = unit.state is State.QUARANTINED
            fresh = self.timeline.now() - unit.since < 3.0
            if out and not fresh and not self._tainted(node.name, device.name):
                raise Broken(f"promise 6: hold of {uid} goes, {device.name} is not tainted")

    def _tainted(self, node: str, device: str) -> bool:
        key = f"{self.marks.driver}/quarantined"
        entries = [e for e in self._entries(node) if e["name"] == device]
        return all(any(t["key"] == key for t in e.get("taints") or ()) for e in entries)

    def _entries(self, node: str) -> Iterator[Object]:
        for found in self.sight.all(SLICES).values():
            if found["spec"].get("nodeName") == node:
                yield from devices_of(found)

    # --- at rest ---------------------------------------------------------------------------------

    def unsettled(self) -> list[str]:
        """What is left over though nobody uses anything any more; empty: all is well."""
        return [*self._left_at_api(), *self._left_in_store(), *self._left_on_nodes()]

    def _left_at_api(self) -> Iterator[str]:
        for name, claim in self.sight.all(CLAIMS).items():
            if any(map(self.marks.is_hold, objects.reserved(claim))):
                yield f"claim {name} is held"
            if self.marks.finalizer in (claim["metadata"].get("finalizers") or ()):
                yield f"claim {name} has our finalizer"
            if objects.deleting(claim):
                yield f"claim {name} is Terminating"
            if objects.allocation(claim) is not None:
                yield f"claim {name} is allocated"

    def _left_in_store(self) -> Iterator[str]:
        out = {
            unit.id
            for node in self.nodes.values()
            for unit in node.journal.units.values()
            if unit.state is State.QUARANTINED
        }
        held: set[UnitId] = set()
        for lease in self.store.leases():
            if lease.holder.kind is HolderKind.QUARANTINE:
                held |= lease.units
            else:
                yield f"lease of {lease.holder} on {sorted(lease.units)}"
        for unit in sorted(out ^ held):
            yield f"quarantine of {unit}: on the node {unit in out}, in the store {unit in held}"

    def _left_on_nodes(self) -> Iterator[str]:
        for name, node in self.nodes.items():
            if not node.alive:
                yield f"node {name} is down"
                continue
            yield from (f"{name}: record of {uid}" for uid in node.journal.claims)
            yield from (f"{name}: spec of {uid}" for uid in node.hardware.specs)
            yield from (f"{name}: container of {pod}" for pod in node.hardware.containers)
            yield from (f"{name}: outbox row of {row.holder}" for row in node.journal.outbox)
            for device in node.view().devices:
                yield from self._device(name, device)

    def _device(self, node: str, device: DeviceView) -> Iterator[str]:
        if device.state not in (State.CLEAN, State.QUARANTINED):
            yield f"{node}: {device.name} is {device.state}"
        entries = [entry for entry in self._entries(node) if entry["name"] == device.name]
        taints = sorted(t["key"] for entry in entries for t in entry.get("taints") or ())
        wanted = []
        if device.state == State.QUARANTINED:
            wanted = [f"{self.marks.driver}/not-clean", f"{self.marks.driver}/quarantined"]
        if len(entries) != 1 or taints != wanted:
            yield f"{node}: {device.name} ({device.state}) has taints {taints}"


def _uuid(node: TwinNode, device: str) -> Uuid:  # names in the slice are the node's own here
    return next(d.uuid for d in node.hardware.devices.values() if d.name == device)
