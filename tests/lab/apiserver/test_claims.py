"""Rules of claims that need no server (the rest are rows in tests/contracts)."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.kube.base import Object
from tests.lab.apiserver.claims import ClaimRules, TemplateRules, allocated, spec_causes
from tests.lab.apiserver.gates import DEVICE_STATUS, GATES_1_34, Features
from tests.lab.apiserver.rules import Write

REQUEST = {"name": "gpu", "exactly": {"deviceClassName": "gpus"}}
SPEC = {"devices": {"requests": [REQUEST]}}
RESULT = {
    "request": "gpu",
    "driver": "d",
    "pool": "p",
    "device": "x",
    "bindingConditions": ["a/b"],
    "bindingFailureConditions": ["a/c"],
    "shareID": "s",
}


def claim(**status: Any) -> Object:
    """A claim with this status."""
    return {"metadata": {"name": "a"}, "spec": SPEC, "status": status}


def written(new: Object, old: Object) -> Write:
    """A write of the status."""
    return Write(new, old, "status", "2026-11-29T13:13:23Z")


def test_fields_behind_a_gate_that_is_off_are_dropped() -> None:
    """An older server keeps neither condition lists nor shares nor timestamps, in silence."""
    allocation = {"devices": {"results": [RESULT]}, "allocationTimestamp": "t"}
    rules = ClaimRules(Features(gates=GATES_1_34))
    found = rules.prepare(written(claim(allocation=allocation), claim()))["status"]
    bare = {key: RESULT[key] for key in ("request", "driver", "pool", "device")}
    assert found["allocation"] == {"devices": {"results": [bare]}}


def test_device_status_needs_its_gate() -> None:
    """Without DRAResourceClaimDeviceStatus the entries vanish, unless there are some already."""
    entry = {"driver": "d", "pool": "p", "device": "x"}
    rules = ClaimRules(Features(gates=frozenset()))
    new = claim(allocation={"devices": {"results": [entry]}}, devices=[entry])
    assert "devices" not in rules.prepare(written(new, claim()))["status"]
    assert "devices" in rules.prepare(written(new, new))["status"]
    kept = ClaimRules(Features(gates=frozenset({DEVICE_STATUS})))
    assert "devices" in kept.prepare(written(new, claim()))["status"]


def test_entries_of_devices_that_were_let_go_vanish() -> None:
    """On a change of allocation only the entries of devices that stay survive."""
    x, y = ({"driver": "d", "pool": "p", "device": name} for name in "xy")
    old = claim(allocation={"devices": {"results": [x, y]}}, devices=[x, y])
    new = claim(allocation={"devices": {"results": [y]}}, devices=[x, y])
    rules = ClaimRules(Features())
    assert rules.prepare(written(new, old))["status"]["devices"] == [y]
    assert allocated(old["status"]) == {("d", "p", "x", ""), ("d", "p", "y", "")}


@pytest.mark.parametrize(
    ("requests", "field"),
    [
        ([{"exactly": {"deviceClassName": "c"}}], "spec.devices.requests[0].name"),
        ([{**REQUEST, "name": "Not_A_Label"}], "spec.devices.requests[0].name"),
        ([REQUEST, REQUEST], "spec.devices.requests[1]"),
        ([{"name": "gpu"}], "spec.devices.requests[0]"),
        ([{"name": "gpu", "exactly": {}}], "spec.devices.requests[0].exactly.deviceClassName"),
        ([{**REQUEST, "name": f"r{n}"} for n in range(33)], "spec.devices.requests"),
    ],
)
def test_a_claims_requests_are_checked(requests: list[Object], field: str) -> None:
    """Each broken rule names its field."""
    assert [cause.field for cause in spec_causes({"devices": {"requests": requests}}, "spec")] == [
        field
    ]


@pytest.mark.parametrize(
    "parameters",
    [None, [1], "text", {"k": "x" * 10240}],
    ids=["missing", "list", "text", "too-long"],
)
def test_opaque_parameters_are_an_object_of_limited_size(parameters: Any) -> None:
    """10 KiB of JSON object at most."""
    opaque = {"driver": "d"} if parameters is None else {"driver": "d", "parameters": parameters}
    spec = {"devices": {"requests": [REQUEST], "config": [{"opaque": opaque}]}}
    (cause,) = spec_causes(spec, "spec")
    assert cause.field == "spec.devices.config[0].opaque.parameters"


def test_a_subrequest_may_be_allocated() -> None:
    """A result may name request/subrequest of a prioritized list, and nothing unknown."""
    spec = {"devices": {"requests": [{"name": "r", "firstAvailable": [{"name": "big"}]}]}}
    result = {"request": "r/big", "driver": "d", "pool": "p", "device": "x"}
    new = {**claim(allocation={"devices": {"results": [result]}}), "spec": spec}
    rules = ClaimRules(Features())
    assert rules.judge(written(new, claim())) == []
    result["request"] = "r/small"
    assert [cause.field for cause in rules.judge(written(new, claim()))] == [
        "status.allocation.devices.results[0].request"
    ]


def test_a_claim_is_reserved_by_256_at_most() -> None:
    """Each entry needs resource, name and uid, and its uid is unique."""
    allocation: Object = {"devices": {"results": []}}
    entries = [{"resource": "pods", "name": "p", "uid": str(n)} for n in range(257)]
    rules = ClaimRules(Features())
    new = claim(allocation=allocation, reservedFor=entries)
    assert [c.reason for c in rules.judge(written(new, claim()))] == ["FieldValueTooMany"]
    new = claim(allocation=allocation, reservedFor=[entries[0], entries[0], {"uid": "9"}])
    assert [c.field for c in rules.judge(written(new, claim()))] == [
        "status.reservedFor[1]",
        "status.reservedFor[2].resource",
        "status.reservedFor[2].name",
    ]


def test_a_template_never_changes() -> None:
    """Its spec is immutable; its claims' requests are checked like a claim's."""
    rules = TemplateRules()
    old = {"spec": {"spec": SPEC}}
    new: Object = {"spec": {"spec": {"devices": {"requests": []}}}}
    assert rules.prepare(Write(new, old, "", "t")) == new
    assert [c.field for c in rules.judge(Write(new, old, "", "t"))] == ["spec"]
    bad = {"spec": {"spec": {"devices": {"requests": [{"name": "gpu"}]}}}}
    assert [c.field for c in rules.judge(Write(bad, None, "", "t"))] == [
        "spec.spec.devices.requests[0]"
    ]
