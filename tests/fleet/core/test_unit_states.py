"""The life of a unit: every pair of state and event, and what an event leaves behind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.core import errors, unit_states
from fleet.core.model import (
    NO_TOKEN,
    BootId,
    ClaimUid,
    Digest,
    Reason,
    Source,
    State,
    Token,
    Unit,
    UnitId,
)
from fleet.core.unit_states import Change, Event, Fact

E, F, S = Event, Fact, State
LINK = Reason("link-degraded", Source.HEALTH, liftable=True, since=5.0)
REMAP = Reason("remap-failed", Source.KERNEL, liftable=False, since=6.0)
CERTIFICATE = Digest("sha256:1")
START = frozenset({F.NO_PROCESS, F.NO_CONTAINER, F.NO_SURVIVOR, F.WORKER_JOURNALLED})
EXPOSURE = frozenset(
    {F.LEASE_OF_CLAIM, F.CERTIFICATE_ACCEPTED, F.SAME_BOOT, F.NO_SURVIVOR, F.HOLDERS_REREAD}
)
GONE = frozenset({F.WORKER_GONE})
TENANT_GONE = frozenset({F.TENANT_GONE, F.SPEC_GONE})
DURABLE = frozenset({F.CERTIFICATE_DURABLE})
NONE: frozenset[Fact] = frozenset()

Way = tuple[frozenset[Fact], State]
"""Facts the caller must have established, and where the event then leads a unit without reasons."""
# Written from the first table of DESIGN 4, not from the code. First way whose facts hold.
EXPECTED: dict[tuple[State, Event], tuple[Way, ...]] = {
    (S.HELD, E.PROVEN_FREE): ((NONE, S.DIRTY),),
    (S.HELD, E.FAULT_SEEN): ((NONE, S.HELD),),
    (S.HELD, E.NEW_BOOT): ((NONE, S.HELD),),
    (S.DIRTY, E.WIPE_STARTED): ((START, S.WIPING),),
    (S.DIRTY, E.TRUST_LOST): ((GONE, S.DIRTY), (NONE, S.QUARANTINED)),
    (S.DIRTY, E.FAULT_SEEN): ((NONE, S.QUARANTINED),),
    (S.DIRTY, E.NEW_BOOT): ((NONE, S.DIRTY),),
    (S.WIPING, E.WIPE_VERIFIED): ((NONE, S.CHECKING),),
    (S.WIPING, E.CANCELLED): ((GONE, S.DIRTY), (NONE, S.QUARANTINED)),
    (S.WIPING, E.INTERRUPTED): ((GONE, S.DIRTY), (NONE, S.QUARANTINED)),
    (S.WIPING, E.WIPE_FAILED): ((NONE, S.QUARANTINED),),
    (S.WIPING, E.TIMED_OUT): ((NONE, S.QUARANTINED),),
    (S.WIPING, E.TRUST_LOST): ((GONE, S.DIRTY), (NONE, S.QUARANTINED)),
    (S.WIPING, E.FAULT_SEEN): ((NONE, S.QUARANTINED),),
    (S.WIPING, E.NEW_BOOT): ((NONE, S.DIRTY),),
    (S.CHECKING, E.HEALTH_PASSED): ((DURABLE, S.CLEAN),),
    (S.CHECKING, E.HEALTH_FAILED): ((NONE, S.QUARANTINED),),
    (S.CHECKING, E.TIMED_OUT): ((NONE, S.QUARANTINED),),
    (S.CHECKING, E.INTERRUPTED): ((GONE, S.DIRTY), (NONE, S.QUARANTINED)),
    (S.CHECKING, E.TRUST_LOST): ((GONE, S.DIRTY), (NONE, S.QUARANTINED)),
    (S.CHECKING, E.FAULT_SEEN): ((NONE, S.QUARANTINED),),
    (S.CHECKING, E.NEW_BOOT): ((NONE, S.DIRTY),),
    (S.CLEAN, E.EXPOSED): ((EXPOSURE, S.IN_USE),),
    (S.CLEAN, E.WIPE_STARTED): ((START, S.WIPING),),
    (S.CLEAN, E.TRUST_LOST): ((GONE, S.DIRTY), (NONE, S.QUARANTINED)),
    (S.CLEAN, E.FAULT_SEEN): ((NONE, S.QUARANTINED),),
    (S.CLEAN, E.NEW_BOOT): ((NONE, S.DIRTY),),
    (S.IN_USE, E.RELEASED): ((TENANT_GONE, S.DIRTY),),
    (S.IN_USE, E.TEARDOWN_FAILED): ((NONE, S.QUARANTINED),),
    (S.IN_USE, E.FAULT_SEEN): ((NONE, S.IN_USE),),
    (S.IN_USE, E.TRUST_LOST): ((NONE, S.IN_USE),),
    (S.IN_USE, E.NEW_BOOT): ((NONE, S.DIRTY),),
    (S.QUARANTINED, E.RETEST_STARTED): ((START | {F.NO_CLAIM_RECORD}, S.RETESTING),),
    (S.QUARANTINED, E.CLEARED): ((NONE, S.DIRTY),),
    (S.QUARANTINED, E.FAULT_SEEN): ((NONE, S.QUARANTINED),),
    (S.QUARANTINED, E.NEW_BOOT): ((NONE, S.QUARANTINED),),
    (S.RETESTING, E.RETEST_PASSED): ((DURABLE, S.CLEAN), (NONE, S.QUARANTINED)),
    (S.RETESTING, E.WIPE_FAILED): ((NONE, S.QUARANTINED),),
    (S.RETESTING, E.TIMED_OUT): ((NONE, S.QUARANTINED),),
    (S.RETESTING, E.CANCELLED): ((NONE, S.QUARANTINED),),
    (S.RETESTING, E.INTERRUPTED): ((NONE, S.QUARANTINED),),
    (S.RETESTING, E.HEALTH_FAILED): ((NONE, S.QUARANTINED),),
    (S.RETESTING, E.TRUST_LOST): ((NONE, S.QUARANTINED),),
    (S.RETESTING, E.FAULT_SEEN): ((NONE, S.QUARANTINED),),
    (S.RETESTING, E.NEW_BOOT): ((NONE, S.QUARANTINED),),
}
GIVEN = [fact for fact in F if fact not in unit_states.DERIVED]


def _unit(state: State, *reasons: Reason, interruptions: int = 0) -> Unit:
    return Unit(
        UnitId("a/0"),
        state=state,
        reasons=frozenset(reasons),
        floor=Token(1, 3),
        token=Token(1, 3),
        certificate=CERTIFICATE if state in (S.CLEAN, S.IN_USE) else None,
        interruptions=interruptions,
        since=1.0,
    )


def _fact_sets(state: State, event: Event) -> list[frozenset[Fact]]:
    """All, none, and for each way exactly its facts, all others, and each fact less in turn."""
    chosen = {NONE, frozenset(GIVEN)}
    for needed, _ in EXPECTED.get((state, event), ()):
        chosen |= {needed, *(needed - {fact} for fact in needed)}
        chosen |= {frozenset(GIVEN) - {fact} for fact in needed}
    return sorted(chosen, key=sorted)


@pytest.mark.parametrize("event", E)
@pytest.mark.parametrize("state", S)
def test_every_pair(state: State, event: Event) -> None:
    """DESIGN 4: each pair leads where the design says, or is refused and changes nothing."""
    unit = _unit(state)
    for facts in _fact_sets(state, event):
        change = Change(facts, certificate=CERTIFICATE, token=Token(1, 3))
        ways = [to for needed, to in EXPECTED.get((state, event), ()) if needed <= facts]
        if ways:
            assert unit_states.step(unit, event, now=2.0, change=change).state is ways[0]
        else:
            with pytest.raises(errors.IllegalTransition) as caught:
                unit_states.step(unit, event, now=2.0, change=change)
            assert (caught.value.state, caught.value.event) == (state, event)
        assert unit == _unit(state)


def test_every_pair_is_written_down() -> None:
    """The table has a row for a pair exactly when the design has."""
    for state in S:
        for event in E:
            assert unit_states.TABLE.accepts(state, event) == ((state, event) in EXPECTED)


@pytest.mark.parametrize(
    ("state", "event", "facts"),
    [
        (S.HELD, E.PROVEN_FREE, NONE),
        (S.IN_USE, E.RELEASED, TENANT_GONE),
        (S.IN_USE, E.NEW_BOOT, NONE),
        (S.QUARANTINED, E.CLEARED, NONE),
        (S.RETESTING, E.NEW_BOOT, NONE),
    ],
)
def test_open_reasons_outlast(state: State, event: Event, facts: frozenset[Fact]) -> None:
    """Promise 6: with a reason open no event leads back into service."""
    moved = unit_states.step(_unit(state, LINK), event, now=2.0, change=Change(facts))
    assert moved.state is S.QUARANTINED
    assert moved.reasons == {LINK}


@pytest.mark.parametrize("event", [E.CANCELLED, E.INTERRUPTED, E.TRUST_LOST])
def test_a_reason_brought_along_quarantines(event: Event) -> None:
    """D4: promise 6: a unit whose wipe ends with a reason is not left DIRTY with it, a trap."""
    change = Change(GONE, frozenset({LINK}))
    moved = unit_states.step(_unit(S.WIPING), event, now=2.0, change=change)
    assert (moved.state, moved.reasons) == (S.QUARANTINED, frozenset({LINK}))


@pytest.mark.parametrize("state", [S.HELD, S.IN_USE, S.QUARANTINED])
@pytest.mark.parametrize("order", [(LINK, REMAP), (REMAP, LINK)])
def test_two_faults_are_both_remembered(state: State, order: tuple[Reason, Reason]) -> None:
    """B31: two faults in any order leave both reasons; clearing one leaves the other."""
    unit = _unit(state)
    for now, reason in enumerate(order, 10):
        change = Change(reasons=frozenset({reason}))
        unit = unit_states.step(unit, E.FAULT_SEEN, now=float(now), change=change)
    assert unit.reasons == {LINK, REMAP}
    held = replace(unit, state=S.QUARANTINED)
    cleared = Change(cleared=frozenset({(LINK.code, str(LINK.source))}))
    left = unit_states.step(held, E.CLEARED, now=20.0, change=cleared)
    assert (left.state, left.reasons) == (S.QUARANTINED, frozenset({REMAP}))
    both = Change(cleared=frozenset({(REMAP.code, str(REMAP.source))}))
    free = unit_states.step(left, E.CLEARED, now=21.0, change=both)
    assert (free.state, free.reasons) == (S.DIRTY, frozenset())


def test_since_never_moves() -> None:
    """B31: a reason seen again keeps the moment it was first seen, a unit that of its state."""
    again = replace(LINK, since=99.0, detail="again")
    unit = _unit(S.QUARANTINED, LINK)
    moved = unit_states.step(
        unit, E.FAULT_SEEN, now=99.0, change=Change(reasons=frozenset({again}))
    )
    assert [(reason.since, reason.detail) for reason in moved.reasons] == [(5.0, "")]
    assert moved.since == 1.0


def test_same_code_from_two_sources() -> None:
    """B31: clearing a reason of one source leaves the same code of another source."""
    other = replace(LINK, source=Source.OPERATOR)
    cleared = Change(cleared=frozenset({(LINK.code, str(LINK.source))}))
    moved = unit_states.step(_unit(S.QUARANTINED, LINK, other), E.CLEARED, now=2.0, change=cleared)
    assert (moved.state, moved.reasons) == (S.QUARANTINED, frozenset({other}))


def test_a_retest_lifts_only_what_a_rule_may() -> None:
    """Promise 6: a passed retest cleans a unit only if every reason may be lifted by rule."""
    change = Change(DURABLE, certificate=CERTIFICATE)
    lifted = unit_states.step(_unit(S.RETESTING, LINK), E.RETEST_PASSED, now=2.0, change=change)
    assert (lifted.state, lifted.reasons) == (S.CLEAN, frozenset())
    kept = unit_states.step(
        _unit(S.RETESTING, LINK, REMAP), E.RETEST_PASSED, now=2.0, change=change
    )
    assert (kept.state, kept.reasons) == (S.QUARANTINED, frozenset({LINK, REMAP}))


def test_third_interruption() -> None:
    """Promise 5: a third wipe in a row whose worker died unasked is quarantined."""
    unit = _unit(S.WIPING)
    for expected in (S.DIRTY, S.DIRTY, S.QUARANTINED):
        unit = unit_states.step(unit, E.INTERRUPTED, now=2.0, change=Change(GONE))
        assert unit.state is expected
        unit = replace(unit, state=S.WIPING)


def test_a_pass_forgets_interruptions() -> None:
    """Only interruptions in a row count: a certified pass starts the count over."""
    change = Change(DURABLE, certificate=CERTIFICATE)
    unit = _unit(S.CHECKING, interruptions=2)
    assert unit_states.step(unit, E.HEALTH_PASSED, now=2.0, change=change).interruptions == 0


def test_derived_facts_are_not_taken_from_callers() -> None:
    """A caller cannot claim that no reason is open."""
    lie = Change(TENANT_GONE | unit_states.DERIVED)
    moved = unit_states.step(_unit(S.IN_USE, LINK), E.RELEASED, now=2.0, change=lie)
    assert moved.state is S.QUARANTINED


def test_a_durable_certificate_has_a_digest() -> None:
    """Promise 8: saying that a certificate is durable without naming it is not enough."""
    with pytest.raises(errors.IllegalTransition, match="certificate durable"):
        unit_states.step(_unit(S.CHECKING), E.HEALTH_PASSED, now=2.0, change=Change(DURABLE))


def test_a_wipe_drops_the_certificate() -> None:
    """Promise 8: from the start of a wipe the old certificate does not count any more."""
    change = Change(START, token=Token(1, 4))
    moved = unit_states.step(_unit(S.CLEAN), E.WIPE_STARTED, now=2.0, change=change)
    assert (moved.certificate, moved.token, moved.since) == (None, Token(1, 4), 2.0)


def test_a_new_boot_is_remembered() -> None:
    """D5: the boot id moves with the event, the certificate of the old boot is dropped."""
    change = Change(boot_id=BootId("b2"))
    moved = unit_states.step(_unit(S.CLEAN), E.NEW_BOOT, now=2.0, change=change)
    assert (moved.state, moved.boot_id, moved.certificate) == (S.DIRTY, "b2", None)


def test_floor_rises_and_never_falls() -> None:
    """Promise 2: acts raise the floor, an older one leaves it, and nothing reopens a token."""
    unit = _unit(S.DIRTY)
    assert unit_states.raise_floor(unit, Token(1, 2)) == unit
    assert unit_states.raise_floor(unit, Token(1, 9)).floor == Token(1, 9)
    closed = unit_states.close_floor(unit, Token(1, 3))
    assert (closed.floor, closed.closed) == (Token(1, 3), True)
    assert unit_states.raise_floor(closed, Token(1, 3)).closed
    assert not unit_states.raise_floor(closed, Token(1, 4)).closed
    assert unit_states.close_floor(unit, Token(1, 2)) == unit


def test_a_fresh_journal_trusts_nothing() -> None:
    """Promise 5: without its journal a unit is HELD, uncertified, unclaimed."""
    unit = replace(_unit(S.IN_USE), claim=ClaimUid("c"))
    fresh = unit_states.fresh(unit)
    assert (fresh.state, fresh.certificate, fresh.claim) == (S.HELD, None, None)
    assert (fresh.token, fresh.floor) == (None, NO_TOKEN)


REASON_SETS = st.frozensets(st.sampled_from([LINK, REMAP]))
CHANGES = st.builds(
    Change,
    facts=st.frozensets(st.sampled_from(list(F))),
    reasons=REASON_SETS,
    cleared=st.frozensets(st.sampled_from([(r.code, str(r.source)) for r in (LINK, REMAP)])),
    token=st.sampled_from([None, Token(1, 1), Token(1, 2)]),
    certificate=st.sampled_from([None, CERTIFICATE]),
    claim=st.sampled_from([None, ClaimUid("c")]),
)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from([state for state in S if state not in (S.CLEAN, S.IN_USE)]),
    REASON_SETS,
    st.lists(st.tuples(st.sampled_from(list(E)), CHANGES), max_size=25),
)
def test_never_clean_without_certificate(
    state: State, reasons: frozenset[Reason], steps: list[tuple[Event, Change]]
) -> None:
    """Promise 8, B02: whatever happens in whatever order, CLEAN has a certificate and no reason."""
    unit = _unit(state, *(reasons if state not in (S.DIRTY, S.WIPING, S.CHECKING) else ()))
    for event, change in steps:
        try:
            unit = unit_states.step(unit, event, now=2.0, change=change)
        except errors.IllegalTransition:
            continue
        if unit.state is S.CLEAN:
            assert unit.certificate == unit.head == CERTIFICATE
            assert not unit.reasons
        if unit.state is S.DIRTY:
            assert not unit.reasons
            assert unit.certificate is None
