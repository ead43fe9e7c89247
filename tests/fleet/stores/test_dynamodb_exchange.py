"""What is read fits together, and is decided on anew when somebody was faster."""

from __future__ import annotations

from fleet import errors
from fleet.model import UnitId
from fleet.stores.base import Release
from fleet.stores.dynamodb import DynamodbStores
from tests.cloud.proxy import Proxy
from tests.contracts.lease_store_contract import (
    ask,
    campaign,
    claim,
    closed,
    granted,
    quarantine,
    refused,
)
from tests.fleet.stores.conftest import Opener

WRITE, READ = "TransactWriteItems", "BatchGetItem"


def test_who_was_overtaken_decides_anew(
    stores: DynamodbStores, opened: Opener, proxy: Proxy
) -> None:
    """B5, B08: what was decided on an older reading is never written; neighbours get theirs."""
    far = opened(proxy.endpoint).leases
    proxy.before_next(WRITE, lambda: granted(stores.leases, ask(claim("b"), "u1")))
    taken, free = far.acquire([ask(claim("a"), "u1"), ask(claim("a2"), "u2")])
    assert refused(taken, errors.LeaseHeld).holder == claim("b")
    assert getattr(free, "token", None) == stores.leases.newest()
    assert stores.leases.newest().counter == 2


def test_a_lease_that_changes_while_it_is_read_is_read_again(
    stores: DynamodbStores, opened: Opener, proxy: Proxy
) -> None:
    """Promise 2: between a unit and its lease the lease goes, or moves to another."""
    far = opened(proxy.endpoint).leases
    lease = granted(stores.leases, ask(campaign("r"), "u1"))

    def move() -> None:
        stores.leases.release([Release(campaign("r"), lease.token)])
        granted(stores.leases, ask(claim("b"), "u1"))

    proxy.before_next(READ, lambda: None)
    proxy.before_next(READ, move)
    found = far.holder(UnitId("u1"))
    assert found is not None
    assert found.holder == claim("b")


def test_no_list_names_a_unit_twice(stores: DynamodbStores, opened: Opener, proxy: Proxy) -> None:
    """Promise 2: a unit that moved while pages were read is listed with its newer lease."""
    far = opened(proxy.endpoint).leases
    proxy.page_items = 1
    for name in ("a", "b"):
        granted(stores.leases, ask(claim(name), f"u-{name}"))
    first = stores.leases.leases(claim("a"))[0]

    def move() -> None:
        stores.leases.release([closed(claim("a"), first.token)])
        granted(stores.leases, ask(quarantine("z"), "u-a"))

    proxy.before_next("Query", lambda: None)
    proxy.before_next("Query", move)
    found = far.leases()
    assert [lease.holder for lease in found] == [claim("b"), quarantine("z")]


def test_many_leases_are_released_in_as_many_transactions_as_it_takes(
    stores: DynamodbStores,
) -> None:
    """B5: a hundred items are the limit of one; every release is answered all the same."""
    leases = [
        granted(stores.leases, ask(claim(f"c{n}"), *(f"{n}/{m}" for m in range(40))))
        for n in range(5)
    ]
    releases = [closed(lease.holder, lease.token) for lease in leases]
    assert stores.leases.release([*releases, releases[0]]) == [True] * 5 + [False]
    assert stores.leases.leases() == []
