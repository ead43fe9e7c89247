"""What a node asks the store before it acts: never under a token that is not real or not theirs."""

from __future__ import annotations

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.leases import AcquireRequest
from fleet.core.model import ClaimUid, Holder, HolderKind, Lease, Token, UnitId
from fleet.node import lease_check
from tests.lab.stores import MemoryLeaseStore

UNITS = frozenset({UnitId("u1"), UnitId("u2")})


@pytest.fixture
def store() -> MemoryLeaseStore:
    """A store of its own."""
    made = MemoryLeaseStore(ManualClock(1000.0))
    made.init()
    return made


def leased(store: MemoryLeaseStore, uid: str) -> Lease:
    (lease,) = store.acquire([AcquireRequest(UNITS, Holder(HolderKind.CLAIM, uid))])
    assert isinstance(lease, Lease)
    return lease


def test_a_token_never_issued_is_refused(store: MemoryLeaseStore) -> None:
    """B4: a token from the future would close every lease to come."""
    newest = leased(store, "a").token
    lease_check.issued(store, newest)
    with pytest.raises(errors.TokenUnknown) as refused:
        lease_check.issued(store, Token(newest.epoch, newest.counter + 1))
    assert refused.value.newest == newest


def test_a_claim_needs_its_own_lease_of_all_units(store: MemoryLeaseStore) -> None:
    """Promise 2: neither another's token, nor another token, nor a part of the units will do."""
    lease = leased(store, "a")
    lease_check.leased(store, ClaimUid("a"), lease.token, UNITS)
    older = Token(lease.token.epoch, lease.token.counter - 1)
    for uid, token, units in (
        ("b", lease.token, UNITS),
        ("a", older, UNITS),
        ("a", lease.token, UNITS | {UnitId("u3")}),
    ):
        with pytest.raises(errors.LeaseLost, match=f"claim {uid} has no lease"):
            lease_check.leased(store, ClaimUid(uid), token, units)
