"""The states a search has met, exactly and in little memory, and who leads to whom.

A state is kept as the numbers of its parts (each unit, each claim, the rest), and each part once:
two states are one if and only if they are equal, nothing is hashed away.
"""

from __future__ import annotations

from array import array

from tests.simulation.world import Claim, Unit, World

Rest = tuple[object, ...]
PARTS = 2
"""The first fields of a `World`, units and claims, are sequences of parts; the others are one."""


class Graph:
    """All states by the order in which they were met, breadth first."""

    def __init__(self, first: World) -> None:
        self._numbers: dict[bytes, int] = {}
        self._keys: list[bytes] = []
        self._known: dict[object, int] = {}
        self._parts: list[object] = []
        self._units = len(first.units)
        self._parents = array("i")
        self._steps = array("I")
        self._depths = array("H")
        self._from = array("I")
        self._to = array("I")
        self._settled = bytearray()
        self.add(first, -1, "")

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def depth(self) -> int:
        """Length of the longest of the shortest ways to a state."""
        return max(self._depths)

    def _part(self, part: object) -> int:
        number = self._known.get(part)
        if number is None:
            number = self._known[part] = len(self._parts)
            self._parts.append(part)
        return number

    def add(self, world: World, parent: int, step: str) -> int:
        """The number of a state, new or known."""
        known = self._known
        parts = (*world.units, *world.claims, world[PARTS:])
        try:
            key = array("I", [known[part] for part in parts]).tobytes()
        except KeyError:
            key = array("I", [self._part(part) for part in parts]).tobytes()
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._keys)
            self._keys.append(key)
            self._parents.append(parent)
            self._steps.append(self._part(step))
            self._depths.append(self._depths[parent] + 1 if parent >= 0 else 0)
            self._settled.append(0)
        return number

    def world(self, number: int) -> World:
        """The state of this number."""
        parts = [self._parts[part] for part in memoryview(self._keys[number]).cast("I")]
        units: list[Unit] = parts[: self._units]  # type: ignore[assignment]
        claims: list[Claim] = parts[self._units : -1]  # type: ignore[assignment]
        rest: Rest = parts[-1]  # type: ignore[assignment]
        return World._make((tuple(units), tuple(claims), *rest))

    def link(self, before: int, after: int) -> None:
        """Note that a state is reached from another without a fault."""
        self._from.append(before)
        self._to.append(after)

    def settle(self, number: int) -> None:
        """Note that the state is a settled one."""
        self._settled[number] = 1

    def story(self, number: int) -> list[str]:
        """The steps of the shortest way to a state."""
        steps: list[str] = []
        while number > 0:
            steps.append(str(self._parts[self._steps[number]]))
            number = self._parents[number]
        return steps[::-1]

    def trapped(self) -> int | None:
        """The first state found from which no settled state can be reached without faults."""
        starts, sources = self._backwards()
        reached = bytearray(self._settled)
        todo = [number for number, settled in enumerate(reached) if settled]
        while todo:
            at = todo.pop()
            for before in sources[starts[at] : starts[at + 1]]:
                if not reached[before]:
                    reached[before] = 1
                    todo.append(before)
        first = reached.find(0)
        return None if first < 0 else first

    def _backwards(self) -> tuple[array[int], array[int]]:
        """For each state, where those that lead to it begin in the second sequence."""
        starts = array("I", bytes(4 * (len(self) + 2)))
        for target in self._to:
            starts[target + 2] += 1
        for number in range(2, len(starts)):
            starts[number] += starts[number - 1]
        sources = array("I", bytes(4 * len(self._from)))
        for before, target in zip(self._from, self._to, strict=True):
            sources[starts[target + 1]] = before
            starts[target + 1] += 1
        return starts, sources
