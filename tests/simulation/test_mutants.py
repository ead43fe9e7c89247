"""Every rule matters: the protocol without it breaks, and the search says what and how."""

from __future__ import annotations

import pytest

from tests.simulation.catalogue import ONE, SCENARIOS
from tests.simulation.joint_mutants import joint
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.rules import FLOW_RULES, Rules
from tests.simulation.search import search
from tests.simulation.world import Scenario

STATES_MAX = 100_000
ACTS = frozenset({"crash", "duplicate", "force delete", "reboot", "journal lost"})
FAST = Scenario("covered", ONE, "fast", campaign=True, faults=ACTS, budget=1)
COVERED = {
    "claim writes name the uid": joint(2, "binding timeout", 1),
    "idle cleaner asks for records": FAST,
    "records refuse wipes": FAST,
}
"""Rules whose loss other rules make good (resourceVersion of what was read; IN_USE refuses wipes,
fence, certificate of the token), and where the search shows it: they save work, and real checks
race where the model's are atomic."""
DISTINCT = tuple(dict.fromkeys(mutant.scenario for mutant in MUTANTS))
UNBROKEN = tuple(
    one
    for one in DISTINCT
    if not any(other.includes(one) for other in (*SCENARIOS, *DISTINCT) if other is not one)
)
"""Those that no other search of the protocol includes."""


def _told(scenario: Scenario) -> str:
    faults = ", ".join(sorted(scenario.faults)) or "no fault"
    return f"{scenario.profile} {len(scenario.devices)} claims {faults}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule)
def test_broken_protocol_is_caught(mutant: Mutant) -> None:
    """Promises 1 to 9: each deliberately broken version is caught by the property named for it."""
    found = search(mutant.scenario, mutant.rules, states_max=STATES_MAX, ignored=mutant.ignored)
    assert mutant.caught_by in found.broken, found.text()
    assert found.story


@pytest.mark.parametrize("scenario", UNBROKEN, ids=_told)
def test_same_scenarios_unbroken(scenario: Scenario) -> None:
    """The scenarios that break the mutants are all passed by the protocol, completely: these, and
    with them those that they or the catalogue's include."""
    found = search(scenario, states_max=STATES_MAX)
    assert not found.broken, found.text()
    assert found.exhausted, found.text()


def test_every_flow_rule_is_dropped_once() -> None:
    """No rule of the model is decoration: each is dropped by a mutant or known to be covered."""
    dropped = {rule for mutant in MUTANTS for rule in mutant.rules.dropped}
    assert dropped | set(COVERED) == FLOW_RULES
    assert not dropped & set(COVERED)


@pytest.mark.parametrize("rule", sorted(COVERED))
def test_covered_rule(rule: str) -> None:
    """A rule said to be covered by others is: without it nothing breaks."""
    found = search(COVERED[rule], Rules(dropped=frozenset({rule})))
    assert not found.broken, found.text()
    assert found.exhausted


def test_misspelt_rule() -> None:
    """A mutant or scenario with a name nobody asks for is refused, not searched in vain."""
    with pytest.raises(ValueError, match="no such rules"):
        Rules(dropped=frozenset({"fense"}))
    with pytest.raises(ValueError, match="no such faults"):
        Scenario("typo", ONE, faults=frozenset({"crush"}))


def test_number_of_mutants() -> None:
    """DESIGN 4: at least 20 broken versions, every one with a rule of its own."""
    assert len({mutant.rule for mutant in MUTANTS}) == len(MUTANTS)
    assert len(MUTANTS) >= 26
