"""Names that do not exist."""

from __future__ import annotations

import pytest

from fleet.admission import rules
from fleet.admission.ground import Ground
from fleet.admission.invented import FIELDS, KINDS, claims_kind
from fleet.kube.shapes import Object

GROUND = Ground()


def told(document: Object) -> list[str]:
    """What is said about a document."""
    return [str(finding) for finding in rules.judge(document, GROUND)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_nobody_has_is_named_with_what_was_meant(kind: str) -> None:
    """F: each invented or bygone kind says what to write instead, in whatever version."""
    for version in ("resource.k8s.io/v1", "resource.k8s.io/v1alpha2", "v1"):
        (said,) = told({"apiVersion": version, "kind": kind})
        assert said.startswith(f"F-kind kind: there is no kind {kind} — write {KINDS[kind]}")
    assert told({"apiVersion": "example.com/v1", "kind": kind}) == []


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_nobody_has_is_named_wherever_it_stands(field: str) -> None:
    """F: in the spec, the devices, a request, or below it."""
    exactly = {"deviceClassName": "nic.example.com", field: 1}
    devices = {"requests": [{"name": "a", "exactly": exactly, field: 1}], field: 1}
    document = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "spec": {"devices": devices, field: 1},
    }
    found = rules.judge(document, GROUND)
    assert [finding.place for finding in found] == [
        f"spec.{field}",
        f"spec.devices.{field}",
        f"spec.devices.requests[0].{field}",
        f"spec.devices.requests[0].exactly.{field}",
    ]
    assert all(finding.remedy == f"write {FIELDS[field]}" for finding in found)


def test_what_is_served_is_not_invented() -> None:
    """F: every version that is served, and the one kind that still has an alpha."""
    for version in ("v1", "v1beta1", "v1beta2"):
        assert told({"apiVersion": f"resource.k8s.io/{version}", "kind": "ResourceSlice"}) == []
    rule = {"apiVersion": "resource.k8s.io/v1alpha3", "kind": "DeviceTaintRule"}
    assert told(rule) == []
    assert claims_kind({"apiVersion": "resource.k8s.io/v9", "kind": "ResourceClaim"})
    assert not claims_kind(rule)
