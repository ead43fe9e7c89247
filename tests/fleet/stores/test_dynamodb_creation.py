"""The table is made protected, once, and never over somebody else's."""

from __future__ import annotations

from typing import Any

import pytest
from botocore import exceptions

from fleet.core import errors
from fleet.core.model import Token
from fleet.stores import dynamodb_creation
from fleet.stores.dynamodb_creation import FORGET_AT, TAGS
from fleet.stores.dynamodb_sheet import HEAD_KEY
from tests.cloud.proxy import Fault, Proxy
from tests.contracts.lease_store_contract import ask, claim, granted
from tests.fleet.stores.conftest import Opener


def test_init_makes_a_protected_table_once(opened: Opener, proxy: Proxy) -> None:
    """E5: on demand, deletion protection, recovery, encryption, time to live, tags; also when the
    answer to the making is lost, and twice is no more than once."""
    found = opened(proxy.endpoint)
    proxy.next("CreateTable", Fault.LOSE_ANSWER)
    proxy.next("UpdateContinuousBackups", Fault.THROTTLE)
    token = found.leases.init()
    lease = granted(found.leases, ask(claim("a"), "u1"))
    assert opened().leases.init() == lease.token > token
    client, name = found.runs.table.client, found.runs.table.name
    table: Any = client.describe_table(TableName=name)["Table"]
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert table["DeletionProtectionEnabled"]
    assert table["SSEDescription"]["SSEType"] == "KMS"
    backups: Any = client.describe_continuous_backups(TableName=name)
    recovery = backups["ContinuousBackupsDescription"]["PointInTimeRecoveryDescription"]
    assert recovery["PointInTimeRecoveryStatus"] == "ENABLED"
    living = client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    assert (living["TimeToLiveStatus"], living["AttributeName"]) == ("ENABLED", FORGET_AT)
    tags = client.list_tags_of_resource(ResourceArn=table["TableArn"])["Tags"]
    assert {tag["Key"]: tag["Value"] for tag in tags} == TAGS


@pytest.mark.parametrize("kind", ["N", "no sort key"])
def test_a_table_of_another_shape_is_left_alone(opened: Opener, kind: str) -> None:
    """E5: it is refused with what is wrong, before anything of it is changed."""
    found = opened()
    table = found.runs.table
    keys: Any = [("pk", "HASH", "S"), *([("sk", "RANGE", kind)] if kind == "N" else [])]
    table.client.create_table(
        TableName=table.name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": one, "AttributeType": t} for one, _, t in keys],
        KeySchema=[{"AttributeName": one, "KeyType": use} for one, use, _ in keys],
    )
    with pytest.raises(errors.SettingsInvalid, match="another shape"):
        found.leases.init()
    assert not table.client.describe_table(TableName=table.name)["Table"].get(
        "DeletionProtectionEnabled"
    )


def test_a_table_whose_leases_would_be_removed_is_left_alone(opened: Opener) -> None:
    """Promise 9: a time to live on anything but the history's attribute removes leases and leaves
    their units; it is refused before anything is changed."""
    found = opened()
    table = found.runs.table
    dynamodb_creation.create(table)
    lives: Any = {"Enabled": True, "AttributeName": "expires_at"}
    table.client.update_time_to_live(TableName=table.name, TimeToLiveSpecification=lives)
    with pytest.raises(errors.SettingsInvalid, match="time to live on expires_at"):
        found.leases.init()
    backups: Any = table.client.describe_continuous_backups(TableName=table.name)
    recovery = backups["ContinuousBackupsDescription"]["PointInTimeRecoveryDescription"]
    assert recovery["PointInTimeRecoveryStatus"] == "DISABLED"


@pytest.mark.parametrize("moment", ["Scan", "GetItem", "TransactWriteItems"])
def test_two_who_init_at_the_same_moment_make_one_store(
    opened: Opener, proxy: Proxy, moment: str
) -> None:
    """Promise 2: whoever is overtaken finds the other's epoch, and no other program's table."""
    far, other = opened(proxy.endpoint), opened().leases
    dynamodb_creation.create(far.runs.table)
    minted: list[Token] = []
    proxy.before_next(moment, lambda: minted.append(other.begin()))
    assert far.leases.begin() == other.newest()
    assert minted == [other.newest()]


def test_what_somebody_else_has_just_switched_on_is_on(opened: Opener) -> None:
    """E5: the service refuses to switch on what is on already; that is as good."""
    found = opened()
    events: Any = found.runs.table.client.meta.events

    def overtaken(**_: Any) -> None:
        told: Any = {
            "Error": {"Code": "ValidationException", "Message": "is already enabled"},
            "ResponseMetadata": {"HTTPStatusCode": 400},
        }
        raise exceptions.ClientError(told, "UpdateTimeToLive")

    events.register("after-call.dynamodb.UpdateTimeToLive", overtaken)
    assert found.leases.init() == found.leases.newest()


def test_a_table_that_lost_its_head_is_not_a_new_one(opened: Opener) -> None:
    """Promise 5: items without a head are a store that was damaged, or another program's."""
    found = opened()
    found.leases.init()
    granted(found.leases, ask(claim("a"), "u1"))
    table = found.runs.table
    table.delete([HEAD_KEY], table.attempts())
    with pytest.raises(errors.SettingsInvalid, match="not initialised"):
        found.leases.leases()
    with pytest.raises(errors.SettingsInvalid, match="no head"):
        found.leases.init()
