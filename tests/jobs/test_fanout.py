"""One question to all nodes at once."""

from __future__ import annotations

import time
from typing import Any

import pytest
import ray

from actors.cluster import Cluster
from actors.handles import RemoteNode
from fleet.core import errors
from fleet.core.messages import NodeView
from jobs.fanout import RayNodes


def test_a_node_without_an_actor_answers_for_itself() -> None:
    """A node there should be is asked like the others and is unavailable, not left out."""
    nodes = RayNodes((), absent=("node-02", "node-01"))
    assert nodes.names() == ["node-01", "node-02"]
    found = nodes.views({})
    assert {name: type(answer) for name, answer in found.items()} == {
        "node-01": errors.RayUnavailable,
        "node-02": errors.RayUnavailable,
    }


@pytest.mark.ray
def test_a_slow_node_hides_no_other_s_answer(ray_cluster: Cluster) -> None:
    """B59: one deadline for all: the late are unavailable, the failed say why, the rest answer."""

    class Node:
        """Answers, fails or hangs, by its name."""

        def view(self, node: str, _: object) -> str:
            if node == "slow":
                time.sleep(30)
            if node == "broken":
                raise errors.NodeDegraded("journal set aside")
            return NodeView(
                node=node,
                incarnation="i",
                boot_id="b",
                at=0.0,
                simulated=True,
                backend="simulated",
            ).model_dump_json()

    names = ("good", "slow", "broken")
    remote: Any = ray.remote(num_cpus=0)(Node)
    actors = {name: remote.remote() for name in names}
    ray.get([actor.__ray_ready__.remote() for actor in actors.values()], timeout=60)
    nodes = RayNodes([RemoteNode(name, actors[name]) for name in names], view_timeout_s=1.5)
    began = time.monotonic()
    found = nodes.views({})
    assert time.monotonic() - began < 5.0
    assert isinstance(found["good"], NodeView)
    assert type(found["slow"]) is errors.RayUnavailable
    assert type(found["broken"]) is errors.NodeDegraded
    for actor in actors.values():
        ray.kill(actor)
