"""The decisions the stores share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet.core.model import Holder, HolderKind, Lease, Token, UnitId
from fleet.stores import decisions

TIMES = st.floats(min_value=0, max_value=4e9)
ENTROPY = st.integers(min_value=0, max_value=2**10 - 1)
HELD = Holder(HolderKind.CAMPAIGN, "r")


def lease(counter: int, *names: str, expires_at: float | None = None) -> Lease:
    """A campaign's lease."""
    return Lease(frozenset(map(UnitId, names)), HELD, Token(1, counter), expires_at)


@given(now=TIMES, entropy=ENTROPY, above=st.integers(min_value=0, max_value=2**62))
def test_a_new_epoch_is_above_the_old_one_and_storable(
    now: float, entropy: int, above: int
) -> None:
    """DESIGN 4: epochs grow whatever the clock says, and fit SQLite's integers."""
    assert above < decisions.mint_epoch(now, entropy, above) < 2**63


@given(now=TIMES, entropy=ENTROPY)
def test_a_store_made_later_has_the_larger_epoch(now: float, entropy: int) -> None:
    """DESIGN 4: two stores differ; of two made a millisecond apart the later one is larger."""
    assert decisions.mint_epoch(now + 0.001, 0, 0) > decisions.mint_epoch(now, entropy, 0)


def test_rows_of_one_token_are_one_lease() -> None:
    """DESIGN 4: units are stored one by one and given as the lease they are, earliest end first."""
    rows = [lease(2, "c"), lease(1, "a", expires_at=9.0), lease(1, "b", expires_at=7.0)]
    assert decisions.gathered(rows) == [lease(1, "a", "b", expires_at=7.0), lease(2, "c")]


def test_a_device_counts_once_however_many_slices_it_has() -> None:
    """B50: the budget counts devices: slices of one lease once, partitions one by one."""
    one = [lease(1, "g1/0", "g1/1")]
    partitions = [lease(2, "g2/0"), lease(3, "g2/1")]
    expired = [lease(4, "g3/0", expires_at=5.0)]
    assert len(decisions.out_of_service([*one, *partitions, *expired], now=5.0)) == 3


def test_the_highest_floor_decides_whether_a_store_is_behind() -> None:
    """DESIGN 4: nodes that never acted say nothing; one that is ahead is enough."""
    newest = Token(5, 10)
    assert decisions.find_behind([None, Token(9, 0), Token(5, 10)], newest) is None
    assert decisions.find_behind([Token(5, 11), Token(5, 12)], newest) == Token(5, 12)
