"""Requests are repeated while that is harmless, within their time, and refusals say what to do."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from botocore import exceptions

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.stores import aws, dynamodb_creation
from fleet.stores.aws import Kind
from fleet.stores.dynamodb import DynamodbStores
from fleet.stores.dynamodb_sheet import HEAD_KEY, key_of
from fleet.stores.dynamodb_table import (
    HOME_TRUSTED_S,
    PAUSE_MAX_S,
    Attempts,
    Patience,
    Table,
    new_write,
)
from tests.cloud.proxy import Fault, Proxy
from tests.cloud.server import REGION, CloudServer
from tests.contracts.lease_store_contract import START, ask, claim, granted
from tests.fleet.stores.conftest import Opener


def test_pauses_grow_by_chance_until_the_time_is_over() -> None:
    """B6: full jitter, bounded; the last pause ends with the time."""
    clock, pauses = ManualClock(START), []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        clock.advance(seconds)

    chances = itertools.cycle([0.0, 0.999])
    attempts = Attempts(Patience(10.0, clock, pause, lambda: next(chances)))
    with pytest.raises(errors.StoreUnavailable, match="the last: throttled"):
        _wait_out(attempts)
    assert sum(pauses) == pytest.approx(10.0)
    assert max(pauses) <= PAUSE_MAX_S
    assert pauses[0] < pauses[1] < pauses[3]


@pytest.mark.parametrize(
    ("kind", "error", "told"),
    [
        (Kind.DENIED, errors.SettingsInvalid, "iam-leases.json"),
        (Kind.ABSENT, errors.SettingsInvalid, "fleet store init"),
        (Kind.REFUSED, errors.StoreUnavailable, "nothing was written"),
    ],
)
def test_a_refusal_says_what_to_do(
    kind: Kind, error: type[errors.FleetError], told: str, cloud: CloudServer
) -> None:
    """E5: what repeating cannot change is told at once."""
    client = aws.dynamodb(aws.Place(REGION, cloud.endpoint), timeout_s=5.0)
    table = Table(client, "t", Patience(1.0))
    with pytest.raises(error) as found:
        table.refuse("read", errors.CloudFailed("no", kind=kind, code="X", reasons=()))
    assert told in found.value.remedy


def test_more_keys_than_one_read_takes_are_all_read(stores: DynamodbStores) -> None:
    """E5: a hundred keys at once is the service's limit, not ours."""
    table = stores.runs.table
    granted(stores.leases, ask(claim("a"), "u1"))
    granted(stores.leases, ask(claim("b"), "u140"))
    keys = [HEAD_KEY, *(key_of("unit", f"u{number}") for number in range(150))]
    assert {item["sk"]["S"] for item in table.read(keys, table.attempts())} == {
        "head",
        "u1",
        "u140",
    }
    assert table.read([], table.attempts()) == []


def test_a_client_token_is_carried_out_once_by_a_service_that_keeps_it(
    cloud: CloudServer, proxy: Proxy, clock: ManualClock
) -> None:
    """B43: with the real service's tokens the repeated request itself says that it was done."""
    client = aws.dynamodb(aws.Place(REGION, proxy.endpoint), timeout_s=5.0)
    table = Table(client, "tokens-kept", Patience(10.0, clock, clock.advance))
    dynamodb_creation.create(table)
    proxy.next("TransactWriteItems", Fault.LOSE_ANSWER)
    put = {"Item": key_of("a", "b"), "ConditionExpression": "attribute_not_exists(pk)"}
    action = {"Put": {**put, "TableName": table.name}}
    attempts = table.attempts()
    assert table.write([action], attempts, write=new_write(), mark=None)
    assert proxy.calls.count("TransactWriteItems") == 2
    assert not table.write([action], attempts, write=new_write(), mark=None)


def test_a_table_knows_which_one_it_is(stores: DynamodbStores, opened: Opener) -> None:
    """DESIGN 4: the same for every process, another for every other table."""
    table, other = stores.runs.table, opened().runs.table
    home = table.home(table.attempts())
    assert other.home(other.attempts()) == home
    assert table.name in home


def test_a_table_is_taken_for_itself_for_seconds_only(clock: ManualClock) -> None:
    """DESIGN 4: less than it takes to delete and restore one; an answer is not asked for twice."""
    asked: list[float] = []

    def describe_table(**_: Any) -> Any:
        asked.append(clock.monotonic())
        return {"Table": {"TableArn": "arn", "CreationDateTime": datetime.fromtimestamp(7, UTC)}}

    client: Any = SimpleNamespace(describe_table=describe_table)
    table = Table(client, "t", Patience(10.0, clock, clock.advance))
    for pause_s in (0.0, HOME_TRUSTED_S, 1.0, 1.0):
        clock.advance(pause_s)
        assert table.home(table.attempts()) == "arn of 7.000"
    assert asked == [0.0, HOME_TRUSTED_S + 1.0]
    table.home(table.attempts(), anew=True)
    assert len(asked) == 3


def test_credentials_that_cannot_be_had_just_now_are_waited_for(clock: ManualClock) -> None:
    """B6: a hiccup of their source is no refusal; one that lasts is a store that is away."""
    hiccup = exceptions.CredentialRetrievalError(provider="iam-role", error_msg="timed out")
    answers: list[Any] = [hiccup, {"Item": {"pk": {"S": "a"}}}]

    def get_item(**_: Any) -> Any:
        answer = answers.pop(0) if answers else hiccup
        if isinstance(answer, Exception):
            raise answer
        return answer

    client: Any = SimpleNamespace(get_item=get_item)
    table = Table(client, "t", Patience(10.0, clock, clock.advance))
    assert table.get(HEAD_KEY, table.attempts()) == {"pk": {"S": "a"}}
    with pytest.raises(errors.StoreUnavailable, match="CredentialRetrievalError"):
        table.get(HEAD_KEY, table.attempts())


def test_no_request_begins_when_the_time_of_its_call_is_over(
    stores: DynamodbStores, clock: ManualClock
) -> None:
    """B6: all requests of a call share one deadline, also where each is answered at once."""
    table = stores.runs.table
    attempts = table.attempts()
    assert table.get(HEAD_KEY, attempts)
    clock.advance(10.0)
    with pytest.raises(errors.StoreUnavailable, match="within 10 s") as told:
        table.write([], attempts, write=new_write(), mark=None)
    assert "nothing was granted" in told.value.remedy
    for act in (
        lambda: table.get(HEAD_KEY, attempts),
        lambda: table.read([HEAD_KEY], attempts),
        lambda: list(table.query("lease", attempts)),
        lambda: table.delete([HEAD_KEY], attempts),
        lambda: table.home(attempts, anew=True),
    ):
        with pytest.raises(errors.StoreUnavailable):
            act()


def _wait_out(attempts: Attempts) -> None:
    while True:
        attempts.go_on("throttled")
