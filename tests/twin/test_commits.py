"""The node service dies at every commit of a claim's life, before and after it: all goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.twin.journal import AFTER, BEFORE
from tests.twin.wiping import steady
from tests.twin.world import Plan, World


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A node that dies warns of it: that tells nothing here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def lived(profile: str, number: int, how: str) -> tuple[World, list[str]]:
    """A pod runs and is deleted; the node dies at a commit, 0 for none. What is left then."""
    world = World(Plan(nodes=1, devices=1, profile=profile), fates=steady())
    node = world.nodes["n0"]
    node.commits, node.die_at = 0, (number, how)
    world.run(8.0)
    pod = world.pod()
    assert world.run(200.0, lambda: world.running(pod)), (number, how)
    world.delete(pod)
    assert world.run(200.0, lambda: not world.phase(pod)), (number, how)
    return world, world.settle()


@pytest.mark.parametrize("profile", ["strict", "fast"])
def test_a_service_may_die_at_any_commit(profile: str) -> None:
    """Promise 7: kill -9 before and after each commit, restart: the pod runs, nothing is left."""
    world, left = lived(profile, 0, BEFORE)
    assert left == []
    commits = world.nodes["n0"].commits
    assert commits > 15
    for number in range(1, commits + 1):
        for how in (BEFORE, AFTER):
            world, left = lived(profile, number, how)
            assert left == [], (number, how)
            assert world.nodes["n0"].starts == 2, (number, how)
