"""What is said at the API, and when: conditions, holds, finalizers, slices (promises 1, 6, 10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fleet.core.model import Device, State
from fleet.kube.base import CLAIMS, SLICES, Name, Object, Resource, uid_of
from fleet.kube.marks import Marks
from fleet.plugin.slices.pool_view import devices_of
from tests.lab.stores import MemoryLeaseStore
from tests.twin import objects
from tests.twin.clock import Timeline
from tests.twin.hardware import Falsified
from tests.twin.node import TwinNode
from tests.twin.resting import Rest

FRESH_S = 3.0
"""A device that went out of service this shortly before was let go in the same breath."""


class Terms(Protocol):
    """What the checker knows of deeds that no promise covers."""

    excused: set[str]
    doubtful: bool


@dataclass
class Said:
    """Follows claims and slices. Raises `Falsified`."""

    timeline: Timeline
    store: MemoryLeaseStore
    nodes: Mapping[str, TwinNode]
    marks: Marks
    rest: Rest
    terms: Terms
    bindings: int = 0
    failures: int = 0
    used: set[str] = field(default_factory=set)
    """Claims that were exposed once."""
    _tainted_at: dict[tuple[str, str], float] = field(default_factory=dict)

    def changed(
        self, resource: Resource, _name: Name, before: Object | None, after: Object | None
    ) -> None:
        """A claim or slice has changed at the API."""
        if resource == SLICES:
            for one in (before, after):
                self._offered(one)
        if resource != CLAIMS:
            return
        if before is not None:
            self._released(before, after)
        if after is not None:
            self._said(before or {}, after)

    # --- slices ---

    def _offered(self, found: Object | None) -> None:
        """When a device was last seen out of service; what is not real says so (promise 10)."""
        if found is None or found["spec"].get("driver") != self.marks.driver:
            return
        node, key = str(found["spec"].get("nodeName", "")), f"{self.marks.driver}/quarantined"
        for entry in devices_of(found):
            if any(t["key"] == key for t in entry.get("taints") or ()):
                self._tainted_at[node, entry["name"]] = self.timeline.now()
            told = (entry.get("attributes") or {}).get("simulated")
            if told != {"bool": True} and "memory" in (entry.get("capacity") or {}):
                raise Falsified(f"promise 10: {entry['name']} of {node} is offered as real: {told}")

    def _seen_out(self, node: TwinNode, device: str) -> bool:
        """Whether the scheduler could see a quarantine since it began, or it has just begun."""
        found = next(d for d in node.hardware.devices.values() if d.name == device)
        units = node.registry.journal.units
        out = [units[u] for u in found.units if u in units]
        if not out or any(unit.state is not State.QUARANTINED for unit in out):
            return True
        since = max(unit.since for unit in out) - node.clock.ahead_s
        if self.timeline.now() - since < FRESH_S:
            return True
        key = f"{self.marks.driver}/quarantined"
        entries = [entry for entry in self.rest.entries(node.name) if entry["name"] == device]
        if all(any(t["key"] == key for t in e.get("taints") or ()) for e in entries):
            return True
        return self._tainted_at.get((node.name, device), float("-inf")) >= since

    # --- claims ---

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
        found = _device(node, device)
        for unit in () if self.terms.doubtful else found.units:
            row = self.store._rows.get(unit)
            mine = row is not None and str(row.holder) == f"claim:{uid}"
            if not any(
                mine and row is not None and one.device == found.uuid and one.token == row.token
                for one in node.hardware.evidence.entries
            ):
                raise Falsified(f"promise 1: {device} on {node_name} Sanitized for {uid}: {row}")
        entries = objects.reserved(claim)
        if not any(self.marks.is_hold(entry) for entry in entries) and not objects.deleting(claim):
            raise Falsified(f"hold: {device} is Sanitized for {uid} without our hold")

    def _failed(self, node_name: str, device: str) -> None:
        """Promise 6: what is out of service is seen to be so before the scheduler is told."""
        self.failures += 1
        if not self._seen_out(self.nodes[node_name], device):
            raise Falsified(
                f"promise 6: {device} on {node_name} failed, not seen to be quarantined"
            )

    def _released(self, before: Object, after: Object | None) -> None:
        """Hold and finalizer go only once the devices are at rest, and a bad one is seen to be."""
        uid = uid_of(before)
        if uid not in self.used or uid in self.terms.excused:
            return
        hold = _has_hold(self.marks, before) and not _has_hold(self.marks, after)
        ours = self.marks.finalizer
        finalizer = ours in _finalizers(before) and ours not in _finalizers(after)
        what = "hold" if hold else "finalizer" if finalizer else ""
        if not what:
            return
        for result in objects.results(before):
            if result["driver"] == self.marks.driver:
                node = self.nodes[result["pool"]]
                self._let_go(what, uid, node, _device(node, result["device"]))

    def _let_go(self, what: str, uid: str, node: TwinNode, device: Device) -> None:
        units = node.registry.journal.units
        out = all(u in units and units[u].state is State.QUARANTINED for u in device.units)
        for pod, uids in node.hardware.containers.items():
            if uid in uids and not out:  # one that does not leave is given up, out of service
                raise Falsified(f"promise 6: {what} of {uid} goes while pod {pod} runs")
        if node.alive and any(u in units and units[u].claim == uid for u in device.units):
            raise Falsified(f"promise 6: {what} of {uid} goes while {device.name} is its own")
        if not self._seen_out(node, device.name):
            raise Falsified(f"promise 6: {what} of {uid} goes, {device.name} is not tainted")


def _has_hold(marks: Marks, claim: Object | None) -> bool:
    return claim is not None and any(map(marks.is_hold, objects.reserved(claim)))


def _finalizers(claim: Object | None) -> tuple[str, ...]:
    return tuple((claim or {}).get("metadata", {}).get("finalizers") or ())


def _device(node: TwinNode, name: str) -> Device:  # names in the slice are the node's own here
    return next(d for d in node.hardware.devices.values() if d.name == name)
