"""Rules of merge, JSON and strategic patches."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.apiserver.patches import json_patch, merge_patch, strategic_patch
from tests.lab.apiserver.refusal import Refusal
from tests.lab.apiserver.schema import CLAIM


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"a": "text"}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}),
        ([1], {"a": 1}, {"a": 1}),
    ],
)
def test_a_merge_patch_follows_its_standard(target: Any, patch: Any, expected: Any) -> None:
    """Null removes, lists are replaced, objects merge (RFC 7386)."""
    assert merge_patch(target, patch) == expected


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([{"op": "add", "path": "/b", "value": 2}], {"a": [1, 2], "b": 2}),
        ([{"op": "add", "path": "/a/0", "value": 0}], {"a": [0, 1, 2]}),
        ([{"op": "add", "path": "/a/-", "value": 3}], {"a": [1, 2, 3]}),
        ([{"op": "remove", "path": "/a/0"}], {"a": [2]}),
        ([{"op": "replace", "path": "/a/1", "value": 9}], {"a": [1, 9]}),
        ([{"op": "copy", "from": "/a", "path": "/x~1y"}], {"a": [1, 2], "x/y": [1, 2]}),
        ([{"op": "move", "from": "/a/0", "path": "/b"}], {"a": [2], "b": 1}),
        ([{"op": "replace", "path": "/c", "value": 1}], {"a": [1, 2], "c": 1}),
        ([{"op": "test", "path": "/a/0", "value": 1}], {"a": [1, 2]}),
        ([{"op": "replace", "path": "", "value": {"z": 1}}], {"z": 1}),
    ],
)
def test_a_json_patch_follows_its_standard(operations: Any, expected: Any) -> None:
    """Each operation of RFC 6902; replacing a missing field adds it, as the server does."""
    target = {"a": [1, 2]}
    assert json_patch(target, operations) == expected
    assert target == {"a": [1, 2]}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/a/0", "value": 2},
        {"op": "remove", "path": "/missing"},
        {"op": "replace", "path": "/a/7", "value": 1},
        {"op": "dance", "path": "/a"},
        {"op": "add", "path": "/a/7", "value": 1},
        {"op": "add", "path": "/a/x", "value": 1},
        {"op": "add", "path": "/a/0/deep", "value": 1},
        {"op": "remove", "path": ""},
    ],
)
def test_an_operation_that_fails_is_a_422(operation: Any) -> None:
    """A failed test and a missing place are refused without a cause."""
    with pytest.raises(Refusal) as caught:
        json_patch({"a": [1, 2]}, [operation])
    assert (caught.value.code, caught.value.causes) == (422, ())


@pytest.mark.parametrize("operations", [{"op": "test"}, "text", [{"op": "add"}]])
def test_what_is_no_json_patch_is_a_400(operations: Any) -> None:
    """A mapping, a string, an operation without path."""
    with pytest.raises(Refusal) as caught:
        json_patch({"a": 1}, operations)
    assert caught.value.code == 400


def test_a_pointer_begins_with_a_slash() -> None:
    """Anything else is a 400."""
    with pytest.raises(Refusal, match="is no pointer"):
        json_patch({"a": 1}, [{"op": "remove", "path": "a"}])


def test_a_strategic_patch_removes_only_when_told() -> None:
    """B76: leaving an entry out removes nothing; $patch: delete does; others are merged by key."""
    live = {"status": {"reservedFor": [{"uid": "p", "name": "p"}, {"uid": "q", "name": "q"}]}}
    patch: Any = {"status": {"reservedFor": [{"uid": "q", "name": "new"}]}}
    found = strategic_patch(live, patch, CLAIM)
    assert found["status"]["reservedFor"] == [
        {"uid": "p", "name": "p"},
        {"uid": "q", "name": "new"},
    ]
    patch = {"status": {"reservedFor": [{"uid": "p", "$patch": "delete"}, {"uid": "r"}]}}
    found = strategic_patch(live, patch, CLAIM)
    assert [entry["uid"] for entry in found["status"]["reservedFor"]] == ["r", "q"]
    assert strategic_patch(live, {"status": None}, CLAIM) == {}
