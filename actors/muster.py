"""Bringing a fleet's actors together for one command, and letting them go.

Local: a Ray of our own, whose actors end with the command and give their journals up first.
Attached: the actors outlive the command; those of a simulated fleet are created when missing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from actors import cluster, handles
from actors.handles import RemoteCoordinator, RemoteNode
from actors.identity import plan_digest
from actors.translate import translated
from fleet.core import errors
from fleet.wiring.adapters import FleetPlan

LOG = logging.getLogger(__name__)


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
        coordinator, *_ = create(plan, started, host=cluster.LOCAL_HOST)
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
        coordinator, *_ = create(plan, started, host=handles.own_host())
        handles.await_serving(started)
        pulses = {node.name: node.ping() for node in started}
        check_same(plan, {name: pulse.state for name, pulse in pulses.items()})
        tell_others(plan, {name: pulse.plan for name, pulse in pulses.items()})
        yield Muster(tuple(started), coordinator, local=False, dashboard=ray_cluster.dashboard)
    finally:
        ray_cluster.close()


def create(
    plan: FleetPlan,
    started: list[RemoteNode],
    *,
    host: str,
    replace: bool = False,
    compare: bool = True,
) -> list[RemoteCoordinator]:
    """Create what is missing of `plan` on `host`; nodes go to `started` one by one, also on error.

    Does not wait for the nodes to serve. The coordinators are returned; one that was made from
    another plan is replaced with `replace`, else told of with `compare`.
    """
    shards = [shard.model_dump_json() for shard in plan.coordinator.shards()]
    made = [handles.create_coordinator(shard, host=host) for shard in shards]
    if compare:
        made = [
            handles.match_coordinator(one, shard, host=host, replace=replace)
            for one, shard in zip(made, shards, strict=True)
        ]
    for node in plan.nodes:
        assignment = handles.assign(node.node, node.model_dump_json(), host=host)
        started.append(handles.create_node(assignment))
    return made


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


def tell_others(plan: FleetPlan, digests: Mapping[str, str]) -> None:
    """Say which actors run with another plan than the one asked for (B63); they are not replaced:
    others may be using them. `digests`: of the plan each was made from, by node."""
    for wanted in plan.nodes:
        if digests[wanted.node] != plan_digest(wanted.model_dump_json()):
            LOG.warning(
                "the actor of %s runs with other settings than those asked for, and goes on with"
                " its own",
                wanted.node,
            )


def _state(plan: FleetPlan) -> Path:
    return Path(plan.coordinator.state)
