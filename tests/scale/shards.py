"""Several coordinators for one driver in one cluster, each over the product's own reconciler.

Real are the reconcilers (`fleet.wiring.coordinator`) and the store's decisions; the API server and
the store are in memory, the nodes are stand-ins that fence by token. Time is virtual.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fleet.control.binding.loop import Reconciling
from fleet.control.coordinator import Coordinator
from fleet.core.settings import KubernetesSettings, Settings
from fleet.kube.base import CLAIMS, NODES, Name, PatchKind
from fleet.wiring import coordinator as wiring_coordinator
from fleet.wiring.plans import CoordinatorPlan
from tests.fleet.control.binding import scenes
from tests.fleet.control.binding.benches import STEP_S, Bench, Node, Nodes, NoSigner
from tests.lab.apiserver.access import Caller
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.stores import MemoryRunStore


class Pools(Bench):
    """A cluster of nodes with two devices each, labelled by pool."""

    def __init__(self, pools: Mapping[str, Sequence[str]]) -> None:
        """`pools`: names of nodes by pool; "": without a label."""
        super().__init__()
        listed = [name for names in pools.values() for name in names]
        self.nodes = Nodes(
            self.clock,
            [
                Node(name, {d.uuid: d for d in (scenes.device(x, node=name) for x in ("a", "b"))})
                for name in listed
            ],
        )
        for name in listed:
            self.publish(name)
        for pool, names in pools.items():
            for name in names:
                self.make_node(name, pool)

    def make_node(self, name: str, pool: str) -> None:
        """The node's Node object."""
        metadata = {"name": name, "labels": {"pool": pool} if pool else {}}
        self.admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})

    def label(self, name: str, pool: str) -> None:
        """Move a node to another pool."""
        body = {"metadata": {"labels": {"pool": pool}}}
        self.admin.patch(NODES, Name(name), body, kind=PatchKind.MERGE)


@dataclass
class Shard:
    """One coordinator: its caller at the API, and what is stepped."""

    cluster: MemoryCluster
    stepped: Reconciling

    def wrote(self) -> set[str]:
        """Names of the claims that it wrote to."""
        return {str(one.name.name) for one in self.cluster.writes() if one.resource == CLAIMS}


@contextmanager
def shard(
    site: Bench, selecting: str, *selectors: str, finalizer: str = "with-hold"
) -> Iterator[Shard]:
    """A coordinator of the nodes that `selecting` selects; `selectors`: of all there are."""
    kubernetes = KubernetesSettings.model_validate(
        {"coordinator_nodes": selectors, "finalizer": finalizer}
    )
    plan = CoordinatorPlan(
        state="", settings=Settings(kubernetes=kubernetes), kubernetes=True, nodes=selecting
    )
    cluster = MemoryCluster(site.engine, caller=Caller(manager="fleetscrub"))
    runs = MemoryRunStore(site.clock)
    coordinator = Coordinator(site.store, runs, clock=site.clock, signer=NoSigner())
    stepped = wiring_coordinator.reconciling(plan, coordinator, site.nodes, cluster)
    try:
        yield Shard(cluster, stepped)
    finally:
        stepped.close()


def run(site: Bench, seconds: float, *shards: Shard, work: bool = True) -> None:
    """Steps of these coordinators for so long; nodes end their work between any two."""
    until = site.clock.now() + seconds
    while site.clock.now() < until:
        for one in shards:
            one.stepped.refresh()
            one.stepped.step(site.clock.now())
        if work:
            site.nodes.work()
        site.clock.advance(STEP_S)
