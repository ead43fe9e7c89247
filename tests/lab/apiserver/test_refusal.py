"""Rules of refusals."""

from __future__ import annotations

from fleet.kube.base import CLAIMS, NODES, PODS, Name
from tests.lab.apiserver import refusal


def test_a_refusal_is_a_status_object() -> None:
    """Code, reason, message and causes are where clients look for them."""
    cause = refusal.Cause(refusal.REQUIRED, "spec.driver", "Required value")
    status = refusal.invalid(CLAIMS, "a", [cause]).status()
    assert (status["kind"], status["status"], status["code"]) == ("Status", "Failure", 422)
    assert status["reason"] == "Invalid"
    assert status["message"] == (
        'ResourceClaim.resource.k8s.io "a" is invalid: spec.driver: Required value'
    )
    assert status["details"]["causes"] == [
        {"reason": "FieldValueRequired", "field": "spec.driver", "message": "Required value"}
    ]


def test_several_causes_are_told_together() -> None:
    """The message lists all of them in brackets."""
    causes = [refusal.Cause(refusal.INVALID, name, "bad") for name in ("a", "b")]
    assert "is invalid: [a: bad, b: bad]" in refusal.invalid(CLAIMS, "x", causes).message


def test_a_refusal_without_causes_has_no_details() -> None:
    """A failed JSON patch is a 422 that names no field."""
    assert "details" not in refusal.unprocessable().status()


def test_a_missing_object_is_named_in_the_details() -> None:
    """Clients tell a missing object from a path that is not served by its name."""
    status = refusal.not_found(CLAIMS, "a").status()
    assert status["details"] == {
        "name": "a",
        "group": "resource.k8s.io",
        "kind": "resourceclaims",
    }


def test_both_conflicts_are_told_apart_by_their_reason() -> None:
    """409 is Conflict or AlreadyExists."""
    assert refusal.modified(CLAIMS, "a").reason == "Conflict"
    taken = refusal.exists(CLAIMS, "a", deleting=True)
    assert (taken.code, taken.reason) == (409, "AlreadyExists")
    assert "object is being deleted" in taken.message


def test_a_missing_right_names_who_what_and_where() -> None:
    """The words of a 403 for the core group, a cluster-scoped kind and a subresource."""
    attempt = refusal.Attempt("u", "get", PODS, "", Name("p", "ns"))
    assert 'cannot get resource "pods" in API group "" in the namespace "ns"' in (
        refusal.forbidden(attempt).message
    )
    attempt = refusal.Attempt("u", "patch", NODES, "status", Name("n"))
    assert 'resource "nodes/status" in API group "" at the cluster scope' in (
        refusal.forbidden(attempt).message
    )
