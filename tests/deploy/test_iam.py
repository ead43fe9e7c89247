"""The policies for AWS allow what the stores ask, and nothing they do not ask."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fleet.core.clock import ManualClock
from fleet.core.model import NO_TOKEN, RunId
from fleet.stores import aws
from fleet.stores.base import Release, Renewal, RunState
from fleet.stores.dynamodb import DynamodbStores, open_dynamodb_stores
from fleet.stores.dynamodb_runs import DynamodbRunStore
from fleet.stores.dynamodb_table import Patience, Table
from tests.cloud.server import REGION, CloudServer
from tests.contracts.lease_store_contract import START, TTL_S, ask, campaign, claim, granted
from tests.contracts.run_store_contract import RUN, record, result

DEPLOY = Path(__file__).parents[2] / "deploy" / "aws"


def allowed(name: str) -> set[str]:
    """The actions of a policy, all on one named table."""
    (statement,) = json.loads((DEPLOY / name).read_text())["Statement"]
    assert statement["Effect"] == "Allow"
    assert statement["Resource"] == "arn:aws:dynamodb:*:*:table/fleetscrub"
    return set(statement["Action"])


def needed(operation: str, asked: Mapping[str, Any]) -> set[str]:
    """The actions that AWS asks for an operation: of a transaction, those of its items."""
    if operation == "TransactWriteItems":
        kinds = {next(iter(item)) for item in asked["TransactItems"]}
        return {f"dynamodb:{kind}Item" for kind in kinds}
    found = {f"dynamodb:{operation}"}
    return found | {"dynamodb:TagResource"} if "Tags" in asked else found


def watched(table: Table) -> set[str]:
    """The actions that the client of a table needs from now on."""
    actions: set[str] = set()

    def note(params: Mapping[str, Any], model: Any, **_: Any) -> None:
        actions.update(needed(model.name, json.loads(params["body"])))

    table.client.meta.events.register("before-call.dynamodb", note)
    return actions


@pytest.fixture
def stores(cloud: CloudServer) -> DynamodbStores:
    """Stores on a table that is not there yet."""
    clock = ManualClock(START)
    patience = Patience(10.0, clock=clock, pause=clock.advance)
    place = aws.Place(REGION, cloud.endpoint)
    return open_dynamodb_stores(place, "for-policies", clock=clock, patience=patience)


def test_the_policies_are_what_the_stores_ask(stores: DynamodbStores) -> None:
    """E5: least privilege: what `fleet store init` needs is no right of who uses the table."""
    table, leases = stores.runs.table, stores.leases
    table.client.create_table(
        TableName=table.name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[
            {"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk")
        ],
        KeySchema=[
            {"AttributeName": "pk", "KeyType": "HASH"},
            {"AttributeName": "sk", "KeyType": "RANGE"},
        ],
    )
    making = watched(table)
    leases.init()
    table.client.update_table(TableName=table.name, DeletionProtectionEnabled=False)
    table.client.delete_table(TableName=table.name)
    leases.init()
    assert making - {"dynamodb:DeleteTable"} == allowed("iam-leases-init.json")
    making.clear()
    lease = granted(leases, ask(campaign("r"), "u1", "u2"))
    granted(leases, ask(claim("a"), "u3"))
    leases.acquire([ask(campaign("q"), "u4")], out_of_service_max=0)
    leases.renew([Renewal(campaign("r"), lease.token, TTL_S)])
    leases.release([Release(campaign("r"), lease.token)])
    leases.learn(leases.newest())
    leases.adopt(NO_TOKEN, "ops")
    leases.reinstate(leases.leases())
    leases.history(9)
    runs = DynamodbRunStore(table, ManualClock(START), kept=1)
    for number in (1, 2, 3):
        runs.create(record(f"run-{number}", START + number))
        runs.append(RunId(f"run-{number}"), [result("gpu-0")])
        runs.finish(RunId(f"run-{number}"), RunState.FINISHED, "complete")
    runs.create(record(RUN))
    runs.resume(RUN)
    runs.unfinished()
    assert making == allowed("iam-leases.json")
