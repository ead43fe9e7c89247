"""The checker: the promises of DESIGN 2, looked at after every event of a world.

It looks at the things themselves (memory, containers, specs, workers, evidence, the store, the
API), never at what the product believes of them.

1, 2  `exposed`: at each exposure; tokens of a unit only rise. `_holders`: spec against store.
3     `_holders`: a spec without a record.
4     `_tenant`: the memory of a living tenant is its own, and no worker has it.
5     `_unit`: CLEAN only with zeros in it, certified in this boot, by the newest certificate.
6     `tests.twin.said`: conditions, hold and finalizer; here: a reason goes only by a fresh
      certificate or an operator, and nothing is exposed with one.
7     `tests.twin.resting`: at the end nothing is left; that it ends is the story's own demand.
8     `Hardware.certify`: only verified zeros; `_unit`: CLEAN has its certificate in the evidence.
9     `_unit`: a device is out of service only for what befell itself.
10    `tests.twin.said`: what is offered is labelled as simulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fleet.core.claim_states import Claim, ClaimState
from fleet.core.model import ClaimUid, Device, Digest, Source, State, Token, Unit, UnitId
from fleet.core.profiles import Profile
from fleet.kube.base import Name, Object, Resource
from fleet.kube.marks import Marks
from tests.lab.stores import MemoryLeaseStore
from tests.twin.clock import Timeline
from tests.twin.hardware import ZEROS, Falsified, Hardware
from tests.twin.node import TwinNode
from tests.twin.resting import Rest
from tests.twin.said import Said
from tests.twin.sight import Sight

Broken = Falsified
"""A promise was broken."""
OWN_WORD = (Source.COORDINATOR, Source.OPERATOR)
"""Who may take a device out of service without any trouble of its own."""


@dataclass
class Checker:
    """Checks one world. Raises `Broken`."""

    timeline: Timeline
    sight: Sight
    store: MemoryLeaseStore
    nodes: dict[str, TwinNode]
    marks: Marks
    profile: Profile
    tolerated: frozenset[str] = frozenset()
    """Reasons that may befall any device in this world."""
    exposures: int = 0
    excused: set[str] = field(default_factory=set)
    """Claims whose hold an administrator has taken away."""
    doubtful: bool = False
    """Whether the store was restored, and nobody has adopted it yet: it says nothing then."""
    _revisions: dict[str, tuple[int, int, bool]] = field(default_factory=dict)
    _blamed: set[tuple[str, str]] = field(default_factory=set)
    _tokens: dict[UnitId, tuple[Token, ClaimUid]] = field(default_factory=dict)
    _before: dict[UnitId, Unit] = field(default_factory=dict)
    _heads: dict[UnitId, Digest | None] = field(default_factory=dict)
    _cleared: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rest = Rest(self.sight, self.store, self.nodes, self.marks)
        self.said = Said(self.timeline, self.store, self.nodes, self.marks, self.rest, self)

    @property
    def bindings(self) -> int:
        """Devices said to be sanitized."""
        return self.said.bindings

    @property
    def failures(self) -> int:
        """Devices said to have failed."""
        return self.said.failures

    def changed(
        self, resource: Resource, name: Name, before: Object | None, after: Object | None
    ) -> None:
        """Something has changed at the API."""
        self.said.changed(resource, name, before, after)

    def unsettled(self) -> list[str]:
        """What is left over though nobody uses anything any more."""
        return self.rest.unsettled()

    def blame(self, node: str, device: str) -> None:
        """Trouble befell this device itself."""
        self._blamed.add((node, device))

    def cleared(self, node: str, device: str) -> None:
        """An operator clears its reasons now."""
        self._cleared.add((node, device))

    # --- exposures -------------------------------------------------------------------------------

    def exposed(self, node: TwinNode, claim: Claim) -> None:
        """Promises 1, 2 and 6 at the moment of an exposure."""
        self.exposures += 1
        self.said.used.add(claim.uid)
        for unit_id in claim.units:
            word, unit = node.hardware.memory[unit_id], node.registry.journal.units[unit_id]
            mine = word.writer == f"claim:{claim.uid}" and unit.state is State.IN_USE
            clean = word.writer == ZEROS
            if self.profile is Profile.STRICT:
                clean = clean and word.token == claim.token
            if not (clean or mine):
                raise Broken(f"promise 1: {unit_id} is exposed to {claim.uid}, written by {word}")
            if unit.reasons and claim.state is not ClaimState.PREPARED:
                raise Broken(f"promise 6: {unit_id} is exposed with reasons {unit.reasons}")
            token, uid = self._tokens.get(unit_id, (claim.token, claim.uid))
            if claim.token < token or (claim.token == token and uid != claim.uid):
                raise Broken(f"promise 2: {unit_id} to {claim.uid} under {claim.token}, {uid} was")
            self._tokens[unit_id] = (claim.token, claim.uid)

    # --- after every event -----------------------------------------------------------------------

    def check(self, _: object = None) -> None:
        """Everything about nodes that changed."""
        for name, node in self.nodes.items():
            mark = (node.revision, node.hardware.revision, node.alive)
            if self._revisions.get(name) != mark:
                self._revisions[name] = mark
                self._node(node)

    def _node(self, node: TwinNode) -> None:
        hardware = node.hardware
        replaced = id(node.kept.journal) != id(node.registry.journal)
        if not node.alive and (replaced or not node.recovered):
            return  # nobody serves, and what will be served is not there yet
        for device in node.registry.devices.values() if node.alive else ():
            for unit_id in device.units:
                self._unit(node, device, node.registry.journal.units[unit_id])
        if node.alive:  # else what was cleared is seen once somebody serves again
            self._cleared = {one for one in self._cleared if one[0] != node.name}
        self._holders(hardware, node)
        for pod, uids in hardware.containers.items():
            for uid in uids:
                for uuid in hardware.given.get(uid, ()):
                    self._tenant(node, pod, uid, hardware.devices[uuid].units)

    def _unit(self, node: TwinNode, device: Device, unit: Unit) -> None:
        """Promises 5, 6, 8 and 9."""
        before, evidence = self._before.get(unit.id), node.hardware.evidence
        newest = evidence.newest.get(unit.id)
        head = newest.digest if newest is not None else None
        if before is unit and self._heads.get(unit.id) == head:
            pass
        elif before is not None:
            gone = before.reasons - unit.reasons
            passed = head is not None and head != self._heads.get(unit.id)
            if gone and not passed and (node.name, device.name) not in self._cleared:
                raise Broken(f"promise 6: {unit.id} lost {gone} without a pass or an operator")
        self._before[unit.id], self._heads[unit.id] = unit, head
        if unit.state is State.CLEAN and node.alive:
            word = node.hardware.memory.get(unit.id)
            if word is None or word.writer != ZEROS:
                raise Broken(f"promise 5: {unit.id} is CLEAN, written by {word}")
            if newest is None or unit.certificate != newest.digest:
                raise Broken(f"promise 8: {unit.id} is CLEAN by {unit.certificate}, not {newest}")
            if newest.boot != node.hardware.boot_id or unit.boot_id != node.hardware.boot_id:
                raise Broken(f"promise 5: {unit.id} is CLEAN by the word of an earlier boot")
        own = {r.code for r in unit.reasons if r.source not in OWN_WORD} - self.tolerated
        if own and (node.name, device.name) not in self._blamed:
            raise Broken(f"promise 9: {unit.id} is out for {own}, and nothing befell it")

    def _holders(self, hardware: Hardware, node: TwinNode) -> None:
        """Promise 2: one holder, and the store says the same under the same token."""
        taken: dict[UnitId, ClaimUid] = {}
        for uid, uuids in hardware.specs.items():
            claim = node.registry.journal.claims.get(uid)
            if claim is None and node.troubles:
                continue  # a spec of a lost journal, which cannot be removed yet
            if claim is None:
                raise Broken(f"promise 3: a spec of {uid} without a record on {node.name}")
            for uuid in uuids:
                for unit in hardware.devices[uuid].units:
                    if unit in taken:
                        raise Broken(f"promise 2: {unit} has {taken[unit]} and {uid}")
                    taken[unit] = uid
                    self._leased(unit, claim)

    def _leased(self, unit: UnitId, claim: Claim) -> None:
        row = self.store._rows.get(unit)
        if self.doubtful:
            return
        mine = row is not None and str(row.holder) == f"claim:{claim.uid}"
        if row is None or not mine or row.token != claim.token:
            raise Broken(f"promise 2: {unit} is {claim.uid}'s under {claim.token}: {row}")

    def _tenant(self, node: TwinNode, pod: str, uid: ClaimUid, units: Iterable[UnitId]) -> None:
        """Promise 4: nobody writes the memory of a living tenant; promise 2: nobody else has it."""
        written: Mapping[UnitId, object] = {
            unit: worker for worker, held in node.hardware.workers.items() for unit in held
        }
        for unit in units:
            word = node.hardware.memory[unit]
            if word.writer != f"claim:{uid}":
                raise Broken(f"promise 4: {unit} of living pod {pod} ({uid}) written by {word}")
            if unit in written:
                raise Broken(f"promise 4: {unit} of living pod {pod}: {written[unit]} has it too")
            state = node.registry.journal.units[unit].state
            if state not in (State.IN_USE, State.HELD, State.QUARANTINED, State.DIRTY):
                raise Broken(f"promise 4: {unit} of living pod {pod} is {state}")
