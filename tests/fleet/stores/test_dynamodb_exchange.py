"""What is read fits together, and is decided on anew when somebody was faster."""

from __future__ import annotations

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.model import NO_TOKEN, Lease, UnitId
from fleet.stores import dynamodb_creation, dynamodb_sheet
from fleet.stores.base import Release, Renewal
from fleet.stores.dynamodb import DynamodbStores
from fleet.stores.dynamodb_exchange import BATCH
from fleet.stores.dynamodb_sheet import HEAD_KEY, LEASE, UNIT, Item, key_of, lease_key
from fleet.stores.dynamodb_table import HOME_TRUSTED_S, Table
from tests.cloud.proxy import Fault, Proxy
from tests.contracts.lease_store_contract import (
    TTL_S,
    ask,
    campaign,
    claim,
    closed,
    granted,
    grants,
    quarantine,
    refused,
    units,
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
    assert grants(stores.leases) == 2


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


def test_a_slow_service_uses_up_one_deadline_and_not_one_for_each_request(
    stores: DynamodbStores, opened: Opener, proxy: Proxy, clock: ManualClock
) -> None:
    """B6: every request of a call may be throttled almost until the end; the call ends in time."""
    far = opened(proxy.endpoint).leases
    began: dict[str, float] = {}

    def slow(operation: str) -> Fault | None:
        since = began.setdefault(operation, clock.monotonic())
        return Fault.THROTTLE if clock.monotonic() - since < 6.0 else None

    proxy.rule = slow
    asked_at = clock.monotonic()
    with pytest.raises(errors.StoreUnavailable, match="within 10 s"):
        far.acquire([ask(claim("a"), "u1")])
    assert clock.monotonic() - asked_at == pytest.approx(10.0)
    proxy.rule = lambda _: None
    assert granted(far, ask(claim("a"), "u1")).token == stores.leases.newest()


def test_what_was_granted_before_the_time_was_over_is_told(
    stores: DynamodbStores, opened: Opener, proxy: Proxy, clock: ManualClock
) -> None:
    """Promise 9: of many requests those that came too late fail alone; leases that are to be put
    back are all there, or it is said that they are not."""
    far = opened(proxy.endpoint).leases
    requests = [ask(claim(f"c{n}"), f"u{n}") for n in range(BATCH + 3)]
    for _ in range(2):
        proxy.before_next(READ, lambda: clock.advance(6.0))
    answers = far.acquire(requests)
    assert [isinstance(one, Lease) for one in answers] == [True] * BATCH + [False] * 3
    assert "nothing was granted" in refused(answers[-1], errors.StoreUnavailable).remedy
    leases = [one for one in answers if isinstance(one, Lease)]
    assert stores.leases.leases() == leases
    far.adopt(NO_TOKEN, "ops")
    for _ in range(2):
        proxy.before_next(READ, lambda: clock.advance(11.0))
    with pytest.raises(errors.StoreUnavailable):
        far.reinstate(leases + leases)


def test_a_table_restored_under_its_name_is_found_out_by_who_asked_nothing_meanwhile(
    stores: DynamodbStores, opened: Opener, clock: ManualClock
) -> None:
    """Promise 2: no token is issued again by a process that knew the table before; and once it is
    adopted elsewhere, that process goes on without being started again."""
    knew, other = stores.leases, opened().leases
    granted(knew, ask(claim("a"), "u1"))
    table = stores.runs.table
    backup = items(table)
    tokens = [granted(other, ask(claim(name), f"u-{name}")).token for name in ("b", "c")]
    replace_table(table, backup)
    clock.advance(HOME_TRUSTED_S + 1.0)
    for answer in knew.acquire([ask(claim("x"), "u-b"), ask(claim("y"), "u-c")]):
        assert "copied from" in refused(answer, errors.StoreBehind).detail
    assert knew.suspended() is not None
    adopted = opened().leases.adopt(NO_TOKEN, "ops")
    assert knew.suspended() is None
    assert granted(knew, ask(claim("x"), "u-b")).token > adopted > max(tokens)


def test_a_head_that_cannot_follow_is_asked_whose_it_is(
    stores: DynamodbStores, opened: Opener
) -> None:
    """DESIGN 4: however short the time, a head older than the last one seen, or another under the
    same token, has the table looked at again."""
    table = stores.runs.table
    backup = items(table)
    granted(stores.leases, ask(claim("a"), "u1"))
    replace_table(table, backup)
    refused(stores.leases.acquire([ask(claim("b"), "u2")])[0], errors.StoreBehind)
    head = dynamodb_sheet.read_head(table.get(HEAD_KEY, table.attempts()) or {})
    assert head.head.suspended is None  # a copy is told, and left as it was restored


# --- tables restored amid a transaction --------------------------------------


def test_a_unit_whose_lease_was_not_restored_is_free(stores: DynamodbStores) -> None:
    """Promise 9: found out by reading twice; the unit keeps its last token, neighbours are served,
    and a claim that has it by its node's records gets it back."""
    leases, table = stores.leases, stores.runs.table
    first, second = (granted(leases, ask(claim(name), f"u-{name}")) for name in ("a", "b"))
    for lease in (first, second):
        table.delete([key_of(LEASE, lease_key(lease.holder, lease.token))], table.attempts())
    assert leases.holder(UnitId("u-a")) is None
    assert leases.release([closed(claim("a"), first.token)]) == [False]
    leases.adopt(NO_TOKEN, "ops")
    assert leases.reinstate([second]) == [True]
    assert leases.holder(UnitId("u-b")) == second
    taken, free, held = leases.acquire(
        [ask(claim("n"), "u-a"), ask(claim("m"), "u9"), ask(claim("o"), "u-b")]
    )
    assert isinstance(taken, Lease)
    assert isinstance(free, Lease)
    assert refused(held, errors.LeaseHeld).holder == claim("b")
    assert leases.holder(UnitId("u-a")) == taken


def test_a_lease_whose_units_were_not_restored_has_them_no_more(stores: DynamodbStores) -> None:
    """Promise 2: an old holder renews nothing that another may have; giving back clears it up."""
    leases, table = stores.leases, stores.runs.table
    lease = granted(leases, ask(campaign("r"), "u1", "u2", "u3"))
    table.delete((key_of(UNIT, unit) for unit in ("u1", "u2")), table.attempts())
    (renewed,) = leases.renew([Renewal(lease.holder, lease.token, TTL_S)])
    assert isinstance(renewed, Lease)
    assert renewed.units == units("u3")
    other = granted(leases, ask(claim("n"), "u1"))
    table.delete([key_of(UNIT, "u3")], table.attempts())
    (lost,) = leases.renew([Renewal(lease.holder, lease.token, TTL_S)])
    refused(lost, errors.LeaseLost)
    assert leases.release([Release(lease.holder, lease.token)]) == [False]
    assert leases.leases() == [other]


def items(table: Table) -> list[Item]:
    """All that is in the table, as a backup has it."""
    return list(table.client.scan(TableName=table.name, ConsistentRead=True)["Items"])


def replace_table(table: Table, backup: list[Item]) -> None:
    """Delete the table and restore it under the same name."""
    table.client.update_table(TableName=table.name, DeletionProtectionEnabled=False)
    table.client.delete_table(TableName=table.name)
    dynamodb_creation.create(table)
    for item in backup:
        table.client.put_item(TableName=table.name, Item=item)
