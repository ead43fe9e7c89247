"""The unbroken protocol, searched completely: every promise in every state, and no trap."""

from __future__ import annotations

from functools import cache

import pytest

from fleet.core import claim_states, unit_states
from tests.simulation import catalogue, checker
from tests.simulation.rules import Rules
from tests.simulation.search import Found, main, search, settled
from tests.simulation.sweep import NEVER_TAKEN
from tests.simulation.world import Scenario


@cache
def searched(scenario: Scenario) -> tuple[Found, frozenset[tuple[str, str, str]]]:
    """What a search came to, and the rows of the tables that it took."""
    rules = Rules()
    return search(scenario, rules), frozenset(rules.taken)


@pytest.mark.parametrize("scenario", catalogue.SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario) -> None:
    """Promises 1 to 9 hold in every reachable state, and each can still reach a settled one."""
    found, _ = searched(scenario)
    assert not found.broken, found.text()
    assert found.exhausted, found.text()
    assert found.states > 1000


def test_every_row_is_searched() -> None:
    """The search takes every row of both tables but those no reachable state asks for."""
    taken = frozenset[tuple[str, str, str]]().union(
        *(searched(one)[1] for one in catalogue.SCENARIOS)
    )
    units = {(str(r.state), str(r.event), str(r.to)) for r in unit_states.TABLE.rows}
    records = {(str(r.state), str(r.event), str(r.to)) for r in claim_states.TABLE.rows}
    assert units - taken == NEVER_TAKEN
    assert records - taken == set()


def test_a_trap_is_told_from_a_detour() -> None:
    """A settled state is released everywhere; the first state, with nothing clean, is not one."""
    scenario = catalogue.SCENARIOS[0]
    assert not settled(scenario.initial())


def test_a_cut_search_says_so() -> None:
    """A search that ran into its limit does not count as a pass."""
    found = search(catalogue.SCENARIOS[0], states_max=50)
    assert not found.exhausted
    assert found.text().endswith("CUT")


def test_the_story_is_the_shortest() -> None:
    """A violation is told as the steps that lead to it, none of them superfluous."""
    from tests.simulation.mutants import MUTANTS

    mutant = next(m for m in MUTANTS if m.rule == "CLEAN needs a durable certificate")
    found = search(mutant.scenario, mutant.rules)
    assert found.broken == [checker.UNCERTIFIED]
    assert found.story == [
        "idle cleaner starts a wipe of unit 0",
        "wipe i0: all of it zero and verified",
        "wipe i0: checks passed, committed",
    ]
    assert "  3. wipe i0: checks passed, committed" in found.text()


def test_a_table_for_the_documents(capsys: pytest.CaptureFixture[str]) -> None:
    """Each search is a row: its bounds, what it visited, and whether it came to an end."""
    assert main(["--table", "lab parent F1"]) == 0
    head, _, line = capsys.readouterr().out.splitlines()
    assert head.count("|") == line.count("|")
    assert line.startswith("| lab parent F1 | 2 | 1 | 0 | ")
    assert line.endswith(" | complete |")
