"""What the search leaves out changes nothing: the same states but for names, the same verdicts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.catalogue import NEIGHBOURS, PARENT_CHILDREN
from tests.simulation.graph import Graph
from tests.simulation.joint_mutants import JOINT_MUTANTS, joint
from tests.simulation.mutation import Mutant
from tests.simulation.reduction import canonical, renamed, renamings
from tests.simulation.rules import Model, Rules
from tests.simulation.search import search, steps
from tests.simulation.world import Claim, Coordinator, Scenario, Unit, World

STATES_MAX = 20_000
TWO = Scenario("two", ((0,), (0,)), "lab", coordinators=0, clean=True, coarse=True)
PAIR = Scenario("pair", NEIGHBOURS, "lab", coordinators=0, clean=True, coarse=True)


def _reached(scenario: Scenario, same: Callable[[World], World]) -> set[World]:
    model, first = Model(scenario, Rules()), same(scenario.initial())
    found, todo = {first}, [first]
    while todo:
        for _, _, after in steps(model, todo.pop(), reduced=True):
            if (form := same(after)) not in found:
                found.add(form)
                todo.append(form)
    return found


@pytest.mark.parametrize("scenario", [TWO, joint(2, "", 0)], ids=lambda scenario: scenario.name)
def test_one_state_stands_for_all_its_namings(scenario: Scenario) -> None:
    """Symmetry: the reduced search meets exactly the forms of all states there are."""
    same = canonical(scenario)
    every, reduced = _reached(scenario, lambda world: world), _reached(scenario, same)
    assert {same(world) for world in every} == reduced
    assert len(reduced) < len(every)


@pytest.mark.parametrize("mutant", JOINT_MUTANTS, ids=lambda mutant: mutant.rule)
def test_broken_versions_break_alike(mutant: Mutant) -> None:
    """With reductions and without, a broken version breaks the same property, as early."""
    found = [
        search(
            mutant.scenario,
            mutant.rules,
            states_max=STATES_MAX,
            ignored=mutant.ignored,
            reduced=reduced,
        )
        for reduced in (True, False)
    ]
    assert found[0].broken == found[1].broken == [mutant.caught_by]
    assert found[0].states <= found[1].states


@pytest.mark.parametrize(
    "scenario", [PAIR, joint(1, "binding timeout", 1)], ids=lambda scenario: scenario.name
)
def test_what_holds_holds_alike(scenario: Scenario) -> None:
    """With reductions and without, the protocol passes; with them in fewer states, as deep."""
    small, large = search(scenario), search(scenario, reduced=False)
    assert (small.broken, large.broken) == ([], [])
    assert small.exhausted
    assert large.exhausted
    assert small.states < large.states
    assert small.depth == large.depth


def test_only_what_leaves_the_scenario_as_it_is_counts() -> None:
    """A parent's two children change names together, parent and child never; a claim that comes
    twice, or looks into devices, is like no other."""
    parents = Scenario("parents", PARENT_CHILDREN)
    assert [one.claims for one in renamings(parents)] == [(0, 1, 2), (0, 2, 1)]
    assert [one.units for one in renamings(parents)] == [(0, 1), (1, 0)]
    assert len([*renamings(Scenario("named", ((0,), (0,)), spare=True))]) == 1
    assert len([*renamings(Scenario("looks", ((0,), ()), attached=((), (0,))))]) == 1


def test_every_name_is_renamed() -> None:
    """Wherever a claim or unit is named, it gets its other name, and back again."""
    unit = Unit(state="IN_USE", claim=0, holder=1, memory="0", work="p1")
    world = World(
        units=(unit, Unit(work="i1", memory="1")),
        claims=(Claim(seat=0, pod="live"), Claim(seat=1)),
        coordinators=(Coordinator(), Coordinator("order", 0, 3, 1)),
        message=("wipe", 0, 2),
        loose=("p.spec", 1),
    )
    (other,) = (one for one in renamings(_pair()) if one.claims == one.units == (1, 0))
    found = renamed(world, other)
    assert found.units[1] == unit._replace(claim=1, holder=0, memory="1", work="p0")
    assert found.units[0] == Unit(work="i0", memory="0")
    assert found.claims == (Claim(seat=0), Claim(seat=1, pod="live"))
    assert found.coordinators[1] == Coordinator("order", 1, 3, 0)
    assert (found.message, found.loose) == (("wipe", 1, 2), ("p.spec", 0))
    assert renamed(found, other) == world


def _pair() -> Scenario:
    return Scenario("pair", ((0,), (0,)), seats=((0,), (1,)))


def test_a_graph_gives_back_what_it_was_given() -> None:
    """States are kept in parts and told apart exactly."""
    first = TWO.initial()
    graph = Graph(first)
    second = first.claim(1, pod="live")
    assert graph.add(second, 0, "a pod") == 1
    assert graph.add(first.claim(1, pod="live"), 0, "again") == 1
    assert graph.add(second._replace(budget=3), 1, "more") == 2
    assert [graph.world(number) for number in range(2)] == [first, second]
    assert graph.story(2) == ["a pod", "more"]
    assert (len(graph), graph.depth) == (3, 2)


def test_a_trap_is_what_leads_to_no_settled_state() -> None:
    """Backwards over what needs no fault, from every settled state."""
    first = TWO.initial()
    graph = Graph(first)
    for number in (1, 2):
        graph.add(first._replace(budget=number), 0, "")
        graph.link(0, number)
    graph.settle(1)
    assert graph.trapped() == 2
    graph.link(2, 1)
    assert graph.trapped() is None
