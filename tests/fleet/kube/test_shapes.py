"""Where pods, claims and classes are inside objects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.kube import shapes
from fleet.kube.shapes import WORKLOADS, written
from tests.fleet.admission import corpus

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
CASES = {case.name: case.document.value for case in corpus.cases()}
DEVICES = {"requests": [{"name": "gpu", "deviceClassName": "c"}]}


@pytest.mark.parametrize("group", WORKLOADS)
def test_the_pods_of_every_kind_are_found(group: str) -> None:
    """B20: each workload kind of the table is in the corpus, and its pods are found in it."""
    for kind in WORKLOADS[group]:
        found = [value for value in CASES.values() if value["kind"] == kind]
        assert found, kind
        for value in found:
            made = shapes.workload(value)
            assert made
            assert all(pod.containers for pod in made.pods)


@pytest.mark.parametrize(
    ("document", "is_shared"),
    [
        ({"kind": "Pod"}, False),
        ({"kind": "Deployment", "spec": {"replicas": 1}}, False),
        ({"kind": "StatefulSet", "spec": {}}, False),
        ({"kind": "ReplicaSet", "spec": {"replicas": 2}}, True),
        ({"kind": "DaemonSet", "spec": {"replicas": 1}}, True),
        ({"kind": "Deployment", "apiVersion": "example.com/v1", "spec": {"replicas": 1}}, True),
    ],
)
def test_one_pod_at_a_time_shares_nothing(document: Any, is_shared: bool) -> None:
    """D2: only kinds that say how many pods there are can say that there is one."""
    document = {"apiVersion": "apps/v1", **document}
    assert shapes.Workload(document, ()).is_shared == is_shared


def test_all_groups_of_a_ray_cluster_are_found() -> None:
    """B20: the head's pods and those of every worker group."""
    made = shapes.workload(CASES["ray-RayJob-good-rayjob"])
    assert made
    paths = [written(pod.path) for pod in made.pods]
    below = "spec.rayClusterSpec."
    assert paths == [
        f"{below}headGroupSpec.template.spec",
        f"{below}workerGroupSpecs[0].template.spec",
        f"{below}workerGroupSpecs[1].template.spec",
    ]


def test_containers_of_every_sort_are_found() -> None:
    """A5: those that run before the others, and those for debugging, are containers too."""
    made = shapes.workload(CASES["pods-Pod-ephemeral"])
    assert made
    (pod,) = made.pods
    assert [container["name"] for _, container in pod.containers] == ["work", "debug"]


@pytest.mark.parametrize(
    ("request_", "names"),
    [
        ({"name": "gpu", "exactly": {"deviceClassName": "c"}}, [("gpu",)]),
        ({"name": "gpu", "deviceClassName": "c"}, [("gpu",)]),
        (
            {"name": "gpu", "firstAvailable": [{"name": "a"}, {"name": "b"}]},
            [("gpu", "gpu/a"), ("gpu", "gpu/b")],
        ),
        ({"name": "gpu", "exactly": 3}, []),
    ],
)
def test_a_request_is_read_in_every_shape(request_: Any, names: list[tuple[str, ...]]) -> None:
    """B20: `exactly`, flat, or alternatives, with the names that configuration calls them by."""
    assert [wish.names for wish in shapes.wishes_of(request_, ())] == names


def test_claims_are_found_with_and_without_a_template() -> None:
    """B20: whatever the version, known or not, and nothing of another group."""
    for version in ("v1", "v1beta1", "v9"):
        claim = {"kind": "ResourceClaim", "spec": {"devices": DEVICES}}
        template = {"kind": "ResourceClaimTemplate", "spec": {"spec": {"devices": DEVICES}}}
        for one in (claim, template):
            (found,) = shapes.claims({**one, "apiVersion": f"resource.k8s.io/{version}"})
            assert [wish.device_class for wish in found.wishes] == ["c"]
            assert not list(shapes.claims({**one, "apiVersion": f"example.com/{version}"}))


def test_configuration_is_for_all_or_for_those_named() -> None:
    """C2: an entry without requests covers every request; of other drivers none is ours."""
    ours = {"opaque": {"driver": "x.y", "parameters": {}}}
    devices = {**DEVICES, "config": [ours, {**ours, "requests": ["other"]}, {"opaque": 1}]}
    claim = shapes.ClaimSpec(devices, ("spec",))
    (wish,) = claim.wishes
    assert [entry.covers(wish) for entry in claim.entries("x.y")] == [True, False]
    assert claim.entries("y.z") == []


@settings(max_examples=60, deadline=None)
@given(spec=JSON, kind=st.sampled_from(["Pod", "Job", "RayJob", "ResourceClaim", "DeviceClass"]))
def test_whatever_is_written_is_read(spec: Any, kind: str) -> None:
    """B20: a manifest of wrong types is passed over, never stumbled upon."""
    groups = {"Pod": "v1", "Job": "batch/v1", "RayJob": "ray.io/v1"}
    version = groups.get(kind, "resource.k8s.io/v1")
    devices = {"requests": spec, "config": spec, "constraints": spec}
    for inner in (spec, {"devices": devices}, {"template": {"spec": spec}}, {"selectors": spec}):
        document = {"apiVersion": version, "kind": kind, "metadata": spec, "spec": inner}
        made = shapes.workload(document)
        for pod in made.pods if made else ():
            assert len(pod.listed("volumes")) + len(pod.containers) >= 0
        assert shapes.is_understood(document)
        for claim in shapes.claims(document):
            assert len(claim.wishes) + len(claim.entries("x")) >= 0
        for found in shapes.classes(document):
            assert found.names("x") in (True, False)
