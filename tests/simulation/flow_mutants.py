"""Rules of DESIGN 4 and 5 outside the tables, dropped one by one."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation import checker
from tests.simulation.mutation import (
    HOLDER_AND_LOOKER,
    LOOKS,
    NEIGHBOURS,
    ONE,
    PARENT,
    PARENT_CHILD,
    TWO,
    Mutant,
    at,
    flow,
)
from tests.simulation.rules import Rules
from tests.simulation.world import Scenario

LATE = replace(at(ONE, "fast", "duplicate", 1), campaign=True)
CAMPAIGN = replace(at(ONE, "strict"), campaign=True)
TWO_COORDINATORS = replace(at(ONE, "strict", "timeout", 1), coordinators=2)
NAMED = replace(at(ONE, "strict"), spare=True)
FORCE = at(ONE, "fast", "force delete", 1)
RESTORED = replace(at(ONE, "fast", "store restored", 1), campaign=True)
OVERLAPPING = replace(at(PARENT_CHILD, "lab", "force delete", 1), clean=True, coarse=True)
CUT = replace(at(ONE, "lab", "crash", 1), coordinators=0)
CUT_NAMED = replace(at(ONE, "lab", "crash", 1), spare=True)
CUT_ELSEWHERE = replace(CUT, spare=True, elsewhere=True)
ATTACHED = replace(at(HOLDER_AND_LOOKER, "lab"), attached=LOOKS, coordinators=0)
ATTACHED_LOST = replace(at(((),), "lab", "journal lost", 1), attached=((0,),), coordinators=0)
EARLY = replace(at(ONE, "lab", "early unprepare", 1), coordinators=0)
AGAIN = replace(at(ONE, "lab", "fault, clear", 3), coordinators=0)
HALF = replace(at(PARENT, "lab", "fault", 1), clean=True, coarse=True, coordinators=0)
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
        ATTACHED_LOST,
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

NODE_ROWS: tuple[tuple[str, str, Scenario, Rules], ...] = (
    (
        "a record without a token has its lease released by holder",
        checker.TRAP,
        CUT,
        flow("release by holder"),
    ),
    (
        "the record is durable before the lease is asked for",
        checker.TRAP,
        CUT,
        flow("record before lease"),
    ),
    (
        "a release by holder leaves the lease to a record that exists again",
        checker.LEASE_ELSEWHERE,
        CUT_NAMED,
        flow("holder release asks for a record"),
    ),
    (
        "only a record of the same units keeps a release by holder off",
        checker.TRAP,
        CUT_ELSEWHERE,
        flow("holder release looks at units"),
    ),
    (
        "an earlier quarantine's visibility proves nothing for a later one",
        checker.RELEASED_UNREAD,
        AGAIN,
        flow("visibility of this quarantine"),
    ),
    (
        "the burial itself asks whether the quarantine is visible",
        checker.RELEASED_UNREAD,
        AGAIN,
        flow("visibility asked in the burial"),
    ),
    (
        "a device with a unit out of service goes out as a whole",
        checker.TRAP,
        HALF,
        flow("devices go out of service whole"),
    ),
    (
        "nothing is wiped while somebody is attached",
        checker.WIPE_UNDER_ATTACHED,
        ATTACHED,
        flow("attached keeps wipes off"),
    ),
    (
        "who was attached is let go once its pod is gone",
        checker.WIPE_UNDER_ATTACHED,
        replace(ATTACHED_LOST, faults=frozenset({"force delete"})),
        flow("tenant proven gone"),
    ),
    (
        "nobody is attached during a wipe, nor beside a surviving worker",
        checker.WIPE_UNDER_ATTACHED,
        ATTACHED,
        flow("attaching waits for work"),
    ),
    (
        "attaching makes CLEAN dirty",
        checker.ATTACHED_UNKNOWN,
        ATTACHED,
        flow("attaching dirties"),
    ),
    (
        "a pod kubelet gave a device of ours keeps wipes off without a record",
        checker.WIPE_UNDER_ATTACHED,
        ATTACHED_LOST,
        flow("unknown consumers keep wipes off"),
    ),
    (
        "a teardown is refused while a pod the claim is reserved for runs",
        checker.TORN_DOWN,
        EARLY,
        flow("running pods refuse teardown"),
    ),
)
"""Rules of a node that kubelet calls: no coordinator takes part but where one is needed."""

FLOW_MUTANTS: tuple[Mutant, ...] = (
    *(Mutant(*row) for row in (*ROWS, *NODE_ROWS)),
    Mutant(
        "the node refuses a unit of another claim (where the store does not)",
        checker.TWO_EXPOSED,
        at(TWO, "lab", "force delete", 1),
        flow("node exclusivity", "leases exclude"),
        PHYSICAL,
    ),
    Mutant(
        "exclusivity is by unit, not by device (where the store's is not either)",
        checker.TWO_EXPOSED,
        OVERLAPPING,
        flow("overlap by unit", "leases exclude"),
        PHYSICAL,
    ),
)
