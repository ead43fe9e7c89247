"""The directory that looks like cgroups, as the node's own proof reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.node.cgroups import CgroupTree
from tests.lab.kubelet.cgroups import PodCgroups

UID = "d0d0d0d0-0000-4000-8000-000000000001"


@pytest.fixture
def cgroups(tmp_path: Path) -> PodCgroups:
    return PodCgroups(tmp_path / "cgroup")


def test_the_proof_of_the_node_can_read_it(cgroups: PodCgroups) -> None:
    """Promise 4: occupied while a process is listed, empty after its container, absent at last."""
    tree = CgroupTree(cgroups.root)
    assert tree.pods(UID) == []
    container = cgroups.make_container(UID, "c1")
    (pod,) = tree.pods(UID)
    assert not tree.occupied(pod)
    cgroups.enter(container, 4711)
    assert tree.occupied(pod)
    cgroups.remove(container)
    assert not tree.occupied(pod)
    cgroups.remove_pod(UID)
    assert tree.pods(UID) == []


def test_it_can_be_read_before_the_first_pod(cgroups: PodCgroups) -> None:
    """An empty node is visibly empty, not unknown."""
    assert CgroupTree(cgroups.root).find([UID]) == {UID: []}


def test_making_and_removing_twice_is_fine(cgroups: PodCgroups) -> None:
    """A pod's cgroup outlives its containers and is made once."""
    container = cgroups.make_container(UID, "c1")
    cgroups.enter(container, 1)
    assert cgroups.make_pod(UID) == container.parent
    assert container.is_dir()
    for _ in range(2):
        cgroups.remove_pod(UID)
    assert cgroups.pods() == ()


def test_a_new_boot_has_no_pods(cgroups: PodCgroups) -> None:
    """All pods' cgroups go at once, and nothing is left lying about in the tree."""
    for uid in ("a", "b"):
        cgroups.enter(cgroups.make_container(uid, "c"), 1)
    assert cgroups.pods() == ("a", "b")
    cgroups.clear()
    assert cgroups.pods() == ()
    assert [p.name for p in cgroups.root.rglob("*") if p.is_dir()] == ["kubepods", "besteffort"]
