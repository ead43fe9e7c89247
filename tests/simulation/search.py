"""Complete breadth-first search of a scenario: safety in every state, and no state is a trap.

    python -m tests.simulation.search [--deep] [--table] [NAME ...]

searches the scenarios of `catalogue` (with --deep also the large ones) and prints what it counted,
with --table as a table in Markdown.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.simulation import binding, checker, control, node, outside, reduction, rules
from tests.simulation.graph import Graph
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
    depth: int = 0
    """Longest of the shortest ways to a state, in steps."""
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
    model = model.seated(world)
    if world.node == "up":
        yield from node.moves(model, world)
    else:
        yield from node.start(model, world)
    yield from control.moves(model, world)
    yield from outside.moves(model, world)


def steps(model: Model, world: World, *, reduced: bool) -> Iterator[Move]:
    """The same; if `reduced`, writes that have become outdated are refused in the same step."""
    if not model.scenario.seats:
        yield from successors(model, world)
        return
    for text, fault, after in successors(model, world):
        yield text, fault, binding.outdated(model, world, after, at_once=reduced)


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


def search(
    scenario: Scenario,
    ruleset: Rules | None = None,
    *,
    states_max: int = STATES_MAX,
    ignored: frozenset[str] = frozenset(),
    reduced: bool = True,
) -> Found:
    """Search a scenario under `ruleset` until something breaks or nothing is left.

    `ignored` names checks to leave out, to see what a broken rule does physically. Unless
    `reduced`, states that differ in names only count as different, and refusals are steps.
    """
    model = Model(scenario, ruleset or Rules())
    attached = scenario.attached if any(scenario.attached) else None
    skip = ignored | ({checker.OTHER_CERTIFICATE} if scenario.profile == "lab" else set())
    same = reduction.canonical(scenario) if reduced else None
    graph = Graph(scenario.initial())
    found, started = Found(scenario), False
    began = time.perf_counter()
    number = 0
    while number < len(graph) and len(graph) <= states_max:
        world = graph.world(number)
        devices = model.seated(world).scenario.devices
        found.broken = checker.broken(world, devices, attached=attached, skip=skip)
        if found.broken:
            break
        world = world._replace(breach="") if world.breach else world
        for text, fault, after in steps(model, world, reduced=reduced):
            found.transitions += 1
            target = graph.add(same(after) if same else after, number, text)
            if not fault and target != number:
                graph.link(number, target)
        if model.rules.unheard:
            found.broken = [checker.UNHEARD]
            break
        started = started or any(claim.box == "running" for claim in world.claims)
        if settled(world):
            graph.settle(number)
        number += 1
    found.states, found.depth = len(graph), graph.depth
    found.exhausted = number == len(graph)
    if found.exhausted and not found.broken and (trap := graph.trapped()) is not None:
        found.broken, number = [checker.TRAP], trap
    if found.exhausted and not found.broken and not started:
        found.broken, number = [checker.NOBODY_STARTS], 0
    if found.broken:
        found.story, found.end = graph.story(number), graph.world(number)
    found.seconds = time.perf_counter() - began
    return found


HEAD = (
    "| scenario | units | claims | coordinators | states | transitions | depth | CPU s | MiB | |\n"
    "|---|---|---|---|---|---|---|---|---|---|\n"
)


def row(found: Found, cpu_s: float) -> str:
    """The result as a row of a table; memory is the most that the process has ever had."""
    scenario = found.scenario
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    cells = (
        scenario.name,
        len(scenario.initial().units),
        len(scenario.devices),
        scenario.coordinators,
        f"{found.states:,}",
        f"{found.transitions:,}",
        found.depth,
        f"{cpu_s:.1f}",
        peak_mib,
        "; ".join(found.broken) or ("complete" if found.exhausted else "CUT"),
    )
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def run(scenarios: Iterable[Scenario], *, table: bool = False) -> int:
    """Search all, print what was found; 1 when something broke or was cut."""
    worst = 0
    sys.stdout.write(HEAD if table else "")
    for scenario in scenarios:
        began = time.process_time()
        found = search(scenario)
        line = row(found, time.process_time() - began) if table else found.text()
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        worst |= int(bool(found.broken) or not found.exhausted)
    return worst


def main(arguments: list[str] | None = None) -> int:
    """Entry for a longer run by hand."""
    from tests.simulation import catalogue

    parser = argparse.ArgumentParser(description="search the protocol exhaustively")
    parser.add_argument("names", nargs="*", help="scenarios to search; all when none is named")
    parser.add_argument("--deep", action="store_true", help="the large scenarios too")
    parser.add_argument("--table", action="store_true", help="as a table in Markdown")
    options = parser.parse_args(arguments)
    chosen = [*catalogue.SCENARIOS, *(catalogue.DEEP if options.deep or options.names else ())]
    if options.names:
        chosen = [scenario for scenario in chosen if scenario.name in options.names]
    return run(chosen, table=options.table)


if __name__ == "__main__":
    sys.exit(main())
