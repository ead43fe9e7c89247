"""Words of the cluster port."""

from __future__ import annotations

import pytest

from fleet.kube.base import CLAIMS, NODES, Name, name_of, uid_of, version_of


def test_kinds_say_their_group_and_version_as_objects_do() -> None:
    """The core group is left out, as in the apiVersion of an object."""
    assert (NODES.api_version, CLAIMS.api_version) == ("v1", "resource.k8s.io/v1")


def test_names_are_shown_with_their_namespace() -> None:
    """A name reads as kubectl shows it; cluster-scoped ones have no slash."""
    assert (str(Name("c", "a")), str(Name("n"))) == ("a/c", "n")


def test_identity_is_read_from_the_metadata() -> None:
    """Name, uid and version come from the metadata."""
    found = {"metadata": {"name": "c", "namespace": "a", "uid": "u", "resourceVersion": "7"}}
    assert (name_of(found), uid_of(found), version_of(found)) == (Name("c", "a"), "u", "7")


@pytest.mark.parametrize("found", [{}, {"metadata": {}}, {"metadata": {"namespace": None}}])
def test_what_is_not_there_is_empty(found: dict[str, object]) -> None:
    """An object that lacks its metadata has an empty name, never a name of None."""
    assert (name_of(found), uid_of(found), version_of(found)) == (Name(""), "", "")
