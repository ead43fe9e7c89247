"""The table is made protected, once, and never over somebody else's."""

from __future__ import annotations

from typing import Any

import pytest

from fleet import errors
from fleet.stores.dynamodb_founding import FORGET_AT, TAGS
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


def test_a_table_that_lost_its_head_is_not_a_new_one(opened: Opener) -> None:
    """Promise 5: items without a head are a store that was damaged, or another program's."""
    found = opened()
    found.leases.init()
    granted(found.leases, ask(claim("a"), "u1"))
    table = found.runs.table
    table.delete([{"pk": {"S": "store"}, "sk": {"S": "head"}}])
    with pytest.raises(errors.SettingsInvalid, match="not initialised"):
        found.leases.leases()
    with pytest.raises(errors.SettingsInvalid, match="no head"):
        found.leases.init()
