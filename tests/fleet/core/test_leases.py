"""Lease and token rules: all or nothing, never reused, fenced, released in two steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.core import errors, leases
from fleet.core.leases import AcquireRequest, ClosedBy, Closure, Granted, Refused
from fleet.core.model import NO_TOKEN, Holder, HolderKind, Lease, NodeName, Token, Unit, UnitId

A, B = UnitId("a/0"), UnitId("b/0")
CLAIM, OTHER = Holder(HolderKind.CLAIM, "c1"), Holder(HolderKind.CLAIM, "c2")
RUN = Holder(HolderKind.CAMPAIGN, "r1")
NOW = 10.0
EPOCH = 10_000_000 * leases.EPOCH_STEPS
"""Minted now: the next token is the next number."""
NEWEST = Token(EPOCH, 7)


def _lease(holder: Holder, counter: int, expires_at: float | None = None) -> Lease:
    return Lease(frozenset({A, B}), holder, Token(EPOCH, counter), expires_at)


def _decide(
    current: dict[UnitId, Lease], floor: Token | None = None, *, closed: bool = False
) -> Granted | Refused:
    request = AcquireRequest(frozenset({A, B}), CLAIM, min_token=floor, closed=closed)
    return leases.decide_acquire(request, current, NEWEST, now=10.0)


def test_free_units_get_the_next_token() -> None:
    """B4: a new lease carries a token above all issued before."""
    assert _decide({}) == Granted(Token(EPOCH, 8), same=False)


def test_b42_a_store_put_back_from_a_copy_issues_no_token_again() -> None:
    """B42, promise 2: the next token is above all that can have been issued since the copy."""
    request = AcquireRequest(frozenset({A, B}), CLAIM)
    for later_s, counter in ((0.000_5, 500), (3600.0, 3_600_000_000)):
        answer = leases.decide_acquire(request, {}, NEWEST, now=NOW + later_s)
        assert answer == Granted(Token(EPOCH, counter), same=False)
    behind = leases.decide_acquire(request, {}, NEWEST, now=NOW - 3600.0)
    assert behind == Granted(Token(EPOCH, 8), same=False), "a clock set back takes nothing away"


@given(st.integers(0, 2**62), st.integers(0, 2**62), st.floats(0, 4e9))
def test_a_token_is_always_above_the_newest(epoch: int, counter: int, now: float) -> None:
    """Promise 2: whatever the clock says; stores keep both parts in 63 bits."""
    newest = Token(epoch, counter)
    following = leases.next_token(newest, now)
    assert newest < following
    assert following.epoch == epoch
    assert following.counter < 2**63


def test_all_or_nothing() -> None:
    """B5: one unit held by another refuses the whole request and names the holder."""
    assert _decide({B: _lease(OTHER, 3)}) == Refused(B, OTHER)


def test_an_expired_lease_holds_nobody_up() -> None:
    """A campaign's lease is over at its very moment of expiry."""
    assert _decide({A: _lease(RUN, 3, 10.0)}) == Granted(Token(EPOCH, 8), same=False)
    assert _decide({A: _lease(RUN, 3, 10.1)}) == Refused(A, RUN)


def test_only_who_tests_anew_is_given_what_is_quarantined() -> None:
    """Promise 6: its node decides; a claim has to wait until the quarantine is over."""
    bad = _lease(Holder(HolderKind.QUARANTINE, "a"), 3)
    assert _decide({A: bad}) == Refused(A, bad.holder)
    for kind in (HolderKind.CAMPAIGN, HolderKind.OPERATOR):
        request = AcquireRequest(frozenset({A, B}), Holder(kind, "r"), ttl_s=9.0)
        answer = leases.decide_acquire(request, {A: bad}, NEWEST, now=10.0)
        assert answer == Granted(Token(EPOCH, 8), same=False)


def test_the_same_holder_gets_the_same_token() -> None:
    """V3: acquiring again answers the same, so that a lost answer costs nothing."""
    held = {A: _lease(CLAIM, 5), B: _lease(CLAIM, 5)}
    assert _decide(held) == Granted(Token(EPOCH, 5), same=True)
    assert _decide(held, Token(EPOCH, 5)) == Granted(Token(EPOCH, 5), same=True)


@pytest.mark.parametrize(("floor", "closed"), [(Token(EPOCH, 5), True), (Token(EPOCH, 6), False)])
def test_a_closed_token_is_not_given_again(floor: Token, closed: bool) -> None:
    """V4: a holder whose token the node closed gets a new one."""
    held = {A: _lease(CLAIM, 5), B: _lease(CLAIM, 5)}
    assert _decide(held, floor, closed=closed) == Granted(Token(EPOCH, 8), same=False)


def test_units_under_different_tokens_get_one_new_token() -> None:
    """A lease is one whole: parts held under different tokens are taken again together."""
    parts = {A: _lease(CLAIM, 5), B: _lease(CLAIM, 6)}
    assert _decide(parts) == Granted(Token(EPOCH, 8), same=False)
    assert _decide({A: _lease(CLAIM, 5)}) == Granted(Token(EPOCH, 8), same=False)


HOLDERS = st.sampled_from([CLAIM, OTHER, RUN])
TIMES = st.one_of(st.none(), st.floats(min_value=0, max_value=20))


@given(
    st.dictionaries(
        st.sampled_from([A, B]),
        st.builds(_lease, HOLDERS, st.integers(min_value=1, max_value=7), TIMES),
    ),
    st.one_of(st.none(), st.builds(Token, st.just(EPOCH), st.integers(min_value=1, max_value=7))),
    st.booleans(),
)
def test_no_grant_below_floor_or_over_a_holder(
    current: dict[UnitId, Lease], floor: Token | None, closed: bool
) -> None:
    """Promise 2: a grant never overrides a live holder and never falls to a refused token."""
    live = [lease for lease in current.values() if not leases.is_expired(lease, 10.0)]
    decided = _decide(current, floor, closed=closed)
    if any(lease.holder != CLAIM for lease in live):
        assert isinstance(decided, Refused)
        return
    assert isinstance(decided, Granted)
    assert decided.same or decided.token > NEWEST
    assert floor is None or decided.token >= floor
    assert not (closed and decided.token == floor)


@pytest.mark.parametrize(
    "request_",
    [
        AcquireRequest(frozenset(), CLAIM),
        AcquireRequest(frozenset({A}), CLAIM, ttl_s=5.0),
        AcquireRequest(frozenset({A}), RUN),
        AcquireRequest(frozenset({A}), RUN, ttl_s=0.0),
        AcquireRequest(frozenset({A}), Holder(HolderKind.OPERATOR, "o")),
        AcquireRequest(frozenset({A}), Holder(HolderKind.QUARANTINE, "q"), ttl_s=1.0),
    ],
)
def test_requests_that_make_no_sense(request_: AcquireRequest) -> None:
    """Campaign and operator leases expire, claim and quarantine leases never do."""
    with pytest.raises(errors.InputInvalid):
        request_.validate()


def test_requests_that_do() -> None:
    """Each kind with the ttl that fits it is accepted."""
    AcquireRequest(frozenset({A}), CLAIM).validate()
    AcquireRequest(frozenset({A}), RUN, ttl_s=5.0).validate()


def test_store_behind_a_node() -> None:
    """E5: a store that has issued less than a node has seen grants nothing."""
    leases.check_floor(NEWEST, None)
    leases.check_floor(NEWEST, NO_TOKEN)
    leases.check_floor(NEWEST, NEWEST)
    with pytest.raises(errors.StoreBehind) as caught:
        leases.check_floor(NEWEST, Token(EPOCH, 8))
    assert (caught.value.newest, caught.value.floor) == (NEWEST, Token(EPOCH, 8))
    with pytest.raises(errors.EpochForeign) as foreign:
        leases.check_floor(NEWEST, Token(2, 1))
    assert (foreign.value.ours, foreign.value.theirs) == (EPOCH, 2)


def test_closing_the_newest_token_leaves_the_store_usable() -> None:
    """No trap: a node that closed the newest token does not make the store look restored."""
    leases.check_floor(NEWEST, NEWEST)
    assert _decide({}, NEWEST, closed=True) == Granted(Token(EPOCH, 8), same=False)


@pytest.mark.parametrize(
    ("counter", "closed", "passes"),
    [(2, False, False), (3, False, True), (3, True, False), (4, True, True)],
)
def test_the_fence(counter: int, closed: bool, passes: bool) -> None:
    """B4, B04: an act passes at the floor unless it is closed, above it always, below it never."""
    units = [Unit(A), Unit(B, floor=Token(1, 3), closed=closed)]
    if passes:
        leases.check_token(units, Token(1, counter), epoch=1)
    else:
        with pytest.raises(errors.TokenStale) as caught:
            leases.check_token(units, Token(1, counter), epoch=1)
        assert (caught.value.floor, caught.value.token) == (Token(1, 3), Token(1, counter))


def test_the_fence_knows_its_epoch() -> None:
    """B4: a token of another store is refused, newer or older."""
    for epoch in (1, 3):
        with pytest.raises(errors.EpochForeign):
            leases.check_token([Unit(A)], Token(epoch, 9), epoch=2)


def test_a_token_of_an_epoch_put_behind_is_closed_by_definition() -> None:
    """Promise 7: older is behind, ours is not, and of a newer store nothing is said."""
    assert leases.is_behind(Token(1, 9), 2)
    assert not leases.is_behind(Token(2, 1), 2)
    with pytest.raises(errors.EpochForeign):
        leases.is_behind(Token(3, 1), 2)


def test_a_claims_lease_goes_only_after_closure() -> None:
    """V3, V4: without the node's word for this holder and token a claim's lease stays."""
    node = NodeName("n1")
    token = Token(1, 5)
    leases.check_closure(CLAIM, Closure(CLAIM, token, node, ClosedBy.TEARDOWN), token)
    leases.check_closure(CLAIM, Closure(CLAIM, Token(1, 6), node, ClosedBy.ABANDON), token)
    for closure in (
        None,
        Closure(OTHER, token, node, ClosedBy.ABANDON),
        Closure(CLAIM, Token(1, 4), node, ClosedBy.ABANDON),
    ):
        with pytest.raises(errors.InputInvalid, match="its node has not closed it"):
            leases.check_closure(CLAIM, closure, token)
    leases.check_closure(RUN, None, token)
