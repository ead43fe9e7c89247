"""Bringing a fleet's actors together for one command, and letting them go.

Local: a Ray of our own, whose actors end with the command and give their journals up first.
Attached: the actors outlive the command; those of a simulated fleet are created when missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from actors import cluster, handles
from actors.handles import RemoteCoordinator, RemoteNode
from actors.translate import translated
from fleet import errors
from fleet.bootstrap import FleetPlan


@dataclass(frozen=True, slots=True)
class Muster:
    """A fleet at hand."""

    nodes: tuple[RemoteNode, ...]
    coordinator: RemoteCoordinator
    local: bool
    """Whether nobody but this process can be using these actors."""
    dashboard: str


@contextmanager
def local(plan: FleetPlan, *, dashboard: bool = False) -> Iterator[Muster]:
    """Start a Ray and the actors of `plan`; all of it ends with the block."""
    ray_cluster = cluster.local(_state(plan), dashboard=dashboard)
    started: list[RemoteNode] = []
    try:
        coordinator = create(plan, started, host=cluster.LOCAL_HOST)
        handles.await_serving(started)
        yield Muster(tuple(started), coordinator, local=True, dashboard=ray_cluster.dashboard)
    finally:
        for node in started:
            # The end of Ray ends them anyway, and the journal is made for that; this is tidier.
            with suppress(errors.FleetError):
                node.close()
        ray_cluster.close()


@contextmanager
def attached(address: str, plan: FleetPlan | None) -> Iterator[Muster]:
    """Attach to a running Ray; with `plan`, create the actors that are missing."""
    ray_cluster = cluster.attach(address)
    try:
        if plan is None:
            found = handles.find_nodes()
            if not found:
                raise errors.RayUnavailable(
                    f"no node actor runs in the Ray at {address}",
                    remedy="start the node services, or ask for a simulated fleet",
                )
            coordinator = handles.find_coordinator()
            yield Muster(found, coordinator, local=False, dashboard=ray_cluster.dashboard)
            return
        started: list[RemoteNode] = []
        coordinator = create(plan, started, host=handles.own_host())
        handles.await_serving(started)
        check_same(plan, {node.name: node.ping().state for node in started})
        yield Muster(tuple(started), coordinator, local=False, dashboard=ray_cluster.dashboard)
    finally:
        ray_cluster.close()


def create(plan: FleetPlan, started: list[RemoteNode], *, host: str) -> RemoteCoordinator:
    """Create what is missing of `plan` on `host`; nodes go to `started` one by one, also on error.

    Does not wait for the nodes to serve. Of several coordinators the first one is returned.
    """
    coordinator, *_ = [
        handles.create_coordinator(shard.model_dump_json(), host=host)
        for shard in plan.coordinator.shards()
    ]
    for node in plan.nodes:
        assignment = handles.assign(node.node, node.model_dump_json(), host=host)
        started.append(handles.create_node(assignment))
    return coordinator


def replace(node: RemoteNode) -> None:
    """End the node's actor for good: the next `create` makes one from the plan of now.

    It gives the journal up first, as far as it can.
    """
    import ray

    with suppress(errors.FleetError):
        node.close()
    with translated(f"replacing the actor of {node.name}"):
        ray.kill(node.handle, no_restart=True)


def check_same(plan: FleetPlan, states: Mapping[str, str]) -> None:
    """Raises `InputInvalid` when an actor of one of these names serves another directory already.

    `states`: the state directory each running actor was made for, by node.
    """
    for wanted in plan.nodes:
        if states[wanted.node] != wanted.state:
            raise errors.InputInvalid(
                f"{wanted.node} runs already, for the state directory {states[wanted.node]}",
                remedy="name that directory with --state, or use another Ray",
            )


def _state(plan: FleetPlan) -> Path:
    return Path(plan.coordinator.state)
