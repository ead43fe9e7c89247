"""The life of a claim on its node: every pair of state and event, and what each one needs."""

from __future__ import annotations

from itertools import chain, combinations

import pytest

from fleet.core import claim_states, errors
from fleet.core.claim_states import ClaimEvent, ClaimFact, ClaimState

E, F, S = ClaimEvent, ClaimFact, ClaimState
FREE: frozenset[ClaimFact] = frozenset()
JOINED = frozenset({F.PREPARE_JOINED})

# Written from the second table of DESIGN 4, not from the code: state, event, needed, to.
EXPECTED: dict[tuple[ClaimState, ClaimEvent], tuple[frozenset[ClaimFact], ClaimState]] = {
    (S.ABSENT, E.PREPARE): (frozenset({F.LIVE_CONSUMER}), S.PREPARING),
    (S.ABSENT, E.UNPREPARE): (FREE, S.ABSENT),
    (S.ABSENT, E.ABANDON): (frozenset({F.IDLE}), S.ABSENT),
    (S.PREPARING, E.PREPARE): (FREE, S.PREPARING),
    (S.PREPARING, E.PREPARE_FAILED): (FREE, S.PREPARING),
    (S.PREPARING, E.PREPARED): (frozenset({F.UNITS_IN_USE, F.SPEC_WRITTEN}), S.PREPARED),
    (S.PREPARING, E.UNPREPARE): (JOINED, S.UNPREPARING),
    (S.PREPARING, E.ORPHANED): (JOINED, S.UNPREPARING),
    (S.PREPARING, E.NEW_BOOT): (FREE, S.PREPARING),
    (S.PREPARED, E.PREPARE): (FREE, S.PREPARED),
    (S.PREPARED, E.UNPREPARE): (JOINED, S.UNPREPARING),
    (S.PREPARED, E.ORPHANED): (JOINED, S.UNPREPARING),
    (S.PREPARED, E.NEW_BOOT): (FREE, S.PREPARING),
    (S.UNPREPARING, E.UNPREPARE): (FREE, S.UNPREPARING),
    (S.UNPREPARING, E.UNPREPARED): (frozenset({F.UNITS_RELEASED}), S.ABSENT),
    (S.UNPREPARING, E.NEW_BOOT): (FREE, S.UNPREPARING),
}
FACT_SETS = [
    frozenset(chosen)
    for chosen in chain.from_iterable(combinations(F, size) for size in range(len(F) + 1))
]


@pytest.mark.parametrize("event", E)
@pytest.mark.parametrize("state", S)
def test_every_pair(state: ClaimState, event: ClaimEvent) -> None:
    """DESIGN 4: each pair under each set of facts goes where the design says, or is refused."""
    known = EXPECTED.get((state, event))
    for facts in FACT_SETS:
        if known is not None and known[0] <= facts:
            assert claim_states.step(state, event, facts) is known[1]
        else:
            with pytest.raises(errors.IllegalTransition) as caught:
                claim_states.step(state, event, facts)
            assert (caught.value.state, caught.value.event) == (state, event)


def test_abandon_leaves_records_alone() -> None:
    """V4: a claim with a record cannot be abandoned, whatever else is known."""
    for state in (S.PREPARING, S.PREPARED, S.UNPREPARING):
        assert not claim_states.TABLE.accepts(state, E.ABANDON)


def test_nothing_prepares_during_teardown() -> None:
    """A prepare that arrives during teardown is refused; kubelet may try again later."""
    assert not claim_states.TABLE.accepts(S.UNPREPARING, E.PREPARE)


def test_a_new_boot_trusts_nothing_prepared() -> None:
    """V2, D5: after a reboot a PREPARED claim is prepared from the start."""
    assert claim_states.step(S.PREPARED, E.NEW_BOOT) is S.PREPARING
