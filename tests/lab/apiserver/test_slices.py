"""Rules of slices that need no server (the rest are rows in tests/contracts)."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.kube.base import Object
from tests.lab.apiserver.gates import GATES_1_34, LIMITS_1_34, PARTITIONABLE, TAINTS, Features
from tests.lab.apiserver.rules import Write
from tests.lab.apiserver.slices import SliceRules

NOW = "2026-11-29T13:13:23Z"
TAINT: Object = {"key": "a.b/c", "value": "v", "effect": "NoSchedule"}
SET: Object = {"name": "a-memory", "counters": {"m0": {"value": "1"}}}
CONSUMED: Object = {"counterSet": "a-memory", "counters": {"m0": {"value": "1"}}}
FULL = {
    "name": "d0",
    "taints": [TAINT],
    "bindsToNode": True,
    "bindingConditions": ["a.b/x"],
    "bindingFailureConditions": ["a.b/y"],
    "allowMultipleAllocations": True,
    "consumesCounters": [CONSUMED],
}


def body(*devices: Object, **spec: Any) -> Object:
    """A slice."""
    return {
        "spec": {
            "driver": "d.example.com",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
            "nodeName": "n",
            "devices": list(devices),
            **spec,
        }
    }


def fields(found: Object, old: Object | None = None, features: Features | None = None) -> list[str]:
    """The fields of the causes."""
    rules = SliceRules(features or Features())
    return [cause.field for cause in rules.judge(Write(found, old, "", NOW))]


def prepared(new: Object, old: Object | None, features: Features) -> Object:
    """The first device as it would be stored."""
    spec = SliceRules(features).prepare(Write(new, old, "", NOW))["spec"]
    device: Object = spec["devices"][0]
    return device


def test_an_older_server_drops_what_it_does_not_know() -> None:
    """Taints, binding conditions and shares vanish without an error on 1.34."""
    assert prepared(body(FULL), None, Features(gates=GATES_1_34)) == {"name": "d0"}


def test_a_feature_in_use_stays() -> None:
    """A gate switched off later does not drop what the stored slice uses already."""
    found = prepared(body(FULL), body(FULL), Features(gates=GATES_1_34))
    assert set(found) == set(FULL)


def test_one_gate_drops_one_feature() -> None:
    """Only taints go when only their gate is off."""
    gates = Features().gates - {TAINTS}
    assert set(prepared(body(FULL), None, Features(gates=gates))) == set(FULL) - {"taints"}


def test_counters_stay_in_a_slice_that_has_some() -> None:
    """Where the gate was switched off, sets and devices of slices in use keep their counters; a
    new slice gets none, and is stored all the same."""
    gates = Features(gates=Features().gates - {PARTITIONABLE})
    sets = body(sharedCounters=[SET])
    del sets["spec"]["devices"]
    rules = SliceRules(gates)
    assert rules.prepare(Write(sets, sets, "", NOW)) == sets
    assert "sharedCounters" not in rules.prepare(Write(sets, None, "", NOW))["spec"]
    counting = {"name": "d0", "consumesCounters": [CONSUMED]}
    assert prepared(body(counting), body(counting), gates) == counting
    assert prepared(body(counting), sets, gates) == counting
    assert prepared(body(counting), body({"name": "d0"}), gates) == {"name": "d0"}


def test_a_taint_without_date_is_dated() -> None:
    """The date is now; one that was sent is kept."""
    found = prepared(body(FULL), None, Features())
    assert found["taints"] == [{**TAINT, "timeAdded": NOW}]
    sent = {**FULL, "taints": [{**TAINT, "timeAdded": "2020-01-01T00:00:00Z"}]}
    assert prepared(body(sent), None, Features())["taints"] == sent["taints"]


def test_1_34_had_other_limits() -> None:
    """B09: no rule of 64 with taints, but 4 taints on a device."""
    old = Features(limits=LIMITS_1_34)
    many: list[Object] = [{"name": f"d{n}"} for n in range(100)]
    many[37] = {"name": "d37", "taints": [TAINT] * 4}
    assert fields(body(*many), features=old) == []
    assert fields(body(*many)) == ["spec.devices"]
    many[37] = {"name": "d37", "taints": [TAINT] * 5}
    assert fields(body(*many), features=old) == ["spec.devices[37].taints"]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"driver": ""}, "spec.driver"),
        ({"driver": "Upper"}, "spec.driver"),
        ({"pool": {"resourceSliceCount": 1}}, "spec.pool.name"),
        ({"pool": {"name": "a//b", "resourceSliceCount": 1}}, "spec.pool.name"),
        (
            {"pool": {"name": "p", "generation": -1, "resourceSliceCount": 1}},
            "spec.pool.generation",
        ),
        ({"pool": {"name": "p"}}, "spec.pool.resourceSliceCount"),
        ({"nodeName": ""}, "spec"),
        ({"allNodes": True}, "spec"),
        ({"devices": [{"name": "d"}], "sharedCounters": [SET]}, "spec"),
    ],
)
def test_the_head_of_a_slice_is_checked(spec: Object, field: str) -> None:
    """Each broken rule names its field."""
    assert fields(body(**spec)) == [field]


@pytest.mark.parametrize(
    ("device", "field"),
    [
        ({}, "spec.devices[0].name"),
        ({"name": "a.b"}, "spec.devices[0].name"),
        ({"name": "d", "taints": [{**TAINT, "key": ""}]}, "spec.devices[0].taints[0].key"),
        ({"name": "d", "taints": [{**TAINT, "key": "a b"}]}, "spec.devices[0].taints[0].key"),
        ({"name": "d", "taints": [{**TAINT, "effect": ""}]}, "spec.devices[0].taints[0].effect"),
        (
            {"name": "d", "bindingFailureConditions": ["a"]},
            "spec.devices[0].bindingConditions",
        ),
        (
            {"name": "d", "bindingConditions": ["a"], "bindingFailureConditions": ["a"]},
            "spec.devices[0].bindingFailureConditions[0]",
        ),
        (
            {"name": "d", "bindingConditions": ["a", "a"], "bindingFailureConditions": ["b"]},
            "spec.devices[0].bindingConditions[1]",
        ),
        ({"name": "d", "attributes": {"a-b": {"int": 1}}}, "spec.devices[0].attributes"),
        ({"name": "d", "attributes": {"a": {}}}, "spec.devices[0].attributes[a]"),
        (
            {"name": "d", "attributes": {"a": {"int": 1, "bool": True}}},
            "spec.devices[0].attributes[a]",
        ),
        (
            {"name": "d", "attributes": {"a": {"string": "x" * 65}}},
            "spec.devices[0].attributes[a].string",
        ),
        (
            {"name": "d", "attributes": {"a": {"version": "570"}}},
            "spec.devices[0].attributes[a].version",
        ),
        (
            {"name": "d", "attributes": {f"a{n}": {"int": 1} for n in range(33)}},
            "spec.devices[0]",
        ),
    ],
)
def test_a_device_is_checked(device: Object, field: str) -> None:
    """Each broken rule names its field."""
    assert fields(body(device)) == [field]


def test_device_names_are_unique_in_a_slice() -> None:
    """The server sees one slice at a time: in a pool nobody checks this."""
    assert fields(body({"name": "d"}, {"name": "d"})) == ["spec.devices[1]"]


def test_what_names_the_pool_never_changes() -> None:
    """Driver, node and pool name are immutable."""
    new = body(driver="other.example.com", nodeName="m")
    new["spec"]["pool"] = {"name": "q", "generation": 2, "resourceSliceCount": 1}
    assert fields(new, body()) == ["spec.driver", "spec.nodeName", "spec.pool.name"]
