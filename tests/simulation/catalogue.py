"""The scenarios that are searched completely.

One joint model of everything is too large; each scenario joins what can disturb each other and
bounds how many faults strike (the last figure of its name). `SCENARIOS` run in CI, `DEEP` by
``python -m tests.simulation.search --deep``.
"""

from __future__ import annotations

from tests.simulation import world
from tests.simulation.world import Scenario

ONE = ((0,),)
TWO = ((0,), (0,))
PARENT_CHILD = ((0, 1), (0,))
PARENT_CHILDREN = ((0, 1), (0,), (1,))
NEIGHBOURS = ((0,), (1,))

FAULTS = world.FAULTS - {"store restored"}
"""A restored store has scenarios of its own."""
STORE = frozenset({"store restored", "crash", "duplicate", "force delete"})
LOSS = frozenset({"journal lost", "duplicate", "adopt", "force delete"})
TALK = frozenset({"timeout", "duplicate", "coordinator crash", "force delete"})
PARTS = frozenset({"force delete", "crash", "fault"})

SCENARIOS: tuple[Scenario, ...] = (
    Scenario("strict campaign F1", ONE, campaign=True, faults=FAULTS, budget=1),
    Scenario("strict 2 coordinators F1", ONE, coordinators=2, faults=FAULTS, budget=1),
    Scenario(
        "strict 2 coordinators campaign F1",
        ONE,
        coordinators=2,
        campaign=True,
        faults=TALK,
        budget=1,
    ),
    Scenario("strict 2 claims F1", TWO, faults=PARTS | {"journal lost", "reboot"}, budget=1),
    Scenario("strict named F0", ONE, spare=True),
    Scenario("fast F2", ONE, profile="fast", faults=FAULTS, budget=2),
    Scenario("fast 2 claims F1", TWO, profile="fast", faults=FAULTS, budget=1),
    Scenario("fast named F1", ONE, profile="fast", spare=True, faults=FAULTS, budget=1),
    Scenario("fast lost F2", ONE, profile="fast", campaign=True, faults=LOSS, budget=2),
    Scenario("fast interrupted F3", ONE, profile="fast", faults=frozenset({"wipe"}), budget=3),
    Scenario(
        "fast restored F1",
        ONE,
        profile="fast",
        campaign=True,
        faults=frozenset({"store restored"}),
        budget=1,
    ),
    Scenario("strict restored F1", ONE, campaign=True, faults=STORE, budget=1),
    Scenario("lab F2", ONE, profile="lab", faults=FAULTS, budget=2),
    Scenario(
        "lab parent child F1",
        PARENT_CHILD,
        profile="lab",
        faults=PARTS,
        budget=1,
        clean=True,
        coarse=True,
    ),
    Scenario("lab parent children F0", PARENT_CHILDREN, profile="lab", clean=True, coarse=True),
    Scenario(
        "lab neighbours F1",
        NEIGHBOURS,
        profile="lab",
        faults=frozenset({"fault"}),
        budget=1,
        clean=True,
        coarse=True,
    ),
)
"""Small enough for CI: about a minute on one core altogether."""

DEEP: tuple[Scenario, ...] = (
    Scenario("strict F2", ONE, faults=FAULTS, budget=2),
    Scenario("strict 2 claims all F1", TWO, faults=FAULTS, budget=1),
    Scenario("strict named F1", ONE, spare=True, faults=FAULTS, budget=1),
    Scenario("fast 2 claims F2", TWO, profile="fast", faults=FAULTS, budget=2),
    Scenario("fast F3", ONE, profile="fast", faults=FAULTS, budget=3),
    Scenario("fast restored F2", ONE, profile="fast", campaign=True, faults=STORE, budget=2),
    Scenario("fast parent children F0", PARENT_CHILDREN, profile="fast", clean=True, coarse=True),
    Scenario(
        "lab parent children F1",
        PARENT_CHILDREN,
        profile="lab",
        faults=frozenset({"force delete"}),
        budget=1,
        clean=True,
        coarse=True,
    ),
    Scenario(
        "lab neighbours more F1",
        NEIGHBOURS,
        profile="lab",
        faults=PARTS | {"wipe"},
        budget=1,
        clean=True,
        coarse=True,
    ),
)
"""Minutes each, up to a few gigabytes of memory."""
