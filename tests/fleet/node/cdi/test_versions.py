"""The lowest CDI version that fits the content, and never below the one we settled on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet.node.cdi import versions
from fleet.node.cdi.model import Spec


def spec(
    edits: dict[str, Any] | None = None,
    *,
    name: str = "d",
    kind: str = "vendor.com/gpu",
    **top: Any,
) -> Spec:
    device: dict[str, Any] = {"name": name, "containerEdits": edits or {"env": ["A=1"]}}
    device |= {"annotations": top.pop("on_device")} if "on_device" in top else {}
    tree = {"cdiVersion": "0.3.0", "kind": kind, "devices": [device], **top}
    return Spec.model_validate_json(json.dumps(tree))


MOUNT = {"hostPath": "/a", "containerPath": "/a", "options": ["bind"]}


@pytest.mark.parametrize(
    ("found", "least"),
    [
        (spec(), "0.3.0"),
        (spec({"mounts": [MOUNT]}), "0.3.0"),
        (spec({"deviceNodes": [{"path": "/dev/a"}]}), "0.3.0"),
        (spec({"hooks": [{"hookName": "prestart", "path": "/x"}]}), "0.3.0"),
        (spec({"mounts": [{**MOUNT, "type": "tmpfs"}]}), "0.4.0"),
        (spec({"deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/b"}]}), "0.5.0"),
        (spec(name="0d"), "0.5.0"),
        (spec(annotations={"a": "b"}), "0.6.0"),
        (spec(on_device={"a": "b"}), "0.6.0"),
        (spec(kind="vendor.com/g.pu"), "0.6.0"),
        (spec({"additionalGids": [5]}), "0.7.0"),
        (spec({"intelRdt": {"closID": "c"}}), "0.7.0"),
        (spec({"intelRdt": {"schemata": ["s"]}}), "1.1.0"),
        (spec({"intelRdt": {"enableMonitoring": True}}), "1.1.0"),
        (spec({"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}), "1.1.0"),
        (spec(containerEdits={"additionalGids": [5]}), "0.7.0"),
        (spec(containerEdits={"mounts": [{**MOUNT, "type": ""}]}, name="0d"), "0.5.0"),
    ],
)
def test_the_minimum_follows_the_content(found: Spec, least: str) -> None:
    """Invariant 25: the lowest version with all that is used, wherever in the file."""
    assert versions.minimum(found) == least


@pytest.mark.parametrize(
    ("found", "written"),
    [(spec(), "0.5.0"), (spec(name="0d"), "0.5.0"), (spec(kind="vendor.com/g.pu"), "0.6.0")],
)
def test_what_we_write_does_not_flip_with_the_first_character(found: Spec, written: str) -> None:
    """Invariant 25: max(0.5.0, minimum), so that a claim's uid does not decide the version."""
    assert versions.written(found) == written


def test_versions_are_ordered_as_numbers() -> None:
    """Reference 7.1: all known versions in order; anything else is unknown."""
    ranks = [versions.rank(version) for version in versions.KNOWN]
    assert ranks == sorted(ranks)
    numbers = [[int(part) for part in version.split(".")] for version in versions.KNOWN]
    assert numbers == sorted(numbers)
    assert {versions.rank(v) for v in ("", "0.9.0", "1.2.0", "v0.5.0", "0.5")} == {-1}
