"""Rules of paths and ownership."""

from __future__ import annotations

from tests.lab.apiserver.ownership import (
    MARK,
    Flat,
    Item,
    Member,
    changed,
    fields_v1,
    flatten,
    same,
    text,
)
from tests.lab.apiserver.schema import CLAIM, OPEN, SLICE

DEVICE = {"driver": "d", "pool": "p", "device": "x"}
KEY = Item((("device", "x"), ("driver", "d"), ("pool", "p")))


def test_the_entry_of_a_keyed_list_is_a_path_of_its_own() -> None:
    """The item and each of its fields are owned separately; an absent shareID is no key."""
    found = flatten({"status": {"devices": [DEVICE]}}, CLAIM)
    assert found[("status", "devices", KEY)] is MARK
    assert found[("status", "devices", KEY, "driver")] == "d"


def test_an_atomic_list_is_one_path() -> None:
    """A slice's devices have one owner, whatever is in them."""
    found = flatten({"spec": {"devices": [{"name": "a"}, {"name": "b"}]}}, SLICE)
    assert set(found) == {("spec", "devices")}


def test_sets_are_owned_member_by_member() -> None:
    """Two writers may each add a finalizer."""
    found = flatten({"metadata": {"finalizers": ["a", "b"]}}, CLAIM)
    paths = {("metadata", "finalizers", Member(name)) for name in ("a", "b")}
    assert set(found) == paths


def test_nobody_owns_what_the_server_writes() -> None:
    """Name, uid, resourceVersion and the like have no owner."""
    body = {
        "kind": "Pod",
        "metadata": {"name": "a", "uid": "u", "resourceVersion": "1", "labels": {"x": "y"}},
    }
    assert set(flatten(body, OPEN)) == {("metadata", "labels", "x")}


def test_a_change_is_a_new_or_different_leaf() -> None:
    """True and 1 differ, equal values do not."""
    old: Flat = {("a",): 1, ("b",): "x"}
    new: Flat = {("a",): 1, ("b",): "y", ("c",): None}
    assert changed(old, new) == {("b",), ("c",)}
    assert not same(1, True)
    assert same({"a": 1}, {"a": 1})


def test_paths_read_as_the_server_writes_them() -> None:
    """The field of a conflict's cause."""
    path = ("status", "devices", KEY, "conditions", Item((("type", "t"),)), "status")
    assert text(path) == (
        '.status.devices[device="x",driver="d",pool="p"].conditions[type="t"].status'
    )
    assert text(("metadata", "finalizers", Member("f"))) == '.metadata.finalizers[="f"]'


def test_managed_fields_have_their_own_notation() -> None:
    """f: for fields, k: for keyed entries with a dot for the entry itself, v: for members."""
    base = ("status", "devices", KEY)
    found = fields_v1([base, (*base, "driver"), ("metadata", "finalizers", Member("f"))])
    key = 'k:{"device":"x","driver":"d","pool":"p"}'
    assert found == {
        "f:status": {"f:devices": {key: {".": {}, "f:driver": {}}}},
        "f:metadata": {"f:finalizers": {'v:"f"': {}}},
    }
