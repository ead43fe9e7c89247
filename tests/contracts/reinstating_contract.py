"""What every lease store must do with leases that nodes have and it lacks, after `adopt`."""

from __future__ import annotations

from fleet.core import errors
from fleet.core.model import NO_TOKEN, Lease, Token, UnitId
from fleet.stores.base import Event, LeaseStore
from tests.contracts.lease_store_contract import (
    ask,
    campaign,
    claim,
    closed,
    granted,
    quarantine,
    refused,
    units,
)


def exposed(store: LeaseStore, name: str, *names: str, counter: int = 900) -> Lease:
    """A claim's lease as its node has it in its record, under a token of an epoch put behind."""
    return Lease(units(*names), claim(name), Token(store.newest().epoch - 1, counter))


class ReinstatingContract:
    """Subclasses give the fixture `store`, initialised."""

    def test_a_lease_that_a_node_has_is_put_back(self, store: LeaseStore) -> None:
        """Promise 2: after an adopt the lease of an exposed device is its claim's, as recorded; it
        keeps everybody else off, is released by its old token, and twice is no more than once."""
        store.adopt(NO_TOKEN, "somebody")
        lease = exposed(store, "a", "u1", "u2")
        assert store.reinstate([lease]) == [True]
        assert store.reinstate([lease]) == [False]
        assert store.holder(UnitId("u2")) == lease
        assert store.leases() == [lease]
        refused(store.acquire([ask(claim("b"), "u1")])[0], errors.LeaseHeld)
        assert store.history(1)[0].event is Event.REINSTATED
        assert granted(store, ask(claim("b"), "u3")).token > lease.token
        assert store.release([closed(claim("a"), lease.token)]) == [True]
        assert store.holder(UnitId("u1")) is None

    def test_what_the_node_s_token_outran_gives_way(self, store: LeaseStore) -> None:
        """Promise 2: of two tokens on one unit the node's newer one tells who has it; an older
        lease, of whomever, and a quarantine cannot be in force beside it."""
        stale = granted(store, ask(claim("z"), "u1", "u9"))
        store.adopt(NO_TOKEN, "somebody")
        granted(store, ask(quarantine("g"), "u2"))
        lease = exposed(store, "a", "u1", "u2")
        assert store.reinstate([lease]) == [True]
        assert store.leases(claim("a")) == [lease]
        assert store.leases(claim("z")) == [Lease(units("u9"), stale.holder, stale.token)]
        assert store.leases(quarantine("g")) == []

    def test_what_somebody_got_since_is_told(self, store: LeaseStore) -> None:
        """Promise 2: a newer lease of another stands, nothing of the request is put back, and its
        neighbour is."""
        store.adopt(NO_TOKEN, "somebody")
        newer = granted(store, ask(campaign("r"), "u1"))
        both = [exposed(store, "a", "u1", "u2"), exposed(store, "b", "u3", counter=901)]
        conflict, fine = store.reinstate(both)
        assert refused(conflict, errors.LeaseHeld).holder == campaign("r")
        assert fine is True
        assert store.leases() == [both[1], newer]

    def test_only_claims_of_epochs_put_behind_are_put_back(self, store: LeaseStore) -> None:
        """DESIGN 4: a token that this store could have issued, or none, is never taken on trust."""
        before = exposed(store, "a", "u1")
        refused(store.reinstate([before])[0], errors.InputInvalid)
        newest = store.adopt(NO_TOKEN, "somebody")
        for lease in (
            Lease(units("u1"), claim("a"), Token(newest.epoch, 0)),
            Lease(units("u1"), claim("a"), NO_TOKEN),
            Lease(units("u1"), campaign("r"), before.token),
        ):
            refused(store.reinstate([lease])[0], errors.InputInvalid)
        assert store.leases() == []

    def test_every_epoch_before_an_adopt_is_behind_it(self, store: LeaseStore) -> None:
        """Promise 7: one adopt is enough, whatever older epochs the nodes have seen."""
        old = store.newest()
        newest = store.adopt(NO_TOKEN, "somebody")
        between = Token(newest.epoch - 1, 7)
        assert between > old
        store.learn(between)
        assert granted(store, ask(claim("a"), "u1", min_token=between)).token > newest
