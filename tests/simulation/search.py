"""Complete breadth-first search of a scenario: safety in every state, and no state is a trap.

    python -m tests.simulation.search [--deep] [NAME ...]

searches the scenarios of `catalogue` (with --deep also the large ones) and prints what it counted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.simulation import checker, control, node, outside, rules
from tests.simulation.rules import Model, Rules
from tests.simulation.world import CAMPAIGN, NOBODY, Move, Scenario, World

NO_LEASE = ((NOBODY, 0),)
STATES_MAX = 4_000_000
"""A search that grows beyond this is cut, and says so."""


@dataclass
class Found:
    """What a search came to."""

    scenario: Scenario
    states: int = 0
    transitions: int = 0
    seconds: float = 0.0
    exhausted: bool = False
    broken: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    end: World | None = None

    def text(self) -> str:
        """The result for a person: what broke and the shortest way there."""
        head = (
            f"{self.scenario.name}: {self.states} states, {self.transitions} transitions, "
            f"{self.seconds:.1f} s"
        )
        if not self.broken:
            return head + (", complete" if self.exhausted else ", CUT")
        steps = "\n".join(f"  {number:2}. {step}" for number, step in enumerate(self.story, 1))
        return f"{head}\nbroken: {'; '.join(self.broken)}\n{steps}\nat the end: {self.end}"


def successors(model: Model, world: World) -> Iterator[Move]:
    """Every step anybody can take from here."""
    if world.node == "up":
        yield from node.moves(model, world)
    else:
        yield from node.start(model, world)
    yield from control.moves(model, world)
    yield from outside.moves(model, world)


def settled(world: World) -> bool:
    """Everything released, every unit CLEAN or visibly QUARANTINED and to be leased again."""
    if world.node != "up" or world.restored:
        return False
    for unit in world.units:
        if unit.work or unit.holder >= 0 or unit.worker == "own" or unit.claim >= 0:
            return False
        if unit.state != "CLEAN" and (unit.state != "QUARANTINED" or unit.published != 2):
            return False
    for unit in world.units:
        if rules.grant(CAMPAIGN, NO_LEASE, world.newest, ((unit.floor, unit.closed),)) is None:
            return False
    waits = any(unit.state == "QUARANTINED" for unit in world.units)
    for claim in world.claims:
        if claim.pod != "gone" or claim.allocated or claim.hold or claim.spec or claim.box:
            return False
        if claim.record != "ABSENT" or claim.op or (claim.spare and not waits):
            return False
        if claim.outbox or claim.seek or claim.giving or claim.away:
            return False
    return all(at.phase == "" for at in world.coordinators)


class Graph:
    """The states reached so far, how each was reached first, and who leads to whom."""

    def __init__(self, first: World) -> None:
        self.index = {first: 0}
        self.worlds = [first]
        self.parents: list[tuple[int, str]] = [(-1, "")]
        self.back: list[list[int]] = [[]]
        """For each state, the states from which it is reached without a fault."""

    def add(self, world: World, parent: int, text: str) -> int:
        """The number of a state, new or known."""
        number = self.index.get(world)
        if number is None:
            number = len(self.worlds)
            self.index[world] = number
            self.worlds.append(world)
            self.parents.append((parent, text))
            self.back.append([])
        return number

    def story(self, number: int) -> list[str]:
        """The steps of the shortest way to a state."""
        steps: list[str] = []
        while number > 0:
            number, text = self.parents[number]
            steps.append(text)
        return steps[::-1]

    def trapped(self) -> int | None:
        """The first state found from which no settled state can be reached without faults."""
        reached = bytearray(len(self.worlds))
        todo = [number for number, world in enumerate(self.worlds) if settled(world)]
        for number in todo:
            reached[number] = 1
        while todo:
            for before in self.back[todo.pop()]:
                if not reached[before]:
                    reached[before] = 1
                    todo.append(before)
        first = reached.find(0)
        return None if first < 0 else first


def search(
    scenario: Scenario,
    ruleset: Rules | None = None,
    *,
    states_max: int = STATES_MAX,
    ignored: frozenset[str] = frozenset(),
) -> Found:
    """Search a scenario under `ruleset` until something breaks or nothing is left.

    `ignored` names checks to leave out, to see what a broken rule does physically.
    """
    model = Model(scenario, ruleset or Rules())
    attached = scenario.attached if any(scenario.attached) else None
    skip = ignored | ({checker.OTHER_CERTIFICATE} if scenario.profile == "lab" else set())
    graph = Graph(scenario.initial())
    found = Found(scenario)
    began = time.perf_counter()
    number = 0
    while number < len(graph.worlds) and len(graph.worlds) <= states_max and not found.broken:
        world = graph.worlds[number]
        found.broken = checker.broken(world, scenario.devices, attached=attached, skip=skip)
        if found.broken:
            break
        world = world._replace(breach="") if world.breach else world
        for text, fault, after in successors(model, world):
            found.transitions += 1
            target = graph.add(after, number, text)
            if not fault and target != number:
                graph.back[target].append(number)
        number += 1
    found.states = len(graph.worlds)
    found.exhausted = number == len(graph.worlds)
    if found.exhausted and not found.broken and (trap := graph.trapped()) is not None:
        found.broken, number = [checker.TRAP], trap
    if found.broken:
        found.story, found.end = graph.story(number), graph.worlds[number]
    found.seconds = time.perf_counter() - began
    return found


def run(scenarios: Iterable[Scenario]) -> int:
    """Search all, print what was found; 1 when something broke or was cut."""
    worst = 0
    for scenario in scenarios:
        found = search(scenario)
        sys.stdout.write(found.text() + "\n")
        sys.stdout.flush()
        worst |= int(bool(found.broken) or not found.exhausted)
    return worst


def main(arguments: list[str] | None = None) -> int:
    """Entry for a longer run by hand."""
    from tests.simulation import catalogue

    parser = argparse.ArgumentParser(description="search the protocol exhaustively")
    parser.add_argument("names", nargs="*", help="scenarios to search; all when none is named")
    parser.add_argument("--deep", action="store_true", help="the large scenarios too")
    options = parser.parse_args(arguments)
    chosen = [*catalogue.SCENARIOS, *(catalogue.DEEP if options.deep or options.names else ())]
    if options.names:
        chosen = [scenario for scenario in chosen if scenario.name in options.names]
    return run(chosen)


if __name__ == "__main__":
    sys.exit(main())
