"""Nodes quarantined end to end, all struck at once: ``python -m tests.scale.quarantine``.

Every accelerator of every node reports a fatal fault code at the same moment. A node counts once
its journal says QUARANTINED, its ResourceSlice was read back with the taint on every device, and
the store has the lease that keeps claims and campaigns off. Real: node services with journals on
disk, their doors, the plugin's keeper and publisher with a client of the API server each (and its
budget of requests), the coordinator's loop as `fleet coordinate` runs it, the durable store. Not
real: the devices; and the API server, the tests' stand-in in a process of its own. Nodes are hosted
by two processes and share this machine's cores; in a fleet each has its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from fleet.control.binding.loop import Loop
from fleet.core.clock import SystemClock
from fleet.core.errors import FleetError, LeaseHeld
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind, UnitId
from fleet.kube import client
from fleet.kube.base import NODES, SLICES
from fleet.stores.base import LeaseStore
from fleet.stores.sqlite import open_stores, store_path
from fleet.wiring import coordinator as wiring_coordinator
from fleet.wiring.adapters import FleetPlan
from tests.e2e.polling import eventually
from tests.scale import grounds, struck
from tests.scale.struck import POLL_S, SETTLE_S, Fate, Share

HOSTS = 2
"""Processes that host nodes."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Times in seconds from the fault to the last node; CPU in milliseconds a node."""

    nodes: int
    devices: int
    clean_before: int
    """Devices that were CLEAN and offered when they were struck; the others were DIRTY."""
    journalled_s: float
    published_s: float
    leased_s: float
    nodes_per_s: float
    """Nodes by the time after which the last was out of service in all three places."""
    node_p50_s: float
    writes_per_node: float
    reads_per_node: float
    nodes_cpu_ms: float
    """Of node service and plugin: spent on the node's own processor in a fleet."""
    coordinator_cpu_ms: float
    server_cpu_ms: float
    """Of the API stand-in."""
    tainted: int
    """Devices with the quarantine's taint in the slices, as listed afterwards."""
    refused_claims: int
    """Claims that asked the store for a struck device afterwards and were refused."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process that speaks in lines."""

    process: subprocess.Popen[str]

    def heard(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a process of the measurement ended early")
        return line.strip()

    def go_on(self) -> None:
        """Let it do what it waits to do."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Let it end; kill it if it does not."""
        try:
            self.process.communicate(timeout=60.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def spawn(stack: ExitStack, module: str, argument: str) -> Child:
    """Start `python -m module argument`; it ends with the stack."""
    child = Child(
        subprocess.Popen(
            [sys.executable, "-m", module, argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=grounds.ROOT,
        )
    )
    stack.callback(child.end)
    return child


def coordinate(share: Share) -> int:
    """The coordinator's process: the loop of `fleet coordinate` until standard input ends."""
    logging.basicConfig(level=logging.ERROR)
    loop = Loop(wiring_coordinator.of_host(_plan(share), share.kubeconfig))
    loop.start()
    eventually(
        "the coordinator's first step", lambda: loop.view().stepped_at > 0, timeout_s=SETTLE_S
    )
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    loop.stop()
    return 0


def measure(*, nodes: int, devices: int, clean: int) -> Figures:
    """Strike `nodes` nodes of `devices` devices at once."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-scale-"))
    try:
        with ExitStack() as stack:
            server = stack.enter_context(grounds.api_server(folder))
            whole = Share(
                state=str(folder / "state"),
                kubeconfig=str(server.kubeconfig),
                nodes=nodes,
                devices=devices,
                clean=clean,
                first=0,
                last=nodes,
            )
            _create_nodes(whole.kubeconfig, _plan(whole))
            hosts = [_host(stack, whole, place) for place in range(HOSTS)]
            for host in hosts:
                host.heard()
            said = json.dumps({"coordinate": True, **asdict(whole)})
            coordinator = spawn(stack, "tests.scale.quarantine", said)
            coordinator.heard()
            store = open_stores(store_path(Path(whole.state)), clock=SystemClock())
            stack.callback(store.close)
            return _struck(whole, store.leases, hosts, coordinator, server.pid)
    finally:
        shutil.rmtree(folder)


def _plan(share: Share) -> FleetPlan:
    return struck.fleet_plan(
        Path(share.state), nodes=share.nodes, devices=share.devices, clean=share.clean
    )


def _host(stack: ExitStack, whole: Share, place: int) -> Child:
    bounds = [whole.nodes * edge // HOSTS for edge in (place, place + 1)]
    share = {**asdict(whole), "first": bounds[0], "last": bounds[1]}
    return spawn(stack, "tests.scale.struck", json.dumps(share))


def _create_nodes(kubeconfig: str, plan: FleetPlan) -> None:
    cluster = client.connect(kubeconfig, qps=grounds.QPS, timeout_s=10.0)
    for one in plan.nodes:
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": one.node}}
        cluster.create(NODES, body)


def _struck(
    whole: Share, store: LeaseStore, hosts: Sequence[Child], coordinator: Child, server: int
) -> Figures:
    for host in hosts:
        host.go_on()
    for host in hosts:
        host.heard()
    cpu = {pid: grounds.cpu_s(pid) for pid in (coordinator.process.pid, server)}
    began = time.monotonic()
    for host in hosts:
        host.go_on()
    leased = _leased(store, whole.nodes * whole.devices)
    spent = {pid: 1000 * (grounds.cpu_s(pid) - was) / whole.nodes for pid, was in cpu.items()}
    told = [json.loads(host.heard()) for host in hosts]
    fates = {
        name: Fate(**{**fate, "units": tuple(fate["units"])})
        for one in told
        for name, fate in one["fates"].items()
    }
    out = [_out_at(fate, leased) - began for fate in fates.values()]
    units = [UnitId(unit) for fate in fates.values() for unit in fate.units]
    return Figures(
        nodes=whole.nodes,
        devices=len(units),
        clean_before=whole.clean * whole.devices,
        journalled_s=max(fate.journalled_at for fate in fates.values()) - began,
        published_s=max(fate.published_at for fate in fates.values()) - began,
        leased_s=max(leased.values()) - began,
        nodes_per_s=whole.nodes / max(out),
        node_p50_s=statistics.median(out),
        writes_per_node=sum(fate.writes for fate in fates.values()) / whole.nodes,
        reads_per_node=sum(fate.reads for fate in fates.values()) / whole.nodes,
        nodes_cpu_ms=1000 * sum(one["cpu_s"] for one in told) / whole.nodes,
        coordinator_cpu_ms=spent[coordinator.process.pid],
        server_cpu_ms=spent[server],
        tainted=_tainted(whole.kubeconfig),
        refused_claims=_refused(units, store),
    )


def _leased(store: LeaseStore, units: int) -> Mapping[str, float]:
    """When each unit was first seen under its quarantine's lease, monotonic time, s."""
    seen: dict[str, float] = {}

    def all_held() -> bool:
        now = time.monotonic()
        for lease in store.leases():
            if lease.holder.kind is HolderKind.QUARANTINE:
                for unit in lease.units:
                    seen.setdefault(unit, now)
        return len(seen) == units

    eventually("the quarantine leases", all_held, timeout_s=SETTLE_S, period_s=POLL_S)
    return seen


def _out_at(fate: Fate, leased: Mapping[str, float]) -> float:
    return max(fate.journalled_at, fate.published_at, *(leased[unit] for unit in fate.units))


def _tainted(kubeconfig: str) -> int:
    found = client.connect(kubeconfig, qps=grounds.QPS, timeout_s=30.0).list(SLICES)
    return sum(
        any(str(taint["key"]).endswith("/quarantined") for taint in device.get("taints", ()))
        for one in found.items
        for device in one["spec"].get("devices", ())
    )


def _refused(units: Sequence[UnitId], store: LeaseStore) -> int:
    """How many of as many claims, each for one unit, the store refuses because it is taken."""
    asked = [
        AcquireRequest(frozenset({unit}), Holder(HolderKind.CLAIM, f"claim-{unit}"))
        for unit in units
    ]
    return sum(isinstance(answer, LeaseHeld) for answer in store.acquire(asked))


def render(found: Figures) -> str:
    """The figures as lines."""
    return (
        f"{found.nodes} nodes x {found.devices // found.nodes} devices struck at once"
        f" ({found.clean_before} devices clean and offered before)\n"
        f"in every journal {found.journalled_s:.2f} s, in every slice, read back,"
        f" {found.published_s:.2f} s, in the store {found.leased_s:.2f} s"
        f" (median node: all three {found.node_p50_s:.2f} s)\n"
        f"{found.nodes_per_s:.1f} nodes/s end to end; afterwards {found.tainted} devices tainted,"
        f" {found.refused_claims} claims refused of {found.devices}\n"
        f"per node: {found.writes_per_node:.2f} writes and {found.reads_per_node:.2f} reads at the"
        f" API; CPU: node and plugin {found.nodes_cpu_ms:.1f} ms, coordinator"
        f" {found.coordinator_cpu_ms:.1f} ms, API stand-in {found.server_cpu_ms:.1f} ms\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; 0 when every struck device ended out of service everywhere."""
    parser = argparse.ArgumentParser(prog="python -m tests.scale.quarantine", description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--clean", type=int, default=8, help="nodes wiped clean before")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("role", nargs="?", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.role:
        given = json.loads(chosen.role)
        del given["coordinate"]
        return coordinate(Share(**given))
    logging.basicConfig(level=logging.ERROR)
    clean = min(chosen.clean, chosen.nodes)
    try:
        found = measure(nodes=chosen.nodes, devices=chosen.devices, clean=clean)
    except (OSError, FleetError, RuntimeError) as error:
        sys.stderr.write(f"the measurement cannot run: {error}\n")
        return 2
    sys.stdout.write(json.dumps(asdict(found)) + "\n" if chosen.json else render(found))
    return int(not found.refused_claims == found.tainted == found.devices)


if __name__ == "__main__":
    sys.exit(main())
