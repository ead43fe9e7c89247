"""Rules of stored objects."""

from __future__ import annotations

from fleet.kube.base import CLAIMS, Object
from tests.lab.apiserver.apply import APPLY, UPDATE, Holding, Owner
from tests.lab.apiserver.stored import stored

BODY: Object = {"metadata": {"name": "a", "uid": "u", "resourceVersion": "7"}, "spec": {"x": [1]}}


def test_what_is_sent_carries_kind_and_ownership() -> None:
    """kind, apiVersion and managedFields are there, also when the body left them out."""
    owners = {
        Owner("m", APPLY, "status"): Holding(frozenset({("status", "x")}), "t"),
        Owner("k", UPDATE): Holding(frozenset({("spec", "x")}), "t"),
    }
    found = stored(BODY, owners, CLAIMS)
    sent = found.copy()
    assert (sent["kind"], sent["apiVersion"]) == ("ResourceClaim", "resource.k8s.io/v1")
    assert [
        (entry["manager"], entry["operation"]) for entry in sent["metadata"]["managedFields"]
    ] == [
        ("k", "Update"),
        ("m", "Apply"),
    ]
    assert sent["metadata"]["managedFields"][1]["subresource"] == "status"
    assert "managedFields" not in found.object["metadata"]
    assert (found.uid, found.version) == ("u", "7")


def test_nobody_can_change_what_is_stored() -> None:
    """Copies are the caller's own, and the body given is not kept."""
    found = stored(BODY, {}, CLAIMS)
    found.copy()["spec"]["x"].append(2)
    BODY["spec"]["x"].append(3)
    assert found.copy()["spec"] == {"x": [1]}
    assert found.object["spec"] == {"x": [1]}
