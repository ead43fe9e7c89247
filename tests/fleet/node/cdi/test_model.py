"""The model of a spec: closed, without conversions, names as in the file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from fleet.node.cdi.model import Edits, Spec

WHOLE: dict[str, Any] = {
    "cdiVersion": "1.1.0",
    "kind": "vendor.com/gpu",
    "annotations": {"a": "b"},
    "containerEdits": {"env": ["A=1"]},
    "devices": [
        {
            "name": "d0",
            "annotations": {},
            "containerEdits": {
                "env": ["B=2"],
                "deviceNodes": [
                    {
                        "path": "/dev/a", "hostPath": "/dev/b", "type": "c", "major": 195,
                        "minor": 0, "fileMode": 432, "permissions": "rw", "uid": 0, "gid": 1,
                    }
                ],
                "netDevices": [{"hostInterfaceName": "eth0", "name": "net0"}],
                "hooks": [
                    {"hookName": "prestart", "path": "/x", "args": ["x"], "env": [], "timeout": 5}
                ],
                "mounts": [
                    {"hostPath": "/a", "containerPath": "/b", "options": ["bind"], "type": "none"}
                ],
                "intelRdt": {
                    "closID": "c", "l3CacheSchema": "l", "memBwSchema": "m", "schemata": ["s"],
                    "enableMonitoring": True,
                },
                "additionalGids": [5],
            },
        }
    ],
}  # fmt: skip


def _paths(tree: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every object inside a tree."""
    if isinstance(tree, dict):
        inner = [found for key, value in tree.items() for found in _paths(value, (*path, key))]
        return [*([] if path[-1:] == ("annotations",) else [path]), *inner]
    if isinstance(tree, list):
        return [f for index, value in enumerate(tree) for f in _paths(value, (*path, index))]
    return []


def test_every_field_of_the_format_is_read_and_written_back() -> None:
    """Reference 7.4: all fields under the names of the file, nothing lost on the way."""
    spec = Spec.model_validate_json(json.dumps(WHOLE))
    assert json.loads(spec.model_dump_json(by_alias=True, exclude_none=True)) == WHOLE
    assert spec.ids == ("vendor.com/gpu=d0",)


@pytest.mark.parametrize("path", _paths(WHOLE), ids=str)
def test_a_field_nobody_knows_refuses_the_file(path: tuple[str | int, ...]) -> None:
    """Invariant 25: strict on every level, as runtimes are; our own field names are no aliases."""
    for name in ("x", "host_path"):
        tree = json.loads(json.dumps(WHOLE))
        part = tree
        for key in path:
            part = part[key]
        part[name] = "/y"
        with pytest.raises(ValidationError, match="Extra inputs"):
            Spec.model_validate_json(json.dumps(tree))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fileMode", "0660"), ("fileMode", -1), ("fileMode", 2**32), ("major", "195"),
        ("major", 1.5), ("major", True), ("major", 2**63), ("uid", -1), ("permissions", 6),
        ("path", None),
    ],
)  # fmt: skip
def test_nothing_is_converted(name: str, value: object) -> None:
    """Reference 7.4: fileMode is a decimal number, numbers are no texts, required is required."""
    tree = json.loads(json.dumps(WHOLE))
    tree["devices"][0]["containerEdits"]["deviceNodes"][0][name] = value
    with pytest.raises(ValidationError):
        Spec.model_validate_json(json.dumps(tree))


def test_edits_are_empty_only_without_any_change() -> None:
    """Reference 7.2: a device with empty containerEdits makes a file invalid."""
    assert Edits().empty
    assert Edits.model_validate({"env": (), "mounts": ()}).empty
    for name, value in WHOLE["devices"][0]["containerEdits"].items():
        assert not Edits.model_validate_json(json.dumps({name: value})).empty, name
