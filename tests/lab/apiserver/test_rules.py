"""Rules of metadata, names and the split of status."""

from __future__ import annotations

import pytest

from fleet.kube.base import Object
from tests.lab.apiserver.refusal import Cause
from tests.lab.apiserver.rules import (
    PlainRules,
    Write,
    is_label_value,
    is_qualified,
    metadata_causes,
    split_status,
)

NOW = "2026-11-29T13:13:23Z"


def write(new: Object, old: Object | None = None, subresource: str = "") -> Write:
    """A write."""
    return Write(new, old, subresource, NOW)


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("x.example.com/Sanitized", True),
        ("Sanitized", True),
        ("with space", False),
        ("UPPER.example.com/a", False),
        ("/a", False),
        ("", False),
        ("a" * 64, False),
    ],
)
def test_a_qualified_name_has_an_optional_domain(name: str, good: bool) -> None:
    """Domain in lower case, name part of at most 63 characters."""
    assert is_qualified(name) is good


@pytest.mark.parametrize(
    ("value", "good"), [("", True), ("ecc-error", True), ("no value!", False), ("v" * 64, False)]
)
def test_a_label_value_is_short_and_plain(value: str, good: bool) -> None:
    """What a taint's value may be."""
    assert is_label_value(value) is good


def test_status_is_written_only_through_its_subresource() -> None:
    """A create drops it, a PUT keeps the old one, a PUT of the status keeps all the rest."""
    old = {"metadata": {"name": "a"}, "spec": {"x": 1}, "status": {"s": 1}}
    new = {"metadata": {"name": "b"}, "spec": {"x": 2}, "status": {"s": 2}}
    assert "status" not in split_status(write(new))
    assert split_status(write(new, old))["status"] == {"s": 1}
    assert split_status(write(new, old, "status")) == {**old, "status": {"s": 2}}
    assert "status" not in split_status(write({"metadata": {}}, old, "status"))


def test_a_new_object_may_start_with_a_status() -> None:
    """A pod starts Pending; a kind without status is left alone."""
    pod = PlainRules(has_status=True, first_status={"phase": "Pending"})
    assert pod.prepare(write({"status": {"phase": "Running"}}))["status"] == {"phase": "Pending"}
    plain = PlainRules(has_status=False)
    assert plain.prepare(write({"status": {"a": 1}})) == {"status": {"a": 1}}
    assert plain.judge(write({})) == ()


@pytest.mark.parametrize("name", ["Upper", "a_b", "-a", "", "a" * 254])
def test_a_name_is_a_lower_case_domain(name: str) -> None:
    """Anything else is a cause on metadata.name."""
    (cause,) = metadata_causes(write({"metadata": {"name": name}}))
    assert cause.field == "metadata.name"


def test_a_finalizer_is_a_qualified_name() -> None:
    """It needs a domain, but for the three standard ones."""
    for name, fields in (
        ("orphan", []),
        ("x.example.com/hold", []),
        ("hold", ["metadata.finalizers[0]"]),
        ("x.example.com/a b", ["metadata.finalizers"]),
    ):
        body = {"metadata": {"name": "a", "finalizers": [name]}}
        assert [cause.field for cause in metadata_causes(write(body))] == fields


def test_labels_and_owners_are_checked() -> None:
    """Label names and values, complete owner references, one controller at most."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": True}
    body: Object = {"metadata": {"name": "a", "labels": {"a b": "c d"}, "ownerReferences": [owner]}}
    fields = [cause.field for cause in metadata_causes(write(body))]
    assert fields == ["metadata.labels", "metadata.labels"]
    body = {"metadata": {"name": "a", "ownerReferences": [owner, {**owner, "name": ""}]}}
    assert [cause.field for cause in metadata_causes(write(body))] == [
        "metadata.ownerReferences.name",
        "metadata.ownerReferences",
    ]


def test_nobody_sets_a_deletion_timestamp() -> None:
    """It is the server's: a change is refused."""
    old = {"metadata": {"name": "a"}}
    (cause,) = metadata_causes(write({"metadata": {"name": "a", "deletionTimestamp": NOW}}, old))
    assert cause.field == "metadata.deletionTimestamp"


def test_a_dying_object_loses_finalizers_but_gains_none() -> None:
    """B75: what was there may stay or go; a new one is Forbidden."""
    old = {"metadata": {"name": "a", "deletionTimestamp": NOW, "finalizers": ["a/f", "a/g"]}}

    def causes(*finalizers: str) -> list[Cause]:
        metadata = {"name": "a", "deletionTimestamp": NOW, "finalizers": list(finalizers)}
        return metadata_causes(write({"metadata": metadata}, old))

    assert causes("a/g") == []
    (cause,) = causes("a/h")
    assert (cause.reason, cause.field) == ("FieldValueForbidden", "metadata.finalizers")
    assert 'found new finalizers []string{"a/h"}' in cause.message
