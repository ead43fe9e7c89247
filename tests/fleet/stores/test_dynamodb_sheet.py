"""What was decided becomes exactly the writes that make it so, each guarded by what was read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.core import errors
from fleet.core.model import Lease, Token, UnitId
from fleet.stores import decisions
from fleet.stores.dynamodb_sheet import (
    LEASE,
    Sheet,
    StoredHead,
    StoredLease,
    StoredUnit,
    head_item,
    lease_key,
    read_head,
    read_lease,
    read_story,
    read_unit,
)
from tests.contracts.lease_store_contract import START, campaign, claim, units

HEAD = StoredHead(decisions.Head(Token(7, 3), adopted=6, suspended=Token(7, 9)), "arn", "w0")


def keys(sheet: Sheet) -> set[tuple[str, str, str]]:
    """Of each write: what it does, and to which item."""
    found = set()
    for action in sheet.actions("t", {"pk": {"S": "history"}, "sk": {"S": "h"}}, "w1"):
        ((verb, one),) = action.items()
        key = one.get("Key") or one["Item"]
        assert one["TableName"] == "t"
        assert "ConditionExpression" in one
        found.add((verb, key["pk"]["S"], key["sk"]["S"]))
    return found


def held(name: str, counter: int, *names: str) -> tuple[str, StoredLease]:
    """A lease of a campaign as it was read."""
    lease = Lease(units(*names), campaign(name), Token(7, counter), START + 60.0)
    return lease_key(lease.holder, lease.token), StoredLease(lease, 60.0, "w0", "w0")


def test_what_is_unchanged_is_not_written() -> None:
    """Readers write nothing, and cost nobody a conflict."""
    assert keys(Sheet(HEAD)) == set()


def test_items_come_back_as_they_were() -> None:
    """E5: head, lease, unit and history survive the way to the table."""
    assert read_head(head_item(HEAD)) == HEAD
    sheet = Sheet(replace(HEAD, write=""))
    lease = Lease(units("u1", "u2"), campaign("r"), Token(7, 4), START + 0.125)
    sheet.put(lease, START)
    entry = decisions.reinstated(lease, START)
    sheet.record([entry])
    items = {}
    for action in sheet.actions("t", {"pk": {"S": "history"}, "sk": {"S": "h"}}, "w1"):
        ((_, one),) = action.items()
        items[(one.get("Key") or one["Item"])["sk"]["S"]] = one
    stored = read_lease(items[lease_key(lease.holder, lease.token)]["Item"])
    assert stored == StoredLease(lease, 0.125, "w1", "w1")
    assert read_story(items["h"]["Item"]) == [entry]
    values = items["u1"]["ExpressionAttributeValues"]
    unit = read_unit({"sk": {"S": "u1"}, "lease": values[":lease"], "floor": values[":floor"]})
    assert unit == StoredUnit(lease_key(lease.holder, lease.token), Token(7, 4))


def test_a_unit_taken_leaves_its_lease() -> None:
    """Promise 2: the rest of a lease stays, under its token and with the time it was given."""
    key, stored = held("r", 2, "u1", "u2")
    known = {unit: StoredUnit(key, Token(7, 2)) for unit in units("u1")}
    sheet = Sheet(HEAD, {key: stored}, known, {key: START})
    sheet.put(Lease(units("u1"), claim("a"), Token(7, 4)), START)
    assert keys(sheet) == {
        ("Put", LEASE, key),
        ("Put", LEASE, lease_key(claim("a"), Token(7, 4))),
        ("Update", "unit", "u1"),
    }
    left = sheet.written("w1")[key]
    assert left is not None
    assert (left.lease.units, left.given, left.write) == (units("u2"), "w0", "w1")


def test_a_lease_dropped_leaves_the_last_token_of_its_units() -> None:
    """B22: what a unit had survives release; it was not read, and belongs to the lease."""
    key, stored = held("r", 2, "u1")
    sheet = Sheet(HEAD, {key: stored}, {}, {key: None})
    sheet.drop(stored.lease.holder, stored.lease.token)
    assert keys(sheet) == {("Delete", LEASE, key), ("Update", "unit", "u1")}
    assert sheet.written("w1") == {key: None}


def test_a_lease_and_its_units_have_each_other_or_nothing() -> None:
    """Promise 9: of a table restored amid a transaction, a unit without its lease is free and a
    lease without its unit has it no more; what is written is guarded by what was read all the
    same."""
    key, stored = held("r", 2, "u1", "u2")
    lease = stored.lease
    torn = Sheet(HEAD, {}, {unit: StoredUnit(key, Token(7, 2)) for unit in lease.units})
    assert torn.on(lease.units) == {}
    torn.put(replace(lease, units=units("u1")), START)
    torn.put(Lease(units("u2"), claim("a"), Token(7, 4)), START)
    updates = [one["Update"] for one in torn.actions("t", {}, "w1") if "Update" in one]
    assert [one["ExpressionAttributeValues"][":was"] for one in updates] == [{"S": key}] * 2
    known = {UnitId("u1"): StoredUnit(), UnitId("u2"): StoredUnit(key)}
    kept = Sheet(HEAD, {key: stored}, known, {key: lease.expires_at})
    assert [row.units for row in kept.held(lease.holder, lease.token)] == [units("u2")]
    assert [row.units for row in kept.rows()] == [units("u2")]
    kept.drop(lease.holder, lease.token)
    assert keys(kept) == {("Delete", LEASE, key), ("Update", "unit", "u2")}


def test_a_head_is_never_lowered() -> None:
    """Promise 2: whatever was decided, the counter only grows."""
    sheet = Sheet(HEAD)
    sheet.head = decisions.Head(Token(7, 2))
    with pytest.raises(errors.StoreUnavailable, match="go back"):
        sheet.actions("t", {}, "w1")


@pytest.mark.parametrize("name", ["units", "holder", "token", "sk"])
def test_a_lease_that_makes_no_sense_is_told(name: str) -> None:
    """Promise 5: never taken for 'free'."""
    key, stored = held("r", 2, "u1")
    sheet = Sheet(HEAD)
    sheet.put(stored.lease, START)
    (item,) = [
        one["Put"]["Item"]
        for one in sheet.actions("t", {}, "w1")
        if one.get("Put", {}).get("Item", {}).get("pk") == {"S": LEASE}
    ]
    assert read_lease(item).lease == stored.lease
    assert item["sk"]["S"] == key
    with pytest.raises(errors.SettingsInvalid, match="cannot be understood"):
        read_lease({**item, name: {"S": "x"}})


@pytest.mark.parametrize("value", [["x"], {"x": 1}, None, 5])
def test_b20_an_attribute_of_another_type_is_told(value: object) -> None:
    """B20: an item that no client of ours writes is an error that names it, not a crash."""
    item = {"sk": {"S": "u1"}, "floor": {"S": value}}
    with pytest.raises(errors.SettingsInvalid, match="unit"):
        read_unit(item)
