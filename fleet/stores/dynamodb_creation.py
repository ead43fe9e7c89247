"""Making the table of the stores on DynamoDB, and refusing one that is somebody else's.

On demand (nobody plans its load), with point-in-time recovery, deletion protection, encryption
under the account's KMS key for DynamoDB and a time to live for the history.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fleet.core import errors
from fleet.stores import aws
from fleet.stores.aws import Kind
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

    Raises `SettingsInvalid` for a table of another shape or one whose items somebody else's time to
    live removes, `StoreUnavailable` when it does not become active in time.
    """
    attempts = Attempts(table.patience_of(MAKING_S))
    if _described(table, attempts) is None:
        create(table)
    _check_shape(table, _active(table, attempts))
    _check_lives(table, attempts)
    _protect(table, attempts)


def is_empty(table: Table, attempts: Attempts) -> bool:
    """Whether nothing at all is in the table."""
    asked: Any = {"TableName": table.name, "Limit": 1, "ConsistentRead": True}
    found = table.tried(partial(table.client.scan, **asked), attempts)
    return not found.get("Items") and not found.get("LastEvaluatedKey")


def occupied(table: Table) -> errors.SettingsInvalid:
    """The answer for a table with items and no head: then it is lost, or not ours."""
    return errors.SettingsInvalid(
        f"table {table.name} has items, but no head of a lease store: it is another program's,"
        " or its head was lost",
        remedy="name another table in store.table; if it was ours, restore it to a moment"
        " before (point-in-time recovery) and run `fleet store adopt`",
    )


def _described(table: Table, attempts: Attempts) -> Any:
    asked = partial(table.client.describe_table, TableName=table.name)
    try:
        return table.tried(asked, attempts)["Table"]
    except errors.SettingsInvalid as error:
        if error.fields.get("absent"):
            return None
        raise


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


def _active(table: Table, attempts: Attempts) -> Any:
    while True:
        found = _described(table, attempts)
        status = "ABSENT" if found is None else found["TableStatus"]
        if status == "ACTIVE":
            return found
        if status not in ("ABSENT", *_TURNING):
            raise errors.SettingsInvalid(
                f"table {table.name} is {status}",
                remedy="restore or delete it, or name another one in store.table",
            )
        attempts.go_on(f"table {table.name} is {status}")


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


def _lives(table: Table, attempts: Attempts) -> tuple[str, str]:
    """Whether the service removes items by a time of theirs, and by which attribute."""
    asked = partial(table.client.describe_time_to_live, TableName=table.name)
    found = table.tried(asked, attempts)["TimeToLiveDescription"]
    return found.get("TimeToLiveStatus", "DISABLED"), found.get("AttributeName", "")


def _check_lives(table: Table, attempts: Attempts) -> None:
    status, attribute = _lives(table, attempts)
    if status != "DISABLED" and attribute != FORGET_AT:
        raise errors.SettingsInvalid(
            f"table {table.name} has a time to live on {attribute} ({status}): it would remove"
            " leases and leave their units",
            remedy=f"switch it off and wait until it is, then run `fleet store init`, which"
            f" switches it on for {FORGET_AT}; or name another table in store.table",
        )


def _protect(table: Table, attempts: Attempts) -> None:
    client, name = table.client, table.name

    def recovers() -> bool:
        asked = partial(client.describe_continuous_backups, TableName=name)
        backups: Any = table.tried(asked, attempts)["ContinuousBackupsDescription"]
        recovery = backups.get("PointInTimeRecoveryDescription", {})
        return bool(recovery.get("PointInTimeRecoveryStatus") == "ENABLED")

    def guarded() -> bool:
        return bool(_active(table, attempts).get("DeletionProtectionEnabled"))

    def lives() -> bool:
        return _lives(table, attempts)[0] in ("ENABLED", "ENABLING")

    wanted: Any = {"PointInTimeRecoveryEnabled": True}
    forgets: Any = {"Enabled": True, "AttributeName": FORGET_AT}
    recovery = partial(
        client.update_continuous_backups, TableName=name, PointInTimeRecoverySpecification=wanted
    )
    guard = partial(client.update_table, TableName=name, DeletionProtectionEnabled=True)
    _switch_on(table, attempts, is_on=guarded, switch=guard)
    _active(table, attempts)
    _switch_on(table, attempts, is_on=recovers, switch=recovery)
    living = partial(client.update_time_to_live, TableName=name, TimeToLiveSpecification=forgets)
    _switch_on(table, attempts, is_on=lives, switch=living)


def _switch_on(
    table: Table, attempts: Attempts, *, is_on: Callable[[], bool], switch: Callable[[], object]
) -> None:
    """Switch it on unless it is; refused because somebody else just did is as good."""
    while not is_on():
        attempts.begin()
        try:
            aws.ask(switch)
        except errors.CloudFailed as error:
            if error.kind is Kind.REFUSED and is_on():
                return
            if error.kind in (Kind.REFUSED, Kind.ABSENT, Kind.DENIED):
                table.refuse("protect", error)
            attempts.go_on(error.detail)
        else:
            return
