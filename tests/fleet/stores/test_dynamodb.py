"""The leases on DynamoDB keep the contract, and what only a cloud service can break."""

from __future__ import annotations

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.model import NO_TOKEN, Lease, Token, UnitId
from fleet.stores import aws
from fleet.stores.base import Renewal
from fleet.stores.dynamodb import DynamodbLeaseStore, DynamodbStores, open_dynamodb_stores
from fleet.stores.dynamodb_sheet import HEAD_KEY
from fleet.stores.dynamodb_table import Patience, Table
from tests.cloud.proxy import Fault, Proxy
from tests.cloud.server import REGION, CloudServer
from tests.contracts.lease_store_contract import (
    START,
    TTL_S,
    LeaseStoreContract,
    ObservedLeaseContract,
    Reopen,
    ask,
    campaign,
    claim,
    closed,
    granted,
    grants,
    refused,
)
from tests.contracts.reinstating_contract import ReinstatingContract
from tests.contracts.run_store_contract import record
from tests.fleet.stores.conftest import Opener


class TestDynamodbLeaseStore(LeaseStoreContract, ReinstatingContract, ObservedLeaseContract):
    """The lease contract over a table of moto's server."""

    rounds = 2

    @pytest.fixture
    def store(self, stores: DynamodbStores) -> DynamodbLeaseStore:
        return stores.leases

    @pytest.fixture
    def reopen(self, stores: DynamodbStores, cloud: CloudServer, table_name: str) -> Reopen:
        assert stores.initialised
        place, patience = aws.Place(REGION, cloud.endpoint), Patience(10.0, pause=lambda _: None)
        return lambda clock: (
            open_dynamodb_stores(place, table_name, clock=clock, patience=patience).leases
        )


# --- answers that are lost, late, refused ------------------------------------


WRITE, READ = "TransactWriteItems", "BatchGetItem"


def test_a_grant_whose_answer_was_lost_is_found(
    stores: DynamodbStores, opened: Opener, proxy: Proxy
) -> None:
    """B43: sent again as it was, and recognised by its entry, whoever has written since."""
    far, other = opened(proxy.endpoint).leases, stores.leases
    proxy.next(WRITE, Fault.LOSE_ANSWER, Fault.BREAK)
    proxy.before_next(WRITE, lambda: None)
    proxy.before_next(WRITE, lambda: granted(other, ask(claim("b"), "u2")))
    lease = granted(far, ask(claim("a"), "u1"))
    assert lease.token < far.newest()
    assert grants(far) == 2
    assert other.holder(UnitId("u1")) == lease


def test_a_release_whose_answer_was_lost_says_what_it_did(
    stores: DynamodbStores, opened: Opener, proxy: Proxy
) -> None:
    """B43: something was held, and it was given back once."""
    far = opened(proxy.endpoint).leases
    lease = granted(far, ask(claim("a"), "u1"))
    proxy.next(WRITE, Fault.LOSE_ANSWER)
    assert far.release([closed(claim("a"), lease.token)]) == [True]
    assert far.release([closed(claim("a"), lease.token)]) == [False]
    assert stores.leases.leases() == []


def test_a_write_that_arrives_late_is_not_counted_twice(
    stores: DynamodbStores, opened: Opener, proxy: Proxy
) -> None:
    """B43: the first request lands after the second: one grant, one token."""
    far = opened(proxy.endpoint).leases
    proxy.next(WRITE, Fault.LOSE_REQUEST, Fault.DELAY)
    lease = granted(far, ask(claim("a"), "u1"))
    assert lease.token == stores.leases.newest()
    assert len(stores.leases.history(9)) == 2


def test_throttling_and_conflicts_are_waited_out_within_bounds(
    stores: DynamodbStores, opened: Opener, proxy: Proxy, clock: ManualClock
) -> None:
    """B6: retried with pauses that grow, until the time is over; then nothing was granted."""
    far = opened(proxy.endpoint).leases
    proxy.next(WRITE, Fault.THROTTLE, Fault.CONFLICT, Fault.CONFLICT, Fault.THROTTLE)
    proxy.next(READ, Fault.THROTTLE, Fault.LEAVE_OVER, Fault.LOSE_ANSWER)
    lease = granted(far, ask(claim("a"), "u1", "u2"))
    proxy.rule = lambda operation: Fault.THROTTLE if operation == WRITE else None
    began, calls = clock.now(), len(proxy.calls)
    with pytest.raises(errors.StoreUnavailable, match="within 10 s") as told:
        far.acquire([ask(claim("b"), "u3")])
    assert "nothing was granted" in told.value.remedy
    assert 10.0 <= clock.now() - began < 11.0
    assert 10 < len(proxy.calls) - calls < 60
    assert stores.leases.newest() == lease.token


def test_a_service_that_is_away_is_said_so_in_time(
    opened: Opener, stores: DynamodbStores, proxy: Proxy, clock: ManualClock
) -> None:
    """B6: every call is bounded; a write in doubt is said to be in doubt; then all goes on."""
    far = opened(proxy.endpoint).leases
    granted(far, ask(claim("a"), "u1"))
    proxy.rule = lambda operation: Fault.LOSE_ANSWER if operation == WRITE else None
    with pytest.raises(errors.StoreUnavailable) as told:
        far.acquire([ask(claim("b"), "u2")])
    assert "may have been carried out" in told.value.remedy
    proxy.rule = lambda _: Fault.LOSE_REQUEST
    began = clock.now()
    with pytest.raises(errors.StoreUnavailable):
        far.leases()
    assert clock.now() - began < 11.0
    proxy.rule = lambda _: None
    assert (
        granted(far, ask(claim("b"), "u2")).token
        == stores.leases.newest()
        == Token(far.newest().epoch, 2)
    )


def test_who_waits_for_other_grants_of_the_process_waits_within_the_time(
    stores: DynamodbStores, table_name: str, proxy: Proxy, clock: ManualClock
) -> None:
    """B6: threads take their turns, and none waits for those before it longer than a call may
    take."""
    client = aws.dynamodb(aws.Place(REGION, proxy.endpoint), timeout_s=10.0)
    far = DynamodbLeaseStore(Table(client, table_name, Patience(0.2)), clock)
    told: list[str] = []

    def meanwhile() -> None:
        with pytest.raises(errors.StoreUnavailable) as found:
            far.acquire([ask(claim("b"), "u2")])
        told.append(found.value.detail)

    proxy.before_next(READ, meanwhile)
    with pytest.raises(errors.StoreUnavailable):
        far.acquire([ask(claim("a"), "u1")])
    assert "other grants of this process" in told[0]
    assert stores.leases.leases() == []


def test_lists_are_whole_whatever_the_pages(
    stores: DynamodbStores, opened: Opener, proxy: Proxy
) -> None:
    """E5: leases, history and runs are read page by page, and keys left over again."""
    far = opened(proxy.endpoint)
    proxy.page_items = 2
    leases = [granted(stores.leases, ask(claim(f"c{n}"), f"u{n}")) for n in range(5)]
    assert far.leases.leases() == leases
    assert far.leases.held_by([claim("c4"), claim("c1")]) == [leases[1], leases[4]]
    assert far.leases.held_by([claim(f"c{n}") for n in range(40)]) == leases
    assert len(far.leases.history(100)) == 6
    for number in range(3):
        far.runs.create(record(f"run-{number}", START + number))
    assert [run.id for run in far.runs.runs(9)] == ["run-2", "run-1", "run-0"]


# --- when a lease ends -------------------------------------------------------


def test_a_lease_ends_by_what_was_seen_and_not_by_wall_clocks(
    stores: DynamodbStores, cloud: CloudServer, table_name: str, clock: ManualClock
) -> None:
    """DESIGN 4: a process whose clock is minutes ahead takes nothing before it has itself seen the
    lease unchanged for its ttl; a renewal it sees begins that anew."""
    lease = granted(stores.leases, ask(campaign("r"), "u1"))
    fast = ManualClock(START + 300.0)
    place, patience = aws.Place(REGION, cloud.endpoint), Patience(10.0, pause=lambda _: None)
    other = open_dynamodb_stores(place, table_name, clock=fast, patience=patience).leases
    refused(other.acquire([ask(claim("a"), "u1")])[0], errors.LeaseHeld)
    fast.advance(TTL_S - 1)
    clock.advance(TTL_S - 1)
    assert isinstance(stores.leases.renew([Renewal(campaign("r"), lease.token, TTL_S)])[0], Lease)
    fast.advance(TTL_S - 1)
    refused(other.acquire([ask(claim("a"), "u1")])[0], errors.LeaseHeld)
    assert [one.token for one in other.leases()] == [lease.token]
    fast.advance(TTL_S)
    assert other.leases() == []
    assert granted(other, ask(claim("a"), "u1")).token > lease.token
    (lost,) = stores.leases.renew([Renewal(campaign("r"), lease.token, TTL_S)])
    refused(lost, errors.LeaseLost)


# --- tables that are not what they were --------------------------------------


def test_a_table_that_is_gone_is_never_made_anew_in_passing(opened: Opener) -> None:
    """Promise 2: only `init` makes one; everything else says that there is none."""
    found = opened()
    before = found.initialised
    for act in (
        found.leases.newest,
        found.leases.leases,
        lambda: found.leases.acquire([]),
        lambda: found.leases.adopt(NO_TOKEN, "ops"),
        lambda: found.runs.runs(1),
    ):
        with pytest.raises(errors.SettingsInvalid, match="not initialised"):
            act()
    token = found.leases.init()
    assert [before, found.initialised] == [False, True]
    assert opened().leases.init() == token == found.leases.newest()


def test_a_restored_table_grants_nothing_until_it_is_adopted(
    stores: DynamodbStores, opened: Opener, table_name: str
) -> None:
    """DESIGN 4: a backup may be older than tokens issued; it is another table, and shows."""
    lease = granted(stores.leases, ask(campaign("r"), "u1"))
    client = stores.runs.table.client
    backup = client.create_backup(TableName=table_name, BackupName="before")["BackupDetails"]
    name = f"{table_name}-restored"
    client.restore_table_from_backup(TargetTableName=name, BackupArn=backup["BackupArn"])
    fresh = opened(name=name).leases
    assert (
        "copied from"
        in refused(fresh.acquire([ask(claim("b"), "u2")])[0], errors.StoreBehind).detail
    )
    with pytest.raises(errors.StoreBehind):
        fresh.learn(lease.token)
    assert fresh.suspended() == lease.token
    assert fresh.begin() == lease.token
    assert isinstance(fresh.renew([Renewal(campaign("r"), lease.token, TTL_S)])[0], Lease)
    assert fresh.adopt(NO_TOKEN, "ops") > lease.token
    assert fresh.suspended() is None
    assert granted(fresh, ask(claim("b"), "u2")).token > lease.token


def test_an_older_head_suspends_the_store_for_all(
    stores: DynamodbStores, opened: Opener, table_name: str
) -> None:
    """DESIGN 4: found out by who has seen more, or by the last token of a unit; it is durable."""
    table = stores.runs.table
    older = table.get(HEAD_KEY, table.attempts())
    assert older is not None
    lease = granted(stores.leases, ask(claim("a"), "u1"))
    assert stores.leases.release([closed(claim("a"), lease.token)]) == [True]
    table.client.put_item(TableName=table_name, Item=older)
    fresh = opened().leases
    assert fresh.suspended() is None
    answer = refused(fresh.acquire([ask(claim("b"), "u1")])[0], errors.StoreBehind)
    assert answer.floor == lease.token
    assert opened().leases.suspended() == lease.token
    table.client.put_item(TableName=table_name, Item=older)
    refused(stores.leases.acquire([ask(claim("b"), "u9")])[0], errors.StoreBehind)
    adopted = fresh.adopt(NO_TOKEN, "ops")
    assert granted(stores.leases, ask(claim("b"), "u1")).token > adopted > lease.token


def test_a_request_too_large_for_a_transaction_harms_no_neighbour(stores: DynamodbStores) -> None:
    """Promise 9: it is refused with what to do; large ones that fit are granted whole."""
    fits, large, small = stores.leases.acquire(
        [
            ask(claim("a"), *(f"a/{n}" for n in range(90))),
            ask(claim("b"), *(f"b/{n}" for n in range(98))),
            ask(claim("c"), "c/0"),
        ]
    )
    assert isinstance(fits, Lease)
    assert "fewer units" in refused(large, errors.InputInvalid).remedy
    assert isinstance(small, Lease)
    assert stores.leases.release([closed(claim("a"), fits.token)]) == [True]


@pytest.mark.parametrize("change", [{"format": {"N": "2"}}, {"epoch": {"N": "-1"}}, {"home": {}}])
def test_a_head_that_makes_no_sense_is_not_an_empty_store(
    stores: DynamodbStores, table_name: str, change: dict[str, dict[str, str]]
) -> None:
    """Promise 5: what cannot be read is refused with the way out, never taken for 'free'."""
    table = stores.runs.table
    head = {**(table.get(HEAD_KEY, table.attempts()) or {}), **change}
    item = {name: one for name, one in head.items() if one}
    table.client.put_item(TableName=table_name, Item=item)
    for act in (stores.leases.leases, lambda: stores.leases.acquire([ask(claim("b"), "u1")])):
        with pytest.raises(errors.SettingsInvalid, match="cannot be understood"):
            act()
