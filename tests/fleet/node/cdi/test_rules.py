"""The validator: every rule of CDI that types cannot say, on specs made at random and by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.node.cdi import rules, versions
from fleet.node.cdi.model import Spec

NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.:-]{0,8}[A-Za-z0-9])?", fullmatch=True)
PARTS = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,8}[A-Za-z0-9]", fullmatch=True)
PATHS = st.from_regex(r"/[a-z0-9./-]{1,12}", fullmatch=True)
VARIABLES = st.from_regex(r"[A-Z_]{1,5}=[a-z=]{0,5}", fullmatch=True)


def mixed(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(required, optional=optional)


NODES = mixed(
    {"path": PATHS},
    {
        "hostPath": PATHS,
        "type": st.sampled_from(rules.NODE_TYPES),
        "major": st.integers(0, 2**31),
        "minor": st.integers(0, 2**31),
        "fileMode": st.integers(0, 0o7777),
        "permissions": st.sampled_from(["", "r", "rw", "rwm", "m"]),
        "uid": st.integers(0, 2**32 - 1),
    },
)
MOUNTS = mixed(
    {
        "hostPath": PATHS,
        "containerPath": PATHS,
        "options": st.sampled_from([["ro", "bind"], ["rbind"]]),
    },
    {"type": st.sampled_from(["", "none", "tmpfs"])},
)
HOOK = mixed(
    {"hookName": st.sampled_from(rules.HOOKS), "path": PATHS},
    {"args": st.lists(st.text(max_size=3)), "env": st.lists(VARIABLES), "timeout": st.just(3)},
)
NET = mixed({"hostInterfaceName": st.just("eth0"), "name": st.just("net0")}, {})
RDT = mixed(
    {}, {"closID": st.just("c"), "schemata": st.just(["s"]), "enableMonitoring": st.just(False)}
)
EDITS = mixed(
    {"env": st.lists(VARIABLES, min_size=1, max_size=3)},
    {
        "deviceNodes": st.lists(NODES, max_size=2),
        "mounts": st.lists(MOUNTS, max_size=2),
        "hooks": st.lists(HOOK, max_size=1),
        "netDevices": st.lists(NET, max_size=1),
        "intelRdt": RDT,
        "additionalGids": st.lists(st.integers(0, 9), max_size=2),
    },
)
DEVICES = mixed({"name": NAMES, "containerEdits": EDITS}, {"annotations": st.just({"a": "b"})})


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Any]:
    """A valid spec as it stands in a file."""
    tree = {
        "kind": f"{draw(PARTS)}/{draw(PARTS)}",
        "devices": draw(
            st.lists(DEVICES, min_size=1, max_size=3, unique_by=lambda device: device["name"])
        ),
        "cdiVersion": "1.1.0",
        **draw(mixed({}, {"containerEdits": EDITS, "annotations": st.just({"a": "b"})})),
    }
    least = versions.minimum(Spec.model_validate_json(json.dumps(tree)))
    allowed = [v for v in versions.KNOWN if versions.rank(v) >= versions.rank(least)]
    tree["cdiVersion"] = draw(st.sampled_from(allowed))
    return tree


@given(trees())
@settings(max_examples=50)
def test_every_legal_spec_passes(tree: dict[str, Any]) -> None:
    """Reference 7: what the rules allow is accepted in every combination."""
    assert rules.check(json.dumps(tree), "x.json") == []


BREAKS: dict[str, Any] = {
    "unknown version": lambda t: t.update(cdiVersion="0.9.0"),
    "newest version with v": lambda t: t.update(cdiVersion="v1.1.0"),
    "no version": lambda t: t.pop("cdiVersion"),
    "version below the content": lambda t: t.update(cdiVersion="0.2.0"),
    "no class": lambda t: t.update(kind="vendor.com"),
    "digit first in the vendor": lambda t: t.update(kind="0vendor.com/gpu"),
    "one character vendor": lambda t: t.update(kind="v/gpu"),
    "one character class": lambda t: t.update(kind="vendor.com/g"),
    "dot last in the class": lambda t: t.update(kind="vendor.com/gpu."),
    "colon in the class": lambda t: t.update(kind="vendor.com/g:pu"),
    "class too long": lambda t: t.update(kind="vendor.com/" + "g" * 64),
    "vendor too long": lambda t: t.update(kind="v" * 254 + "/gpu"),
    "no devices": lambda t: t.update(devices=[]),
    "devices missing": lambda t: t.pop("devices"),
    "a device twice": lambda t: t["devices"].append(t["devices"][0]),
    "a device without a name": lambda t: t["devices"][0].update(name=""),
    "hyphen first in a device": lambda t: t["devices"][0].update(name="-a"),
    "colon last in a device": lambda t: t["devices"][0].update(name="a:"),
    "slash in a device": lambda t: t["devices"][0].update(name="a/b"),
    "line end in a device": lambda t: t["devices"][0].update(name="ab\n"),
    "empty edits": lambda t: t["devices"][0].update(containerEdits={}),
    "only empty lists": lambda t: t["devices"][0].update(containerEdits={"env": [], "mounts": []}),
    "no edits": lambda t: t["devices"][0].pop("containerEdits"),
    "edits as a list": lambda t: t.update(containerEdits=[{"env": ["A=1"]}]),
    "an unknown field": lambda t: t.update(containerEdit={}),
    "an unknown field inside": lambda t: t["devices"][0].update(uuid="x"),
    "annotations of numbers": lambda t: t.update(annotations={"a": 1}),
}
EDIT_BREAKS: dict[str, Any] = {
    "a variable without a name": {"env": ["=1"]},
    "a variable without a value": {"env": ["A"]},
    "an empty variable": {"env": [""]},
    "a node without a path": {"deviceNodes": [{"path": ""}]},
    "a node of an unknown type": {"deviceNodes": [{"path": "/a", "type": "x"}]},
    "a node of type none": {"deviceNodes": [{"path": "/a", "type": "none"}]},
    "other permissions": {"deviceNodes": [{"path": "/a", "permissions": "rwx"}]},
    "mode as a text": {"deviceNodes": [{"path": "/a", "fileMode": "0660"}]},
    "mode out of range": {"deviceNodes": [{"path": "/a", "fileMode": 0o10000}]},
    "mount without host path": {
        "mounts": [{"hostPath": "", "containerPath": "/a", "options": ["bind"]}]
    },
    "mount without container path": {"mounts": [{"hostPath": "/a", "options": ["bind"]}]},
    "mount that binds nothing": {
        "mounts": [{"hostPath": "/a", "containerPath": "/a", "options": ["ro"]}]
    },
    "mount without options": {"mounts": [{"hostPath": "/a", "containerPath": "/a"}]},
    "unknown hook": {"hooks": [{"hookName": "start", "path": "/a"}]},
    "hook without a path": {"hooks": [{"hookName": "prestart", "path": ""}]},
    "hook with a relative path": {"hooks": [{"hookName": "prestart", "path": "a"}]},
    "hook without time": {"hooks": [{"hookName": "prestart", "path": "/a", "timeout": 0}]},
    "hook with a bad variable": {"hooks": [{"hookName": "prestart", "path": "/a", "env": ["A"]}]},
    "interface twice": {
        "netDevices": [
            {"hostInterfaceName": "a", "name": "b"}, {"hostInterfaceName": "a", "name": "c"},
        ]
    },
    "interface made twice": {
        "netDevices": [
            {"hostInterfaceName": "a", "name": "b"}, {"hostInterfaceName": "c", "name": "b"},
        ]
    },
    "interface without a name": {"netDevices": [{"hostInterfaceName": "a", "name": ""}]},
    "removed cache monitoring": {"intelRdt": {"enableCMT": True}},
    "removed bandwidth monitoring": {"intelRdt": {"enableMBM": False}},
    "negative group": {"additionalGids": [-1]},
}  # fmt: skip


@given(trees())
@settings(max_examples=15)
def test_every_broken_rule_is_found_in_any_spec(tree: dict[str, Any]) -> None:
    """Reference 7: one fault in an otherwise legal spec is always reported."""
    for name, break_ in BREAKS.items():
        broken = json.loads(json.dumps(tree))
        break_(broken)
        assert rules.check(json.dumps(broken), "x.json"), name


@pytest.mark.parametrize("name", EDIT_BREAKS)
@pytest.mark.parametrize("place", ["device", "spec"])
def test_every_broken_edit_is_found(name: str, place: str) -> None:
    """Reference 7.4: edits obey one set of rules, in a device and for the whole file."""
    device: dict[str, Any] = {"name": "d", "containerEdits": {"env": ["A=1"]}}
    tree: dict[str, Any] = {"cdiVersion": "1.1.0", "kind": "vendor.com/gpu", "devices": [device]}
    assert rules.check(json.dumps(tree), "x.json") == []
    edits = {"env": ["A=1"], **EDIT_BREAKS[name]}
    (device if place == "device" else tree)["containerEdits"] = edits
    assert len(rules.check(json.dumps(tree), "x.json")) == 1


@pytest.mark.parametrize(
    ("name", "needs"), [("0a", "0.5.0"), ("a0", "0.3.0"), ("a" * 300, "0.3.0")]
)
def test_a_digit_first_needs_a_newer_version(name: str, needs: str) -> None:
    """Invariant 25: names from UUIDs begin with digits by chance; 0.3.0 refuses those."""
    device = {"name": name, "containerEdits": {"env": ["A=1"]}}
    for version in ("0.3.0", "0.5.0"):
        tree = {"cdiVersion": version, "kind": "vendor.com/gpu", "devices": [device]}
        found = rules.check(json.dumps(tree), "x.json")
        assert bool(found) is (versions.rank(version) < versions.rank(needs))
        assert all(needs in problem for problem in found)


@pytest.mark.parametrize("name", ["x.yml", "x.JSON", "x", "x.json.tmp", "x.json.aside"])
def test_a_file_no_runtime_looks_at_is_no_spec(name: str) -> None:
    """Reference 7.2: names end exactly in .json or .yaml."""
    assert rules.check("{}", name)


def test_an_unreadable_file_has_one_finding() -> None:
    """B68: empty and half-written files are reported as what they are."""
    assert rules.check("", "x.json") == ["x.json is empty"]
    assert len(rules.check('{"cdiVersion": "0.5.0"', "x.json")) == 1
