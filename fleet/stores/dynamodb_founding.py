"""Making the table of the stores on DynamoDB, and refusing one that is somebody else's.

On demand (nobody plans its load), with point-in-time recovery, deletion protection, encryption
under the account's KMS key for DynamoDB and a time to live for the history.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from fleet import aws, errors
from fleet.aws import Kind
from fleet.stores.dynamodb_table import Attempts, Table

TAGS = {"fleetscrub.dev/store": "leases"}
FORGET_AT = "forget_at"
"""Attribute after whose time, seconds since the epoch, the service removes an item."""
MAKING_S = 180.0
"""How long, s, a new table may take; usually ten."""
_KEYS = (("pk", "HASH"), ("sk", "RANGE"))
_TURNING = ("CREATING", "UPDATING")


def make(table: Table) -> None:
    """Make the table if there is none, and see that it is protected; repeating is harmless.

    Raises `SettingsInvalid` for a table of another shape, `StoreUnavailable` when it does not
    become active in time.
    """
    found = _described(table)
    if found is None:
        create(table)
    found = _active(table)
    _check_shape(table, found)
    _protect(table, found)


def check_empty(table: Table) -> None:
    """Raises `SettingsInvalid` when anything is in the table: then it is lost, or not ours."""
    found = table.tried(partial(table.client.scan, TableName=table.name, Limit=1))
    if found.get("Items"):
        raise errors.SettingsInvalid(
            f"table {table.name} has items, but no head of a lease store: it is another program's,"
            " or its head was lost",
            remedy="name another table in store.table; if it was ours, restore it to a moment"
            " before (point-in-time recovery) and run `fleet store adopt`",
        )


def _described(table: Table) -> Any:
    try:
        return aws.ask(partial(table.client.describe_table, TableName=table.name))["Table"]
    except errors.CloudFailed as error:
        if error.kind is Kind.ABSENT:
            return None
        return table.tried(partial(table.client.describe_table, TableName=table.name))["Table"]


def create(table: Table) -> None:
    """Ask for the table; one that is there, or is being made, stays as it is."""
    asked: dict[str, Any] = {
        "TableName": table.name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": "S"} for name, _ in _KEYS
        ],
        "KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind in _KEYS],
        "DeletionProtectionEnabled": True,
        "SSESpecification": {"Enabled": True, "SSEType": "KMS"},
        "Tags": [{"Key": key, "Value": value} for key, value in TAGS.items()],
    }
    try:
        aws.ask(partial(table.client.create_table, **asked))
    except errors.CloudFailed as error:
        # Without an answer it may be there; made by somebody else at the same time it is.
        if error.kind not in (Kind.EXISTS, Kind.UNCERTAIN, Kind.THROTTLED):
            table.refuse("make", error)


def _active(table: Table) -> Any:
    deadline = Attempts(table.patience_of(MAKING_S))
    while True:
        found = _described(table)
        status = "ABSENT" if found is None else found["TableStatus"]
        if status == "ACTIVE":
            return found
        if status not in ("ABSENT", *_TURNING):
            raise errors.SettingsInvalid(
                f"table {table.name} is {status}",
                remedy="restore or delete it, or name another one in store.table",
            )
        deadline.go_on(f"table {table.name} is {status}")


def _check_shape(table: Table, found: Any) -> None:
    kinds = {one["AttributeName"]: one["AttributeType"] for one in found["AttributeDefinitions"]}
    keys = tuple((one["AttributeName"], one["KeyType"]) for one in found["KeySchema"])
    if sorted(keys) == sorted(_KEYS) and all(kinds[name] == "S" for name, _ in _KEYS):
        return
    told = ", ".join(f"{name} ({kind}, {kinds.get(name)})" for name, kind in keys)
    raise errors.SettingsInvalid(
        f"table {table.name} is of another shape: its keys are {told}",
        remedy="name another table in store.table; ours has the string keys pk (HASH) and sk"
        " (RANGE)",
    )


def _protect(table: Table, found: Any) -> None:
    client, name = table.client, table.name
    if not found.get("DeletionProtectionEnabled"):
        table.tried(partial(client.update_table, TableName=name, DeletionProtectionEnabled=True))
        _active(table)
    backups: Any = table.tried(partial(client.describe_continuous_backups, TableName=name))
    recovery = backups["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
    if recovery.get("PointInTimeRecoveryStatus") != "ENABLED":
        wanted: Any = {"PointInTimeRecoveryEnabled": True}
        table.tried(
            partial(
                client.update_continuous_backups,
                TableName=name,
                PointInTimeRecoverySpecification=wanted,
            )
        )
    living: Any = table.tried(partial(client.describe_time_to_live, TableName=name))
    if living["TimeToLiveDescription"].get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
        lives: Any = {"Enabled": True, "AttributeName": FORGET_AT}
        table.tried(
            partial(client.update_time_to_live, TableName=name, TimeToLiveSpecification=lives)
        )
