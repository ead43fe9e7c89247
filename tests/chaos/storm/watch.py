"""What must hold of every node at every moment, looked at while the storm goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fleet.core import errors
from fleet.core.model import NO_TOKEN, State, Token, UnitId
from tests.chaos.storm.log import Story
from tests.chaos.storm.reading import NodeDisk, Records
from tests.chaos.storm.system import System


@dataclass
class Watch:
    """Looks at journals, CDI directories, ledgers and the store. `step` from one thread."""

    system: System
    disks: Mapping[str, NodeDisk]
    looks: int = 0
    floors: dict[UnitId, Token] = field(default_factory=dict)
    _epochs: dict[str, int] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    newest: Token = NO_TOKEN

    @property
    def _story(self) -> Story:
        return self.system.story

    def step(self) -> None:
        """One look at everything."""
        for node, disk in self.disks.items():
            before = disk.specs()
            records = disk.records()
            after = disk.specs()
            if records is None:
                continue
            self.looks += 1
            same = {name: paths for name, paths in before.items() if after.get(name) == paths}
            for broken in (*self._backwards(node, records), *agreement(records, same)):
                self._story.breaks(f"{node}: {broken}")
            count = disk.count()
            if count < self._counts.get(node, 0):
                self._story.breaks(f"{node}: its ledger lost entries")
            self._counts[node] = count
        self._store()

    def _backwards(self, node: str, records: Records) -> Iterator[str]:
        if records.epoch < self._epochs.get(node, 0):
            yield f"epoch {self._epochs[node]} became {records.epoch}"
        self._epochs[node] = records.epoch
        for unit_id, unit in records.units.items():
            if unit.floor < self.floors.get(unit_id, unit.floor):
                yield f"the floor of {unit_id} fell from {self.floors[unit_id]} to {unit.floor}"
            self.floors[unit_id] = unit.floor

    def _store(self) -> None:
        try:
            newest = self.system.stores().leases.newest()
        except errors.FleetError:
            return
        if newest < self.newest:
            self._story.breaks(f"the store issued up to {self.newest}, now it says {newest}")
        self.newest = newest
        for unit_id, floor in self.floors.items():
            if floor > newest and floor > self.system.stores().leases.newest():
                self._story.breaks(f"the floor of {unit_id} is {floor}, never issued")


def agreement(records: Records, specs: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Promises 2 and 3, of specs that were there before and after the journal was read."""
    named: dict[UnitId, str] = {}
    for uid, claim in records.claims.items():
        for unit_id in claim.units:
            if unit_id in named:
                yield f"{unit_id} is held by {named[unit_id]} and {uid}"
            named[unit_id] = uid
    for unit_id, unit in records.units.items():
        if unit.state is State.IN_USE and unit.claim != named.get(unit_id):
            yield f"{unit_id} is IN_USE of {unit.claim}, the records say {named.get(unit_id)}"
        if unit.state is State.QUARANTINED and not unit.reasons:
            yield f"{unit_id} is QUARANTINED without a reason"
    exposed: dict[str, str] = {}
    for name, paths in specs.items():
        if not any(uid in name for uid in records.claims):
            yield f"the spec {name} has no record"
        for path in paths:
            if path in exposed:
                yield f"{path} is in {exposed[path]} and {name}"
            exposed[path] = name
