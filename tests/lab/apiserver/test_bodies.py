"""Rules of bodies held against the place they were sent to."""

from __future__ import annotations

import pytest

from fleet.kube.base import CLAIMS, SLICES, Name, Object
from tests.lab.apiserver import bodies
from tests.lab.apiserver.gates import Features
from tests.lab.apiserver.kinds import table
from tests.lab.apiserver.refusal import Refusal

KINDS = table(Features())


@pytest.mark.parametrize(
    "body", [{"kind": "Pod"}, {"apiVersion": "v1"}, {"apiVersion": "resource.k8s.io/v1beta1"}]
)
def test_a_body_of_another_kind_is_a_400(body: Object) -> None:
    """Kind and version, where said, are those of the path."""
    with pytest.raises(Refusal) as caught:
        bodies.check_head(body, CLAIMS)
    assert caught.value.code == 400
    bodies.check_head({}, CLAIMS)


def test_a_patch_does_not_change_the_kind() -> None:
    """422: the object would not be what the path holds."""
    good = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    bodies.check_patched(good, CLAIMS)
    wrong: list[object] = [{**good, "kind": "Pod"}, {**good, "apiVersion": "v1"}, []]
    for bad in wrong:
        with pytest.raises(Refusal) as caught:
            bodies.check_patched(bad, CLAIMS)
        assert caught.value.code == 422


@pytest.mark.parametrize("metadata", [{"name": "b"}, {"name": "a", "namespace": "other"}])
def test_a_body_of_another_object_is_a_400(metadata: Object) -> None:
    """Name and namespace, where said, are those of the path."""
    with pytest.raises(Refusal):
        bodies.check_place({"metadata": metadata}, Name("a", "default"))
    bodies.check_place({}, Name("a", "default"))


def test_a_new_object_goes_where_body_or_path_say() -> None:
    """They must not disagree; a namespaced kind needs one of them."""
    kind = KINDS[CLAIMS]
    here = {"metadata": {"name": "a", "namespace": "x"}}
    assert bodies.name_for(here, kind, "") == Name("a", "x")
    assert bodies.name_for({"metadata": {"name": "a"}}, kind, "x") == Name("a", "x")
    assert bodies.name_for(here, KINDS[SLICES], "") == Name("a")
    for body, namespace in ((here, "y"), ({}, "")):
        with pytest.raises(Refusal):
            bodies.name_for(body, kind, namespace)


def test_each_endpoint_writes_its_own_part() -> None:
    """The status only through status, the rest only beside it; without status everything."""
    body: Object = {"metadata": {}, "spec": {}, "status": {}}
    assert set(bodies.written_part(body, KINDS[CLAIMS], "status")) == {"status"}
    assert set(bodies.written_part(body, KINDS[CLAIMS], "")) == {"metadata", "spec"}
    assert bodies.written_part(body, KINDS[SLICES], "") == body
