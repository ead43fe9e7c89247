"""Rules of DESIGN 4 and 5 outside the tables, dropped one by one."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation import checker
from tests.simulation.mutation import NEIGHBOURS, ONE, PARENT_CHILD, TWO, Mutant, at, flow
from tests.simulation.rules import Rules
from tests.simulation.world import Scenario

LATE = replace(at(ONE, "fast", "duplicate", 1), campaign=True)
CAMPAIGN = replace(at(ONE, "strict"), campaign=True)
TWO_COORDINATORS = replace(at(ONE, "strict", "timeout", 1), coordinators=2)
NAMED = replace(at(ONE, "strict"), spare=True)
FORCE = at(ONE, "fast", "force delete", 1)
LOST = at(ONE, "fast", "journal lost", 1)
RESTORED = replace(at(ONE, "fast", "store restored", 1), campaign=True)
OVERLAPPING = replace(at(PARENT_CHILD, "lab", "force delete", 1), clean=True, coarse=True)
PHYSICAL = frozenset({checker.LEASE_ELSEWHERE, checker.STALE_ACT})
"""Left out where the question is what happens to memory."""

ROWS: tuple[tuple[str, str, Scenario, Rules], ...] = (
    ("the node fences acts by token", checker.STALE_ACT, LATE, flow("fence")),
    (
        "teardown closes the token of its record",
        checker.LEASE_ELSEWHERE,
        NAMED,
        flow("teardown closes its token"),
    ),
    (
        "a rollback asks the node to abandon first",
        checker.LEASE_ELSEWHERE,
        TWO_COORDINATORS,
        flow("abandon"),
    ),
    (
        "abandon closes the token",
        checker.LEASE_ELSEWHERE,
        TWO_COORDINATORS,
        flow("closing"),
    ),
    (
        "a release ends only the lease of its own token",
        checker.LEASE_ELSEWHERE,
        CAMPAIGN,
        flow("release by token"),
    ),
    (
        "a lost journal adopts the floors",
        checker.STALE_ACT,
        replace(at(ONE, "fast", "journal lost, duplicate", 2), campaign=True),
        flow("floors adopted"),
    ),
    (
        "only accepted acts raise the floor, teardown is not fenced (V5: both, early release)",
        checker.TRAP,
        replace(at(ONE, "fast", "reboot", 1), campaign=True),
        flow(
            "floor rises with acts only",
            "teardown unfenced",
            "lease kept until the tombstone",
        ),
    ),
    ("reconcile", checker.TRAP, at(ONE, "strict"), flow("reconcile")),
    ("orphan sweep", checker.TRAP, FORCE, flow("orphan sweep")),
    (
        "an orphan is a claim nobody but us reserves, not one that does not exist",
        checker.TRAP,
        FORCE,
        flow("orphan by consumer"),
    ),
    (
        "quarantine is read back before anything is released",
        checker.RELEASED_UNREAD,
        at(ONE, "lab", "wipe", 1),
        flow("quarantine read back"),
    ),
    (
        "slice writes carry resourceVersion",
        checker.QUARANTINE_LOST,
        at(ONE, "lab", "older write, fault", 2),
        flow("resourceVersion on slices"),
    ),
    (
        "a new journal removes orphan specs",
        checker.SPEC_WITHOUT_RECORD,
        LOST,
        flow("orphan specs removed"),
    ),
    (
        "a journal behind its witness is set aside",
        checker.TENANT_UNKNOWN,
        at(ONE, "lab", "journal restored", 1),
        flow("witness"),
    ),
    (
        "a lease excludes every other holder",
        checker.LEASE_ELSEWHERE,
        CAMPAIGN,
        flow("leases exclude"),
    ),
    (
        "a teardown touches its own units only",
        checker.NEIGHBOUR,
        replace(at(NEIGHBOURS, "lab"), clean=True, coarse=True),
        flow("own units only", "tenant proven gone"),
    ),
    (
        "a journal has one owner at a time",
        checker.SPEC_WITHOUT_RECORD,
        at(ONE, "lab", "take-over", 1),
        flow("journal lock"),
    ),
    (
        "the store grants nothing below a node's floor",
        checker.GRANT_BELOW,
        RESTORED,
        flow("store floor"),
    ),
    (
        "adopting a store begins an epoch",
        checker.LEASE_ELSEWHERE,
        RESTORED,
        flow("adoption begins an epoch"),
    ),
)

FLOW_MUTANTS: tuple[Mutant, ...] = (
    *(Mutant(*row) for row in ROWS),
    Mutant(
        "the node refuses a unit of another claim (where the store does not)",
        checker.WIPE_UNDER_TENANT,
        at(TWO, "lab", "force delete", 1),
        flow("node exclusivity", "leases exclude"),
        PHYSICAL,
    ),
    Mutant(
        "exclusivity is by unit, not by device (where the store's is not either)",
        checker.WIPE_UNDER_TENANT,
        OVERLAPPING,
        flow("overlap by unit", "leases exclude"),
        PHYSICAL,
    ),
)
