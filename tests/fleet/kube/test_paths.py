"""Where requests go."""

from __future__ import annotations

import pytest

from fleet.core import errors
from fleet.kube import cluster
from fleet.kube.base import CLAIMS, NODES, PODS, SLICES, Name, Selection


def test_paths_follow_group_scope_and_subresource() -> None:
    """The core group lives under /api, all others under /apis; a namespace only where one is."""
    assert cluster.object_path(NODES, Name("n1")) == "/api/v1/nodes/n1"
    assert cluster.object_path(PODS, Name("p", "a")) == "/api/v1/namespaces/a/pods/p"
    assert cluster.object_path(CLAIMS, Name("c", "a"), "status") == (
        "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/c/status"
    )
    assert cluster.collection_path(SLICES, "a") == "/apis/resource.k8s.io/v1/resourceslices"
    assert cluster.collection_path(CLAIMS) == "/apis/resource.k8s.io/v1/resourceclaims"
    assert cluster.group_path("") == "/api"


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_never_addresses_a_collection(name: str) -> None:
    """An empty or dotted name is refused: it would read or delete something else."""
    with pytest.raises(errors.InputInvalid):
        cluster.object_path(CLAIMS, Name(name, "a"))
    with pytest.raises(errors.InputInvalid):
        cluster.object_path(CLAIMS, Name("c", name))


def test_names_are_quoted() -> None:
    """No character of a name changes the path or the query."""
    assert cluster.object_path(NODES, Name("a/../b?x=1#y%2f")).endswith(
        "/a%2F..%2Fb%3Fx%3D1%23y%252f"
    )
    found = cluster.query({"fieldSelector": "spec.nodeName=n&limit=1", "continue": ""})
    assert found == "?fieldSelector=spec.nodeName%3Dn%26limit%3D1"
    assert cluster.query({"a": ""}) == ""


def test_a_body_has_to_be_of_the_kind_named() -> None:
    """A body without kind, apiVersion or metadata is refused before anything is sent."""
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    assert cluster.body_name(NODES, body) == Name("n")
    for wrong in ({**body, "kind": "Pod"}, {**body, "apiVersion": "v2"}, {**body, "metadata": 1}):
        with pytest.raises(errors.InputInvalid):
            cluster.body_name(NODES, wrong)


def test_selectors_become_parameters() -> None:
    """Field and label selectors are passed as the server's own strings."""
    found = cluster.selection_query(Selection(fields="spec.driver=d", labels="a in (b)"))
    assert found == {"fieldSelector": "spec.driver=d", "labelSelector": "a in (b)"}
