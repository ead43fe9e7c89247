"""Memory that came to a node since its journal began: the store is asked before it is touched.

A card may come from a node that had it out of service, as the store says (promise 6). Until the
store has answered the card stays as it is, unwiped, and keeps nothing else from going on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.core import errors
from fleet.core.model import NO_TOKEN, WORKING, Unit, UnitId
from fleet.core.unit_states import close_floor
from fleet.node import recovery
from fleet.node.ports import Leases
from fleet.node.registry import Registry

AGAIN_S = 1.0
"""The shortest pause, s, before a store that did not answer is asked again."""
SHARE = 4.0
"""How many times as long as it took not to answer the pause is: others of the node wait for it."""


def is_newcomer(unit: Unit) -> bool:
    """Whether the store was not asked about it yet, and nothing is being done with it here.

    A lease of its quarantine is then another node's word: the coordinator takes none for us before.
    """
    return unit.floor == NO_TOKEN and unit.claim is None and unit.state not in WORKING


@dataclass
class Newcomers:
    """Takes over what the store knows of new memory: its floor, and whether it is quarantined."""

    registry: Registry
    store: Leases
    _not_before: float = float("-inf")

    def step(self) -> None:
        """Ask if there is something to ask, and time. Raises what a commit does."""
        clock = self.registry.clock
        began, found = clock.monotonic(), self._found()
        if not found or began < self._not_before:
            return
        try:
            newest, held = self.store.newest(), self.store.leases()
        except errors.FleetError:
            ended = clock.monotonic()
            self._not_before = ended + max(AGAIN_S, SHARE * (ended - began))
            return
        if newest.epoch != self.registry.journal.epoch:
            return  # to be adopted by an operator first
        quarantined, now = recovery.quarantined(held), clock.now()
        with self.registry.commit() as commit:
            for unit_id in found:
                unit = commit.unit(unit_id)
                if is_newcomer(unit):
                    moved = close_floor(unit, newest)
                    commit.put_unit(recovery.remembered(moved, quarantined.get(unit_id), now=now))

    def _found(self) -> Sequence[UnitId]:
        return [unit.id for unit in self.registry.journal.units.values() if is_newcomer(unit)]
