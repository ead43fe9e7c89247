"""Prepare and unprepare as kubelet sees them (`make bench`).

A real plugin process behind its socket, the journal's owner in another process (the standby, then a
node actor in a local Ray), the stand-in API server in a third. Profile ``fast`` on a device with a
teardown certificate, so that no prepare wipes; the wipe inside unprepare is taken off by the
times on its certificate. Beside it: the same number of bare fsyncs on the same file system.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from actors import cluster
from fleet.core import errors
from fleet.core.settings import MIB
from fleet.devices.simulated import faults
from fleet.devices.simulated.backend import SimulatedBackend
from fleet.evidence import dsse, layout
from fleet.evidence.ledger import Ledger
from fleet.kube import client
from fleet.kube.base import NODES, Cluster, Name, uid_of
from fleet.plugin.requests import AskedClaim
from fleet.wiring import adapters
from fleet.wiring.adapters import NodePlan
from tests.lab.kubelet.connection import Connection
from tests.lab.kubelet.control import ControlPlane, Seen

_PROCESS_CLOCK = 2
"""What clock_getcpuclockid(3) adds for the time that a whole process ran."""
DRIVER = "gpu.fleetscrub.dev"
NODE = "bench"
PREPARE_FSYNCS = 8
UNPREPARE_FSYNCS = 8
"""Counted with strace on this version: fsync and fdatasync calls of one prepare and one unprepare
without its wipe, over all processes."""
PAUSE_S = 0.5
"""Between two rounds, so that a spare worker is ready as on a node that is not benchmarked."""
SPARES_S = 4.0
"""Time, s, for a spare worker of each of eight devices."""
YARDSTICK = "a plain Go plugin without durability: prepare p50 4.1 p95 7.3 ms, unprepare p50 0.7 ms"


@dataclass
class Bench:
    """One plugin on a simulated node, and kubelet's side of its socket."""

    root: Path
    cluster: Cluster
    plan: NodePlan
    kubelet: Connection
    control: ControlPlane
    pids: tuple[int, ...]
    """The plugin, and whoever owns the node's journal."""
    prepares: list[float] = field(default_factory=list)
    unprepares: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Processor seconds of both for each prepare."""
    _serial: int = 0

    def claim(self, device: str) -> AskedClaim:
        """A claim allocated and reserved as the scheduler does it."""
        self._serial += 1
        name = Name(f"c{self._serial}-{device}", "default")
        pod = self.control.create_pod(Name(f"p{self._serial}-{device}", "default"), claim=name.name)
        made = self.control.create_claim(name)
        self.control.bind(Name(f"p{self._serial}-{device}", "default"))
        self.control.allocate(name, pod, Seen(DRIVER, NODE, device, {}))
        return AskedClaim("default", uid_of(made), name.name)

    def round(self, device: str) -> None:
        """One claim through prepare and unprepare, timed in seconds."""
        asked = self.claim(device)
        before = self.cpu_s()
        self.prepares.append(timed(lambda: self.prepare(asked)))
        self.cpu.append(self.cpu_s() - before)
        took = timed(lambda: self._unprepare(asked))
        self.unprepares.append(took - self._wipe_s())

    def cpu_s(self) -> float:
        """Processor seconds the two processes have used, with those of threads that ended."""
        return sum(time.clock_gettime(~pid << 3 | _PROCESS_CLOCK) for pid in self.pids)

    def prepare(self, asked: AskedClaim) -> None:
        """Ask as kubelet does. Raises `BackendFailed` with the plugin's error."""
        answer = self.kubelet.prepare([asked], timeout_s=45)[asked.uid]
        if answer.error:
            raise errors.BackendFailed(answer.error)

    def _unprepare(self, asked: AskedClaim) -> None:
        answer = self.kubelet.unprepare([asked], timeout_s=45)[asked.uid]
        if answer.error:
            raise errors.BackendFailed(answer.error)

    def _wipe_s(self) -> float:
        """How long the newest wipe took, seconds, by the times on its certificate."""
        ledger = Ledger(layout.ledger_directory(Path(self.plan.state), NODE))
        *_, newest = ledger.entries()
        told = ledger.certificate(newest.digest).predicate
        return dsse.seconds_of(told["ended_at"]) - dsse.seconds_of(told["started_at"])


def timed(act: Callable[[], None]) -> float:
    """Seconds that `act` takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


@contextmanager
def standing_in(root: Path) -> Iterator[Path]:
    """The stand-in API server as a process; the path of its kubeconfig."""
    ports, kubeconfig = root / "port", root / "kubeconfig"
    command = (
        "-m",
        "tests.lab.apiserver",
        "--port-file",
        str(ports),
        "--kubeconfig",
        str(kubeconfig),
    )
    process = subprocess.Popen((sys.executable, *command, "--until-eof"), stdin=subprocess.PIPE)
    try:
        await_fact(ports.exists, "the stand-in API server does not start")
        yield kubeconfig
    finally:
        process.terminate()
        process.wait(10)


def await_fact(fact: Callable[[], bool], trouble: str, *, timeout_s: float = 60.0) -> None:
    """Return once `fact` holds."""
    deadline = time.monotonic() + timeout_s
    while not fact():
        if time.monotonic() > deadline:
            raise SystemExit(trouble)
        time.sleep(0.05)


POLICY = """
profile = "fast"
[node]
idle_delay_s = 0.2
[kubernetes]
cdi_directory = "{root}/cdi"
kubelet_root = "{root}/kubelet"
cgroup_root = "{root}/cgroup"
api_qps = 10000.0
publish_period_s = 0.5
"""


@contextmanager
def benched(root: Path, *, devices: int, ray_address: str = "") -> Iterator[Bench]:
    """A plugin process that serves `devices` clean simulated devices."""
    for folder in ("kubelet/plugins_registry", "cgroup/kubepods"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "policy.toml").write_text(POLICY.format(root=root))
    with standing_in(root) as kubeconfig:
        cluster = client.connect(str(kubeconfig), qps=10000, timeout_s=10)
        cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        command = [sys.executable, "-m", "node_plugin", "--node", NODE, "--state", f"{root}/state"]
        command += ["--policy", f"{root}/policy.toml", "--kubeconfig", str(kubeconfig)]
        command += ["--simulate", str(devices), "--memory", "1MiB", "--http", "127.0.0.1:0"]
        if ray_address:
            command += ["--ray-address", ray_address]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            owner = "node actor" if ray_address else "standby"
            yield _ready(root, cluster, devices, owner=owner, plugin=process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _ready(root: Path, cluster: Cluster, devices: int, *, owner: str, plugin: int) -> Bench:
    control = ControlPlane(cluster, node=NODE, now=time.time)
    await_fact(lambda: len(control.free()) == devices, "the devices do not get clean")
    plan = NodePlan.model_validate_json(
        (layout.node_directory(root / "state", NODE) / "plan.json").read_text()
    )
    door = adapters.open_door(plan)

    def owned() -> bool:
        try:
            return str(door.pulse()["owner"]) == owner
        except errors.FleetError:
            return False

    await_fact(owned, f"no {owner} owns the node")
    socket = root / "kubelet" / "plugins" / DRIVER / "dra.sock"
    kubelet = Connection(str(socket), "v1.DRAPlugin")
    pids = (plugin, int(door.pulse()["pid"]))
    return Bench(root, cluster, plan, kubelet, control, pids)


def parallel(bench: Bench, devices: int) -> float:
    """Wall seconds of `devices` claims at once, each with a wipe of a second in its prepare."""
    asked = [bench.claim(f"gpu-{index}") for index in range(devices)]
    barrier = threading.Barrier(devices + 1)

    def prepare(claim: AskedClaim) -> None:
        barrier.wait()
        bench.prepare(claim)

    threads = [threading.Thread(target=prepare, args=(claim,)) for claim in asked]
    for thread in threads:
        thread.start()
    barrier.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def slow_down(bench: Bench, devices: int) -> None:
    """Each of the four passes over a device takes a quarter of a second from now on."""
    root = layout.node_directory(Path(bench.plan.state), NODE) / "sim"
    backend = SimulatedBackend(root)
    for accelerator in backend.inventory()[:devices]:
        backend.set_fault(
            accelerator.uuid,
            faults.make(
                "slow-memory",
                units=[unit.id for unit in accelerator.units],
                parameters={"bytes_per_s": str(4.0 * MIB)},
                times=0,
                seed=0,
            ),
        )


def bare_fsyncs(root: Path, count: int, rounds: int) -> list[float]:
    """Seconds for `count` small writes with fdatasync each, `rounds` times."""
    opened = os.open(root / "fsyncs", os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        return [timed(lambda: _synced(opened, count)) for _ in range(rounds)]
    finally:
        os.close(opened)


def _synced(opened: int, count: int) -> None:
    for _ in range(count):
        os.pwrite(opened, b"x" * 4096, 0)
        os.fdatasync(opened)


Figures = dict[str, dict[str, float]]
"""Milliseconds by name and percentile, with the number of calls."""


def tell(figures: Figures, name: str, seconds: Sequence[float]) -> None:
    """Keep and print one line of figures."""
    ordered = sorted(seconds)
    p50, p95, p99 = (round(ordered[int(len(ordered) * q)] * 1e3, 2) for q in (0.5, 0.95, 0.99))
    figures[name] = {"p50_ms": p50, "p95_ms": p95, "p99_ms": p99, "calls": len(ordered)}
    sys.stdout.write(
        f"{name:55} p50 {p50:6.1f}  p95 {p95:6.1f}  p99 {p99:6.1f} ms  ({len(ordered)})\n"
    )


def report(figures: Figures, name: str, bench: Bench, calls: int) -> None:
    """Run and print one mode."""
    for index in range(2):
        bench.round(f"gpu-{index}")
    bench.prepares.clear()
    bench.unprepares.clear()
    bench.cpu.clear()
    for index in range(calls):
        time.sleep(PAUSE_S)
        bench.round(f"gpu-{index % 2}")
    tell(figures, f"prepare, {name}", bench.prepares)
    tell(figures, f"CPU of prepare, owner and plugin, {name}", bench.cpu)
    tell(figures, f"unprepare without its wipe, {name}", bench.unprepares)
    for what, count in (("prepare", PREPARE_FSYNCS), ("unprepare", UNPREPARE_FSYNCS)):
        bare = bare_fsyncs(bench.root, count, 200)
        tell(figures, f"{count} bare fsyncs, as in one {what}", bare)


def alone(figures: Figures, calls: int) -> None:
    """The standby owns the node; at the end eight claims at once."""
    with (
        tempfile.TemporaryDirectory(prefix="fleet-bench-") as folder,
        benched(Path(folder), devices=8) as bench,
    ):
        report(figures, "owned by the standby", bench, calls)
        slow_down(bench, 8)
        time.sleep(SPARES_S)
        wall = parallel(bench, 8)
        sys.stdout.write(f"8 claims at once, a wipe of 1 s each: {wall:.2f} s wall\n")


def with_ray(figures: Figures, calls: int) -> None:
    """A node actor in a local Ray owns the node."""
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as folder:
        started = cluster.local(Path(folder) / "ray")
        try:
            import ray

            address = ray.get_runtime_context().gcs_address
            with benched(Path(folder), devices=2, ray_address=address) as bench:
                report(figures, "owned by a node actor in Ray", bench, calls)
        finally:
            started.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench.kubelet", description=__doc__)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--no-ray", action="store_true", help="only the standby-owned node")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    chosen = parser.parse_args(arguments)
    sys.stdout.write(f"yardstick: {YARDSTICK}\n")
    figures: Figures = {}
    alone(figures, chosen.calls)
    if not chosen.no_ray:
        with_ray(figures, chosen.calls)
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        told = {"yardstick": YARDSTICK, "figures": figures}
        chosen.json.write_text(json.dumps(told, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
