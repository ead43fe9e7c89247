"""Rules between scheduler, coordinators, store and node, dropped one by one in the joint model."""

from __future__ import annotations

from fleet.core import claim_states
from fleet.core.claim_states import ClaimEvent, ClaimFact, ClaimState
from fleet.core.table import Row, Table
from tests.simulation import checker
from tests.simulation.mutation import ClaimTable, Mutant, flow
from tests.simulation.rules import Rules
from tests.simulation.world import Scenario

ClaimRows = tuple[Row[ClaimState, ClaimEvent, ClaimFact], ...]


def joint(number: int, faults: str, budget: int, *, coordinators: int = 1) -> Scenario:
    """So many claims and one device to be had; `faults` are names parted by commas."""
    return Scenario(
        "mutant joint",
        ((0,),) * number,
        coordinators=coordinators,
        faults=frozenset(faults.split(", ") if faults else ()),
        budget=budget,
        seats=((0,),),
        clean=True,
        coarse=True,
    )


def abandoning_under_a_record() -> ClaimTable:
    """The table of claims in which a record does not keep a coordinator from closing tokens."""
    recorded: tuple[ClaimState, ...] = tuple(set(ClaimState) - {ClaimState.ABSENT})
    kept: ClaimRows = tuple(Row(state, ClaimEvent.ABANDON, state) for state in recorded)
    return Table(claim_states.TABLE.name, (*claim_states.TABLE.rows, *kept))


LATE = joint(1, "binding timeout", 1)

JOINT_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "conditions carry the resourceVersion of what was examined",
        checker.UNEXAMINED,
        LATE,
        flow("claim writes carry resourceVersion"),
    ),
    Mutant(
        "a claim is let go only as it was looked at (V12)",
        checker.DEALLOCATED,
        LATE,
        flow("claim writes carry resourceVersion"),
        frozenset({checker.UNEXAMINED}),
    ),
    Mutant(
        "the lease of an allocation that was taken back is given back",
        checker.TRAP,
        joint(2, "binding timeout", 1),
        flow("allocations taken back are undone"),
    ),
    Mutant(
        "what the scheduler took back is abandoned at the node first",
        checker.LEASE_ELSEWHERE,
        LATE,
        flow("abandon"),
    ),
    Mutant(
        "what the scheduler took back has its token closed",
        checker.LEASE_ELSEWHERE,
        LATE,
        flow("closing"),
    ),
    Mutant(
        "a claim with a record is not abandoned",
        checker.LEASE_ELSEWHERE,
        LATE,
        Rules(claims=abandoning_under_a_record()),
    ),
    Mutant(
        "of a device allocated twice only one claim gets the lease",
        checker.LEASE_ELSEWHERE,
        joint(2, "stale allocation", 1),
        flow("leases exclude"),
    ),
)
