"""Nodes in a process of their own, as `tests.scale.quarantine` strikes them: many in one process.

Each has what a node has: journal, ledger and locks on disk, a door, the plugin's keeper over that
door, and a client of the API server with the plugin's own budget of requests. A process speaks in
lines: "ready" once its nodes are published, "struck", then one JSON document of what came of it.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fleet.core.model import State
from fleet.core.settings import MIB, Settings
from fleet.devices.simulated.backend import SimulatedBackend
from fleet.evidence import layout
from fleet.kube import client
from fleet.kube.base import Cluster
from fleet.node.service import NodeService
from fleet.plugin.reconciler import Keeper
from fleet.wiring import adapters, plugin
from fleet.wiring.adapters import FleetPlan, NodePlan
from tests.e2e.polling import eventually

FATAL = 79
"""The driver's code for a device that has fallen off the bus."""
SETTLE_S = 240.0
POLL_S = 0.02
ACTING = 8
"""Nodes of one process that act at one time: their disks are waited for side by side."""
WRITES = ("create", "replace", "apply", "patch", "delete")
READS = ("get", "list")


@dataclass(frozen=True, slots=True)
class Share:
    """What one process hosts: nodes `first` to `last` (excluded) of a fleet; crosses as JSON."""

    state: str
    kubeconfig: str
    nodes: int
    devices: int
    clean: int
    """The first so many nodes of the fleet are wiped clean before they are struck."""
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one node. Times are of the machine's monotonic clock, s."""

    units: tuple[str, ...]
    journalled_at: float
    published_at: float
    writes: int
    reads: int


class Counting:
    """A cluster that counts what it is asked; everything goes on to the real client."""

    def __init__(self, cluster: Cluster, counts: Counter[str]) -> None:
        self._cluster = cluster
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cluster, name)
        if name not in (*WRITES, *READS):
            return found

        def counted(*arguments: Any, **named: Any) -> Any:
            self._counts[name] += 1
            return found(*arguments, **named)

        return counted


@dataclass
class Member:
    """One node: its service, and the plugin's step over its door."""

    plan: NodePlan
    service: NodeService
    keeper: Keeper
    counts: Counter[str]
    journalled_at: float = 0.0
    published_at: float = 0.0

    def fate(self) -> Fate:
        """What became of it since it was struck."""
        return Fate(
            tuple(unit for device in self.service.view().devices for unit in device.units),
            self.journalled_at,
            self.published_at,
            writes=sum(self.counts[name] for name in WRITES),
            reads=sum(self.counts[name] for name in READS),
        )

    def strike(self) -> None:
        """Every accelerator of the node reports the fatal code from now on."""
        self.counts.clear()
        root = layout.node_directory(Path(self.plan.state), self.plan.node) / "sim"
        backend = SimulatedBackend(root)
        for accelerator in backend.inventory():
            with backend.registers(accelerator.uuid).change() as register:
                register.values["xids"] = [FATAL]

    def suffer(self) -> None:
        """Find the fault, keep it, publish it, read it back: what node and plugin do by period."""
        self.service.sweep()
        view = self.service.view()
        if not all(device.state == State.QUARANTINED for device in view.devices):
            raise RuntimeError(f"{self.plan.node} found no fault")
        self.journalled_at = time.monotonic()
        wanted = {device.uuid for device in view.devices}
        ends = time.monotonic() + SETTLE_S
        while wanted - self.keeper.report.confirmed_quarantine.keys():
            if time.monotonic() > ends:
                raise RuntimeError(f"{self.plan.node}: {self.keeper.report.trouble}")
            self.keeper.step(time.time())
        self.published_at = time.monotonic()


@contextmanager
def serving(plan: NodePlan, cluster: Cluster) -> Iterator[Member]:
    """A node that serves, and its plugin's parts; it stands as after a first start."""
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        service = adapters.open_node(plan)
        stack.callback(service.close)
        door = stack.enter_context(closing(adapters.open_door(plan)))
        counted: Any = Counting(cluster, counts)
        parts = plugin.plugin_parts(plan, counted, door)
        stack.callback(parts.store.close)
        stack.callback(parts.publisher.close)
        keeper = plugin.keeper(plan, door, parts, lambda _: None)
        yield Member(plan, service, keeper, counts)


def make_clean(one: Member) -> None:
    """Wipe and certify every device of the node, by its own rule."""

    def clean() -> bool:
        one.service.tick(time.time())
        return all(device.state == State.CLEAN for device in one.service.view().devices)

    def told() -> str:
        return str(Counter((d.state, *d.reasons) for d in one.service.view().devices))

    what = f"{one.plan.node} is clean"
    eventually(what, clean, timeout_s=SETTLE_S, period_s=POLL_S, tell=told)


def publish(one: Member) -> None:
    """Until the slices say what the node says."""
    ends = time.monotonic() + SETTLE_S
    while not one.keeper.report.settled:
        if time.monotonic() > ends:
            raise RuntimeError(f"{one.plan.node}: {one.keeper.report.trouble}")
        one.keeper.step(time.time())


def fleet_plan(folder: Path, *, nodes: int, devices: int, clean: int) -> FleetPlan:
    """The first `clean` nodes wipe what is dirty at once, the others not while this lasts."""
    plan = adapters.plan_fleet(
        folder, simulate=f"{nodes}x{devices}", memory_bytes=MIB, settings=Settings()
    )
    members = []
    for place, one in enumerate(plan.nodes):
        idle_s = 0.0 if place < clean else 3600.0
        node = one.settings.node.model_copy(update={"idle_delay_s": idle_s, "max_parallel": 4})
        settings = one.settings.model_copy(update={"node": node})
        members.append(one.model_copy(update={"settings": settings}))
    return plan.model_copy(update={"nodes": tuple(members)})


def _opened(plan: NodePlan, kubeconfig: str) -> AbstractContextManager[Member]:
    kubernetes = plan.settings.kubernetes
    cluster = client.connect(kubeconfig, qps=kubernetes.api_qps, timeout_s=kubernetes.api_timeout_s)
    return serving(plan, cluster)


def serve(share: Share) -> None:
    """Host the nodes of `share` until they were struck and out of service, in the words above."""
    logging.basicConfig(level=logging.ERROR)
    plan = fleet_plan(
        Path(share.state), nodes=share.nodes, devices=share.devices, clean=share.clean
    )
    with ExitStack() as stack:
        mine = plan.nodes[share.first : share.last]
        members: list[Member] = []
        for place, one in enumerate(mine, share.first):
            members.append(stack.enter_context(_opened(one, share.kubeconfig)))
            if place < share.clean:  # before the others: a worker is followed by few descriptors
                make_clean(members[-1])
        pool = stack.enter_context(ThreadPoolExecutor(ACTING))
        list(pool.map(lambda member: member.service.tick(time.time()), members))
        list(pool.map(publish, members))
        _say("ready")
        sys.stdin.readline()
        for member in members:
            member.strike()
        _say("struck")
        sys.stdin.readline()
        began = time.process_time()
        list(pool.map(Member.suffer, members))
        spent_s = time.process_time() - began
        fates = {member.plan.node: asdict(member.fate()) for member in members}
        _say(json.dumps({"cpu_s": spent_s, "fates": fates}))
        sys.stdin.readline()  # the coordinator asks the doors until all is known


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """`arguments`: one `Share` as JSON."""
    serve(Share(**json.loads(arguments[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
